"""Validation and test text: every line is kept, and training text is searched for it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.prepared_data import held_out_files, held_out_lines
from nmt_cli.errors import DataError
from nmt_cli.files import write_file
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.sources.base import LocalSource, Pairs, Split
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.text_encoding import files_not_utf8, is_unicode, latin1_hint
from nmt_cli.tokenization.white_space import normalize_spaces

logger = logging.getLogger(__name__)

# How much of a training pair is in held-out text.
NOWHERE, SIDE, PAIR = 0, 1, 2

FoundLines: TypeAlias = dict[str, list[tuple[int, int]]]
"""By what matches (pairs, sources, targets), the number and the line of each held-out text that training text has."""

_TAGS_FILE = "held-out.json"
_PARTS = ("pairs", "sources", "targets")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The text of a split in one direction, and the symbols of the tags of each pair."""

    split: Split
    direction: int
    languages: LanguagePair
    pairs: Pairs
    tags: Sequence[tuple[str, ...]]


class HeldOutIndex:
    """Finds held-out text in training text: equal up to the space around and between words.

    A sentence is found in the text of every direction that has its language. So the same text in the other direction
    counts too.
    """

    def __init__(self, texts: Sequence[HeldOut]) -> None:
        self._splits = [text.split for text in texts]
        self._sentences: dict[str, dict[str, list[tuple[str, int, int]]]] = {}
        self._pairs: dict[Hashable, list[tuple[int, int]]] = {}
        for number, text in enumerate(texts):
            codes = (text.languages.source, text.languages.target)
            for line, pair in enumerate(text.pairs):
                src, tgt = map(normalize_spaces, pair)
                self._pairs.setdefault(_unordered(text.languages, src, tgt), []).append((number, line))
                for code, part, sentence in zip(codes, ("sources", "targets"), (src, tgt), strict=True):
                    of_language = self._sentences.setdefault(code, {})
                    of_language.setdefault(sentence, []).append((part, number, line))

    def __len__(self) -> int:
        """The number of different pairs."""
        return len(self._pairs)

    def splits_with(self, src: str, tgt: str, languages: LanguagePair) -> set[str]:
        """The splits that have a sentence of a training pair."""
        _, found_lines = self.find([src], [tgt], languages)
        return {self._splits[number] for lines in found_lines.values() for number, _ in lines}

    def find(
        self, src: Sequence[str], tgt: Sequence[str], languages: LanguagePair
    ) -> tuple[NDArray[np.uint8], FoundLines]:
        """NOWHERE, SIDE or PAIR for each of these training pairs, [n], and the held-out lines that are among them.

        The training pairs have no outer and no repeated spaces.
        """
        matches = np.zeros(len(src), dtype=np.uint8)
        found_lines: dict[str, set[tuple[int, int]]] = {part: set() for part in _PARTS}
        for code, texts in ((languages.source, src), (languages.target, tgt)):
            sentences = self._sentences.get(code, {})
            for index in [index for index, text in enumerate(texts) if text in sentences]:
                matches[index] = SIDE
                for part, number, line in sentences[texts[index]]:
                    found_lines[part].add((number, line))
        for index in np.flatnonzero(matches).tolist():
            if lines := self._pairs.get(_unordered(languages, src[index], tgt[index])):
                matches[index] = PAIR
                found_lines["pairs"].update(lines)
        return matches, {part: sorted(lines) for part, lines in found_lines.items()}


def _unordered(languages: LanguagePair, src: str, tgt: str) -> Hashable:
    """A key that a pair and the same pair in the other direction have in common."""
    forwards = (languages.source, src), (languages.target, tgt)
    return forwards if languages.source < languages.target else forwards[::-1]


def overlap(texts: Sequence[HeldOut], found: Sequence[FoundLines]) -> list[dict[str, int]]:
    """For each text, the number of lines that occur in training text: as a pair, as a source and as a target."""
    lines = {part: {(number, line) for one in found for number, line in one[part]} for part in _PARTS}
    counts = {part: Counter(number for number, _ in of_part) for part, of_part in lines.items()}
    return [
        {"lines": len(text.pairs), **{part: of_part[number] for part, of_part in counts.items()}}
        for number, text in enumerate(texts)
    ]


def read_held_out(
    sources: Sequence[LocalSource], split: Split, directions: Sequence[LanguagePair]
) -> Iterator[HeldOut]:
    """The pairs of the sources by direction, but for units without a translation, which the log counts.

    DataError for the first pair that cannot be kept.
    """
    num_untranslated = 0
    for direction, languages in enumerate(directions):
        pairs: list[tuple[str, str]] = []
        tags: list[tuple[str, ...]] = []
        own = [source for source in sources if source.direction == direction]
        for source in own:
            for chunk in source.read():
                num_untranslated += len(chunk.untranslated)
                for index, pair in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
                    if index not in chunk.untranslated:
                        src, tgt = (side.strip("\r\n") for side in pair)
                        _check_can_be_kept(chunk, index, src, tgt, source=source, split=split)
                        pairs.append((src, tgt))
                        tags.append(source.tags)
        if own:
            yield HeldOut(split, direction, languages, pairs, tags)
    if num_untranslated:
        logger.info("%s: %s units without a translation are left out", split, f"{num_untranslated:,}")


def write_held_out(texts: Sequence[HeldOut], directory: Path, directions: Sequence[LanguagePair]) -> None:
    """Write the two files of each text, with a line per pair, and the tags of all."""
    for text in texts:
        for side, name in enumerate(held_out_files(text.split, directions)[text.direction]):
            with (directory / name).open("wb") as file:
                file.writelines(f"{pair[side]}\n".encode() for pair in text.pairs)
    tags = [{"split": text.split, "direction": text.direction, "tags": text.tags} for text in texts]
    write_file(directory / _TAGS_FILE, json.dumps(tags), error=DataError)


def load_held_out(directory: Path, directions: Sequence[LanguagePair]) -> list[HeldOut]:
    """The texts that `write_held_out` wrote."""
    texts = []
    for facts in json.loads((directory / _TAGS_FILE).read_text(encoding="utf-8")):
        split, direction = facts["split"], facts["direction"]
        src, tgt = (held_out_lines(directory / name) for name in held_out_files(split, directions)[direction])
        pairs = list(zip(src, tgt, strict=True))
        texts.append(HeldOut(split, direction, directions[direction], pairs, list(map(tuple, facts["tags"]))))
    return texts


def _check_can_be_kept(chunk: Chunk, index: int, src: str, tgt: str, *, source: LocalSource, split: Split) -> None:
    """Raise DataError if a pair is malformed, not Unicode, or has a line break."""
    side, fix = 0, "mend that line: all lines of validation and test text are kept, none is cleaned away"
    if index in chunk.malformed:
        problem, fix = "a malformed record", chunk.problem or fix
    elif not (is_unicode(src) and is_unicode(tgt)):
        side = int(is_unicode(src))
        problem = f"a {('source', 'target')[side]} that is not valid UTF-8"
        inputs = [file for _, file in source.inputs]
        if files := files_not_utf8(inputs):
            fix = latin1_hint(files, beside=inputs)
    elif "\n" in src or "\n" in tgt:
        problem, side = "a line break inside a sentence", int("\n" not in src)
    else:
        return
    raise DataError(f"the {split} text has {problem}", where=chunk.where(index, side=side), hint=fix)
