"""The decoding section of a model's recipe, with what the user wants otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from nmt_cli.errors import UsageError
from nmt_cli.recipe.mistakes import describe, suggest, worst_mistake
from nmt_cli.recipe.schema import DecodingConfig

_OF_DRAWS = ("temperature", "top_k", "top_p", "seed")


def with_options(config: DecodingConfig, options: Mapping[str, object]) -> DecodingConfig:
    """`config` with the options that are not None in place of its own; UsageError names the flag of a wrong one."""
    given = {name: value for name, value in options.items() if value is not None}
    values = config.model_dump() | given
    try:
        found = DecodingConfig.model_validate(values)
    except ValidationError as problem:
        error = worst_mistake(problem)
        name = str(error["loc"][0])
        flag = _flag(name)
        own = getattr(config, name)
        fix = f"leave {flag} out" if own is None else f"leave {flag} out, and the model's own {own} is taken"
        hint = suggest(error, (name,), schema=DecodingConfig, values=values, fix=fix)
        raise UsageError(describe(error, (flag,)), where=flag, hint=hint) from None
    for name in _OF_DRAWS:
        if name in given and not found.samples:
            message = f"{_flag(name)} is about draws, and a search draws nothing"
            raise UsageError(message, where=_flag(name), hint=f"add --samples 1, or leave {_flag(name)} out")
    if found.samples and "beam" in given:
        raise UsageError("draws have no beam", where="--beam", hint="take either --beam or --samples")
    return found


def check_candidates(
    nbest: int, *, config: DecodingConfig, vocab: int, mbr: str | None, next_words: int | None
) -> None:
    """Raise UsageError unless a search like this can find so many translations of a sentence."""
    _check_next_words(next_words, nbest=nbest, config=config, mbr=mbr)
    name, number = ("--samples", config.samples) if config.samples else ("--beam", config.beam)
    what = "--samples" if config.samples else "a beam"
    if nbest < 1:
        raise UsageError(f"--nbest is {nbest}, but should be at least 1", where="--nbest", hint="--nbest 1")
    if nbest > number:
        raise UsageError(
            f"--nbest {nbest} needs {what} of at least {nbest}, but it is {number}",
            where="--nbest",
            hint=f"add {name} {nbest}, or take --nbest {number}",
        )
    if not config.samples and config.beam > vocab:
        raise UsageError(
            f"a beam of {config.beam:,} is larger than the target vocabulary of {vocab:,} pieces",
            where="--beam",
            hint="a beam of 4 to 12 is usual: --beam 4",
        )
    if mbr is not None and number < 2:
        raise UsageError(
            "--mbr chooses among several translations of a line, and there is one",
            where="--mbr",
            hint="add --beam 8, or --samples 32",
        )


def _check_next_words(number: int | None, *, nbest: int, config: DecodingConfig, mbr: str | None) -> None:
    """Raise UsageError where the number of other words makes no sense, or the search gives many anyway."""
    if number is None:
        return
    if number < 1:
        raise UsageError(
            f"--next-words is {number}, but should be at least 1", where="--next-words", hint="--next-words 5"
        )
    for flag, is_given in (("--nbest", nbest > 1), ("--samples", config.samples > 0), ("--mbr", mbr is not None)):
        if is_given:
            raise UsageError(
                f"--next-words and {flag} each say which translations of a line are wanted",
                where="--next-words",
                hint=f"leave one of them out: --next-words, or {flag}",
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
