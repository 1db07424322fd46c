"""The directions of a model or of a corpus: which languages are translated into which, and the pieces that say so."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nmt_cli.errors import UsageError
from nmt_cli.languages import match_code, nearest_code, short_code
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.recipe.section import Name, Section, SettingError

_MOST_SHOWN = 12  # languages in a message


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction, and the pieces that the model needs for it.

    `source_symbols` stand before the pieces of a source, and `target_symbols` before those of its translation.
    """

    languages: LanguagePair
    source_symbols: tuple[str, ...] = ()
    target_symbols: tuple[str, ...] = ()


class Directions(Section):
    """The directions of a model or of a corpus.

    A single direction is written as its two codes. Several need a symbol for each target language, which is a piece of
    the vocabulary that text never has.
    """

    pairs: list[LanguagePair] = Field([], description="directions of the training; empty: not known, so any")
    target_symbols: dict[Name, str] = Field({}, description="the piece of each target language")
    target_symbol_on: Literal["source", "target"] = Field(
        "source",
        description="side on which the target's piece is the first: the source, as in Johnson et al. 2017, or the "
        "target, as in M2M-100",
    )
    source_symbols: dict[Name, str] = Field(
        {}, description="the piece of each source language, before its text; empty: the model does not read it"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_two_codes(cls, value: Any) -> Any:
        is_pair = isinstance(value, LanguagePair) or (isinstance(value, dict) and not value.keys() & cls.model_fields)
        return {"pairs": [value]} if is_pair else value

    @model_serializer(mode="wrap")
    def _as_two_codes(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return values if self.has_symbols else values["pairs"][0]

    @model_validator(mode="after")
    def _several_have_symbols(self) -> Self:
        if not self.target_symbols and len(self.pairs) != 1:
            problem = f"{'several directions' if self.pairs else 'directions without `pairs`'} need target_symbols"
            raise SettingError(problem, "write target_symbols with a piece for each target language")
        return self

    def __str__(self) -> str:
        """The title in short: en-de."""
        return self.title.replace(" to ", "-")

    @property
    def title(self) -> str:
        """en to de, or en to de, de to en and so on; of very many the number of languages."""
        pairs = list(islice(self._each(), _MOST_SHOWN + 1))
        if len(pairs) > _MOST_SHOWN:
            return f"{len(self.sources)} languages into {len(self.targets)}"
        return ", ".join(f"{pair.source} to {pair.target}" for pair in pairs)

    @property
    def has_symbols(self) -> bool:
        """Whether the model is told its target language."""
        return bool(self.target_symbols)

    @property
    def offered(self) -> list[LanguagePair]:
        """The directions of the training or, if they are not known, all: of NLLB 40,602, each time anew."""
        return list(self._each())

    @property
    def first(self) -> LanguagePair:
        """The first of the offered directions."""
        return next(self._each())

    def _each(self) -> Iterator[LanguagePair]:
        yield from self.pairs
        for source, target in () if self.pairs else product(self.sources, self.targets):
            if source != target:
                yield LanguagePair(source=source, target=target)

    @property
    def sources(self) -> list[str]:
        """The codes of the languages that are translated from; in the order of a vocabulary, but English first."""
        english_first = sorted(self.source_symbols, key=lambda code: short_code(code) != "en")
        return list(dict.fromkeys(pair.source for pair in self.pairs)) or english_first

    @property
    def targets(self) -> list[str]:
        """The codes of the languages that are translated into."""
        return list(dict.fromkeys(pair.target for pair in self.pairs)) or list(self.target_symbols)

    @property
    def num_target_symbols(self) -> int:
        """The symbols before a translation."""
        return int(self.has_symbols and self.target_symbol_on == "target")

    @property
    def most_symbols(self) -> int:
        """The symbols of the side that has more: so many positions are not for text."""
        on_source = bool(self.source_symbols) + (self.has_symbols and self.target_symbol_on == "source")
        return max(on_source, self.num_target_symbols)

    def is_trained(self, pair: LanguagePair) -> bool:
        """Whether the model was trained on a direction; True if its directions are not known."""
        return not self.pairs or pair in self.pairs

    def find(self, source: str | None, target: str | None) -> Direction:
        """The direction that is meant; it may be one that was not trained, if both languages are given.

        UsageError if a language is missing, or the model does not have it.
        """
        source_code = None if source is None else _matched(source, self.sources, setting="from", does="translate from")
        target_code = None if target is None else _matched(target, self.targets, setting="to", does="translate into")
        if target_code is None:
            own = dict.fromkeys(pair.target for pair in self.pairs if source_code in (None, pair.source))
            targets = list(own) or self.targets
            if len(targets) > 1:
                message = f"the model translates into {len(targets)} languages: {shown_codes(targets)}"
                raise UsageError(message, setting="to", hint=f"say which one: `to: {targets[0]}`")
            target_code = targets[0]
        if source_code is None:
            sources = [pair.source for pair in self.pairs if pair.target == target_code] or self.sources
            if self.source_symbols and len(sources) > 1:
                message = f"the model must know the language of the text: {shown_codes(sources)}"
                raise UsageError(message, setting="from", hint=f"say which one: `from: {sources[0]}`")
            source_code = sources[0]
        if source_code == target_code:
            message = f"{source_code} is both the language of the text and that of the translation"
            raise UsageError(message, setting="from" if target is None else "to", hint="give two languages")
        return self.direction(LanguagePair(source=source_code, target=target_code))

    def direction(self, pair: LanguagePair) -> Direction:
        """A direction with its symbols."""
        source = self.source_symbols.get(pair.source)
        target = self.target_symbols.get(pair.target)
        on_source = [source, target] if self.target_symbol_on == "source" else [source]
        on_target = [] if self.target_symbol_on == "source" else [target]
        return Direction(pair, tuple(filter(None, on_source)), tuple(filter(None, on_target)))

    def decode_command(self, model: str) -> str:
        """The command that translates a file with a model of these directions: into the first language of several."""
        pair = self.first
        source = f" --from {pair.source}" if self.source_symbols else ""
        target = f" --to {pair.target}" if self.has_symbols else ""
        return f"nmt decode -m {shlex.quote(model)}{source}{target} < input.txt > output.txt"


def _matched(wanted: str, codes: Sequence[str], *, setting: str, does: str) -> str:
    """The code that is meant; UsageError if there is none."""
    code = wanted if wanted in codes else match_code(wanted, codes)
    if code is None:
        message = f"the model does not {does} {wanted!r}, but {shown_codes(codes)}"
        near = nearest_code(wanted, codes) or codes[0]
        raise UsageError(message, setting=setting, hint=f"take one of its languages: `{setting}: {near}`")
    return code


def shown_codes(codes: Sequence[str], *, listed_by: str = "nmt info") -> str:
    """The codes for a message: the first of many, and where the others are listed."""
    more = f" and {len(codes) - _MOST_SHOWN} more, which {listed_by} lists" if len(codes) > _MOST_SHOWN else ""
    return ", ".join(codes[:_MOST_SHOWN]) + more
