"""The decoding section of a model's recipe, with what the user wants otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from nmt_cli.errors import UsageError
from nmt_cli.recipe.mistakes import describe, suggest, worst_mistake
from nmt_cli.recipe.schema import DecodingConfig


def with_options(config: DecodingConfig, options: Mapping[str, object]) -> DecodingConfig:
    """`config` with the options that are not None in place of its own; UsageError names the flag of a wrong one."""
    values = config.model_dump() | {name: value for name, value in options.items() if value is not None}
    try:
        return DecodingConfig.model_validate(values)
    except ValidationError as problem:
        error = worst_mistake(problem)
        name = str(error["loc"][0])
        flag = "--" + name.replace("_", "-")
        fix = f"leave {flag} out, and the model's own {getattr(config, name)} is taken"
        hint = suggest(error, (name,), schema=DecodingConfig, values=values, fix=fix)
        raise UsageError(describe(error, (flag,)), where=flag, hint=hint) from None


def check_nbest(nbest: int, *, beam: int) -> None:
    """Raise UsageError unless a search with this beam can find so many translations of a sentence."""
    if nbest < 1:
        raise UsageError(f"--nbest is {nbest}, but should be at least 1", where="--nbest", hint="--nbest 1")
    if nbest > beam:
        raise UsageError(
            f"--nbest {nbest} needs a beam of at least {nbest}, but it is {beam}",
            where="--nbest",
            hint=f"add --beam {nbest}, or take --nbest {beam}",
        )
