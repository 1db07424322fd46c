"""The interface between a translator and its engine: the settings of a search, and the engine itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from pydantic import ValidationError

from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence
from nmt_cli.errors import UsageError
from nmt_cli.recipe.mistakes import describe, mistake_to_show, suggest
from nmt_cli.recipe.schema import DecodingConfig, LanguagePair
from nmt_cli.tokenization.tokenizer import Tokenizer

_OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True, slots=True)
class Details:
    """The optional parts of a hypothesis: log-probabilities of its pieces, and its alignment to the source."""

    piece_log_probs: bool
    alignment: bool


class Engine(Protocol):
    """One model, or several that translate together, on one device and in one precision."""

    name: str
    # The precision of matrix products: fp32, bf16 or int8.
    precision: str
    # cpu, cuda:0 and so on.
    device: str
    languages: LanguagePair
    source: Tokenizer
    target: Tokenizer
    # The model's own decoding section.
    decoding: DecodingConfig
    # The maximum number of pieces per side.
    max_positions: int
    # Pieces, without EOS, of the longest source sentence in training; None if it is unknown.
    longest_source: int | None
    # Sentences with fewer source tokens, with EOS, are not searched together with longer ones; 0: all are.
    short_below: int

    def check(self, config: DecodingConfig) -> None:
        """Raise UsageError if the engine does not support these settings."""

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one."""


class DecodingOverrides(TypedDict, total=False):
    """Settings of `DecodingConfig` for one call; None leaves a setting as it is."""

    beam: int | None
    length_penalty: float | None
    length_penalty_form: Literal["gnmt", "length", "none"] | None
    max_extra_tokens: int | None
    min_tokens: int | None
    batch_tokens: int | None
    samples: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None


def with_overrides(config: DecodingConfig, overrides: Mapping[str, object]) -> DecodingConfig:
    """`config` with the overrides that are not None; UsageError names a wrong one."""
    given = {name: value for name, value in overrides.items() if value is not None}
    if unknown := given.keys() - DecodingConfig.model_fields:
        raise TypeError(f"there is no setting {min(unknown)!r} of decoding")
    values = config.model_dump() | given
    try:
        found = DecodingConfig.model_validate(values)
    except ValidationError as problem:
        error = mistake_to_show(problem)
        name = str(error["loc"][0])
        own = getattr(config, name)
        fix = f"leave `{name}` out" if own is None else f"leave `{name}` out, and the model's own {own} is taken"
        hint = suggest(error, (name,), schema=DecodingConfig, values=values, as_flags=False) or fix
        raise UsageError(describe(error, (f"`{name}`",)), setting=name, hint=hint) from None
    for name in _OF_SAMPLING:
        if name in given and not found.samples:
            message = f"`{name}` is about sampling, and this is a search"
            raise UsageError(message, setting=name, hint=f"add `samples: 1`, or leave `{name}` out")
    if found.samples and "beam" in given:
        raise UsageError("sampling has no beam", setting="beam", hint="take either `beam` or `samples`")
    return found


def check_candidates(nbest: int, *, config: DecodingConfig, vocab: int, mbr: str | None) -> None:
    """Raise UsageError unless the search can find so many translations per sentence."""
    name, number = ("samples", config.samples) if config.samples else ("beam", config.beam)
    what = "`samples`" if config.samples else "a beam"
    if nbest < 1:
        raise UsageError(f"`nbest` is {nbest}, but should be at least 1", setting="nbest", hint="take `nbest: 1`")
    if nbest > number:
        raise UsageError(
            f"`nbest: {nbest}` needs {what} of at least {nbest}, but it is {number}",
            setting="nbest",
            hint=f"add `{name}: {nbest}`, or take `nbest: {number}`",
        )
    if not config.samples and config.beam > vocab:
        raise UsageError(
            f"a beam of {config.beam:,} is larger than the target vocabulary of {vocab:,} pieces",
            setting="beam",
            hint="a beam of 4 to 12 is usual: `beam: 4`",
        )
    if mbr is not None and number < 2:
        raise UsageError(
            "`mbr` chooses among several translations of a line, and there is one",
            setting="mbr",
            hint="add `beam: 8`, or `samples: 32`",
        )
