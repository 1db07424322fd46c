"""Validation and test text: every line is kept, and training text is searched for it."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.prepared_data import held_out_lines
from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.sources.base import CorpusLanguages, LocalSource, Pairs, Split
from nmt_cli.text_encoding import files_not_utf8, is_unicode, latin1_hint
from nmt_cli.tokenization.white_space import normalize_spaces

logger = logging.getLogger(__name__)

# How much of a training pair is in held-out text.
NOWHERE, SIDE, PAIR = 0, 1, 2

FoundLines: TypeAlias = dict[str, dict[str, list[int]]]
"""By split and by what matches (pairs, sources, targets), the lines that training text contains, ascending."""

_PARTS = ("pairs", "sources", "targets")


class HeldOutIndex:
    """Finds the lines of held-out splits in training text, regardless of spaces."""

    def __init__(self, splits: Mapping[str, Pairs]) -> None:
        self._splits = list(splits)
        self._lines_of_text: dict[str, dict[Hashable, list[tuple[str, int]]]] = {part: {} for part in _PARTS}
        for split, pairs in splits.items():
            for line, pair in enumerate(pairs):
                src, tgt = map(normalize_spaces, pair)
                for part, text in zip(_PARTS, ((src, tgt), src, tgt), strict=True):
                    self._lines_of_text[part].setdefault(text, []).append((split, line))

    def find(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[NDArray[np.uint8], FoundLines]:
        """NOWHERE, SIDE or PAIR for each of these training pairs, [n], and the held-out lines that are among them.

        The training pairs have no outer and no repeated spaces.
        """
        matches = np.zeros(len(src), dtype=np.uint8)
        found_lines: dict[str, set[tuple[str, int]]] = {part: set() for part in _PARTS}
        for part, texts in (("sources", src), ("targets", tgt)):
            lines_of_text = self._lines_of_text[part]
            for index in [index for index, text in enumerate(texts) if text in lines_of_text]:
                matches[index] = SIDE
                found_lines[part].update(lines_of_text[texts[index]])
        for index in np.flatnonzero(matches).tolist():
            if lines := self._lines_of_text["pairs"].get((src[index], tgt[index])):
                matches[index] = PAIR
                found_lines["pairs"].update(lines)
        return matches, {
            split: {part: sorted(line for of_split, line in found_lines[part] if of_split == split) for part in _PARTS}
            for split in self._splits
        }


def overlap(splits: Mapping[str, Pairs], found: Iterable[FoundLines]) -> dict[str, dict[str, int]]:
    """For each split, the number of lines that occur in training text: as a pair, as a source and as a target."""
    unions = {split: {part: set[int]() for part in _PARTS} for split in splits}
    for found_lines in found:
        for split in splits:
            for part in _PARTS:
                unions[split][part].update(found_lines[split][part])
    return {
        split: {"lines": len(pairs), **{part: len(unions[split][part]) for part in _PARTS}}
        for split, pairs in splits.items()
    }


def read_held_out(sources: Sequence[LocalSource], split: Split) -> Iterator[tuple[str, str]]:
    """The pairs of the sources, but for units without a translation, which the log counts.

    DataError for the first pair that cannot be kept.
    """
    num_untranslated = 0
    for source in sources:
        for chunk in source.read():
            num_untranslated += len(chunk.untranslated)
            for index, pair in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
                if index not in chunk.untranslated:
                    src, tgt = (text.strip("\r\n") for text in pair)
                    _check_can_be_kept(chunk, index, src, tgt, source=source, split=split)
                    yield src, tgt
    if num_untranslated:
        logger.info("%s: %s units without a translation are left out", split, f"{num_untranslated:,}")


def write_pairs(splits: Mapping[str, Pairs], directory: Path, *, languages: CorpusLanguages) -> None:
    """Write `SPLIT.LANGUAGE` for both languages, with a line per pair."""
    for split, pairs in splits.items():
        for side, language in enumerate(languages.codes):
            with (directory / f"{split}.{language}").open("wb") as file:
                file.writelines(f"{pair[side]}\n".encode() for pair in pairs)


def read_pairs(split: Split, directory: Path, *, languages: CorpusLanguages) -> Pairs:
    """The pairs of a split that `write_pairs` wrote."""
    src, tgt = (held_out_lines(directory / f"{split}.{language}") for language in languages.codes)
    return list(zip(src, tgt, strict=True))


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
