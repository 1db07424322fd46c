"""The settings of a search: the model's own with a caller's changes, and what must fit together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import ValidationError

from nmt_cli.errors import UsageError, nearest_word
from nmt_cli.recipe.mistakes import describe, error_to_show, suggestion
from nmt_cli.recipe.schema import DecodingConfig

_SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "seed")


def with_overrides(config: DecodingConfig, overrides: Mapping[str, object]) -> DecodingConfig:
    """`config` with the overrides that are not None; UsageError names a wrong one."""
    changes = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in overrides.items()
        if value is not None
    }
    if unknown := changes.keys() - DecodingConfig.model_fields:
        near = nearest_word(min(unknown), DecodingConfig.model_fields)
        raise TypeError(f"there is no setting {min(unknown)!r} of decoding" + (f"; it is {near}" if near else ""))
    values = config.model_dump() | changes
    try:
        changed = DecodingConfig.model_validate(values)
    except ValidationError as invalid:
        error = error_to_show(invalid)
        name = str(error["loc"][0])
        hint = suggestion(error, (name,), DecodingConfig, values) or f"leave `{name}` out"
        raise UsageError(describe(error, (f"`{name}`",)), setting=name, hint=hint) from None
    for name in _SAMPLING_SETTINGS:
        if name in changes and not changed.samples:
            message = f"`{name}` is about sampling, and this is a search"
            raise UsageError(message, setting=name, hint=f"add `samples: 1`, or leave `{name}` out")
    if changed.samples and "beam" in changes:
        hint = (
            "take either `beam` or `samples`" if "samples" in changes else "add `samples: 0`: the model itself samples"
        )
        raise UsageError("sampling has no beam", setting="beam", hint=hint)
    return changed


def check_num_candidates(nbest: int, *, config: DecodingConfig, vocab: int, mbr: str | None) -> None:
    """Raise UsageError unless the search has `nbest` candidates per sentence, and at least two of them for `mbr`.

    Its beam may not be wider than the vocabulary.
    """
    if mbr not in (None, "chrf", "bleu"):
        raise UsageError(f"there is no utility called {mbr!r}", setting="mbr", hint="take chrf or bleu")
    if nbest < 1:
        raise UsageError(f"`nbest` is {nbest}, but should be at least 1", setting="nbest", hint="take `nbest: 1`")
    if nbest > config.num_candidates:
        setting, needed = ("samples", "`samples`") if config.samples else ("beam", "a beam")
        raise UsageError(
            f"`nbest: {nbest}` needs {needed} of at least {nbest}, but it is {config.num_candidates}",
            setting="nbest",
            hint=f"add `{setting}: {nbest}`, or take `nbest: {config.num_candidates}`",
        )
    if not config.samples and config.beam > vocab:
        raise UsageError(
            f"a beam of {config.beam:,} is larger than the target vocabulary of {vocab:,} pieces",
            setting="beam",
            hint="a beam of 4 to 12 is usual: `beam: 4`",
        )
    if mbr is not None and config.num_candidates < 2:
        raise UsageError(
            "`mbr` chooses among several translations of a line, and there is one",
            setting="mbr",
            hint="add `beam: 8`, or `samples: 32`",
        )
