"""Validation and test text: every line is kept, and compared with training text for overlap and swapped sides."""

from __future__ import annotations

import logging
import math
import shutil
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from io import SEEK_END
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.languages import language_identifier, short_code
from nmt_cli.preparing.chunks import ParsedChunk
from nmt_cli.preparing.cleaning.rules import is_unicode
from nmt_cli.preparing.sources.base import CorpusLanguages, LocalPairs, Split, read_chunks
from nmt_cli.preparing.sources.text import TextFiles
from nmt_cli.text_encoding import latin1_conversion
from nmt_cli.tokenization.tokenizer import normalize_spaces

logger = logging.getLogger(__name__)

# The part of a training pair that is in held-out text.
NOWHERE, SIDE, PAIR = 0, 1, 2

Pairs: TypeAlias = Sequence[tuple[str, str]]
FoundLines: TypeAlias = dict[str, dict[str, list[int]]]
"""By split and by kind of match (pairs, sources, targets), the lines that training text contains, ascending."""

_KINDS = ("pairs", "sources", "targets")
_FEW_PAIRS = 20
_MANY_BLANK = 0.1
# What is compared to see whether sides are swapped.
_MIN_PAIRS = 50  # nothing is said of fewer
_MAX_PAIRS = 1_000
_MAX_CHARACTERS = 200
_ORDER = 3
_MIN_SWAPPED = 0.75
_MIN_TOLD_APART = 0.9
_PAIRS_IDENTIFIED = 250
_PAIRS_AT_ONCE = 5  # short sentences are identified together


class HeldOut:
    """The lines of the held-out splits, to be found in training text regardless of spaces."""

    def __init__(self, splits: Mapping[str, Pairs]) -> None:
        self._splits = list(splits)
        self._known: dict[str, dict[Hashable, list[tuple[str, int]]]] = {kind: {} for kind in _KINDS}
        for split, pairs in splits.items():
            for line, pair in enumerate(pairs):
                src, tgt = map(normalize_spaces, pair)
                for kind, text in zip(_KINDS, ((src, tgt), src, tgt), strict=True):
                    self._known[kind].setdefault(text, []).append((split, line))

    def find(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[NDArray[np.uint8], FoundLines]:
        """NOWHERE, SIDE or PAIR for each of these tidy training pairs, [n], and the lines found among them."""
        matches = np.zeros(len(src), dtype=np.uint8)
        found: dict[str, set[tuple[str, int]]] = {kind: set() for kind in _KINDS}
        for kind, texts in (("sources", src), ("targets", tgt)):
            known = self._known[kind]
            for index in [index for index, text in enumerate(texts) if text in known]:
                matches[index] = SIDE
                found[kind].update(known[texts[index]])
        for index in np.flatnonzero(matches).tolist():
            if lines := self._known["pairs"].get((src[index], tgt[index])):
                matches[index] = PAIR
                found["pairs"].update(lines)
        return matches, {
            split: {kind: sorted(line for where, line in found[kind] if where == split) for kind in _KINDS}
            for split in self._splits
        }


def overlap(splits: Mapping[str, Pairs], found: Iterable[FoundLines]) -> dict[str, dict[str, int]]:
    """For each split, the number of lines that occur in training text: as a pair, as a source and as a target."""
    lines = {split: {kind: set[int]() for kind in _KINDS} for split in splits}
    for part in found:
        for split, kinds in lines.items():
            for kind, known in kinds.items():
                known.update(part[split][kind])
    return {
        split: {"lines": len(pairs), **{kind: len(known) for kind, known in lines[split].items()}}
        for split, pairs in splits.items()
    }


def write_heldout(
    sources: Sequence[LocalPairs], directory: Path, *, split: Split, languages: CorpusLanguages
) -> list[tuple[str, str]]:
    """Write `SPLIT.LANGUAGE` for both languages, and return the pairs.

    Text files are copied byte for byte, uncompressed; a byte-order mark between two of them is removed. Every line
    stays, so a line that cannot be kept is a DataError. Only units without a translation are left out.
    """
    pairs = list(_checked(_translated(read_chunks(sources), split), split))
    files = [source for source in sources if isinstance(source, TextFiles)]
    for side, language in enumerate((languages.source, languages.target)):
        with (directory / f"{split}.{language}").open("w+b") as file:
            if len(files) == len(sources):
                for source in files:
                    _copy((source.source, source.target)[side], file)
            else:
                file.writelines(f"{pair[side]}\n".encode() for pair in pairs)
    return pairs


def write_pairs(splits: Mapping[str, Pairs], directory: Path, *, languages: CorpusLanguages) -> None:
    """Write `SPLIT.LANGUAGE` for both languages, with a line per pair."""
    for split, pairs in splits.items():
        for side, language in enumerate((languages.source, languages.target)):
            with (directory / f"{split}.{language}").open("wb") as file:
                file.writelines(f"{pair[side]}\n".encode() for pair in pairs)


def warn_if_swapped(train: Pairs, valid: Pairs, languages: CorpusLanguages) -> str | None:
    """The warning if the sides of the training or of the validation text seem swapped, or None.

    The two texts are compared by the character trigrams of their sides. If py3langid is installed, each text is also
    compared with its languages. Texts whose sides are hard to tell apart pass, and small samples pass as well.
    """
    if min(len(train), len(valid)) < _MIN_PAIRS:
        return None
    disagreement = _share_swapped_in_training(train[:_MAX_PAIRS], valid[:_MAX_PAIRS])
    is_wrong = {
        name: _is_identified_as_swapped(pairs, languages)
        for name, pairs in (("training", train), ("validation", valid))
    }
    pair = f"{languages.source}-{languages.target}"
    order = "give its two files, columns or keys in the other order"
    if all(is_wrong.values()):
        return (
            f"the languages seem to be given in the wrong order: they are {pair}, and the source side of the training "
            f"and validation text is identified as {languages.target}, the target side as {languages.source}"
        )
    for name, other in (("training", "validation"), ("validation", "training")):
        if is_wrong[name]:
            return (
                f"the two sides of the {name} text seem to be swapped: its source side is identified as "
                f"{languages.target} and its target side as {languages.source}, unlike the {other} text; {order}"
            )
    if disagreement is not None and disagreement >= _MIN_SWAPPED:
        return (
            f"the two sides of the training text seem to be swapped, or those of the validation text: in "
            f"{disagreement:.0%} of {min(len(train), _MAX_PAIRS):,} training pairs the source is more like the "
            f"validation text's target, and the target like its source; if it is the training text, {order}"
        )
    return None


def warnings_of_little_validation(pairs: Pairs, *, num_train: int) -> Iterator[str]:
    """The warning if validation text has few pairs, or if many of them have a blank side.

    It proposes to set aside at most a tenth of the `num_train` pairs, if these are enough.
    """
    num_blank = sum(not (src.strip() and tgt.strip()) for src, tgt in pairs)
    more, size = "give text of its own with --valid FILE", min(1000, num_train // 10)
    more += f", or set training pairs aside: --valid-size {size}" if size >= _FEW_PAIRS else ", or more text"
    if num_blank > _MANY_BLANK * len(pairs):
        yield f"{num_blank:,} of {len(pairs):,} validation pairs have a blank side, and score nothing: {more}"
    elif len(pairs) < _FEW_PAIRS:
        yield f"the validation text has only {len(pairs):,} pairs, so its loss and BLEU say little: {more}"


def _translated(chunks: Iterable[ParsedChunk], split: Split) -> Iterator[ParsedChunk]:
    """The chunks, and at their end a line in the log with the number of units that have no translation."""
    number = 0
    for chunk in chunks:
        number += len(chunk.untranslated)
        yield chunk
    if number:
        logger.info("%s: %s units without a translation are left out", split, f"{number:,}")


def _checked(chunks: Iterable[ParsedChunk], split: Split) -> Iterator[tuple[str, str]]:
    for chunk in chunks:
        for index, (src, tgt) in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
            if index in chunk.untranslated:
                continue
            if found := _problem(chunk, index, src, tgt):
                problem, side = found
                where = chunk.where(index, side=side)
                other_fix = f"{chunk.problem}; or " if index in chunk.malformed else ""
                if problem.endswith("UTF-8"):
                    other_fix = f"if the file is Latin-1: {latin1_conversion(where.rpartition(':')[0])}; or "
                raise DataError(
                    f"the {split} text has {problem}",
                    where=where,
                    hint=f"{other_fix}mend that line: all lines of validation and test text are kept, none is cleaned "
                    "away",
                )
            yield src, tgt


def _problem(chunk: ParsedChunk, index: int, src: str, tgt: str) -> tuple[str, int] | None:
    """The fault of a pair, and the side that has it."""
    if index in chunk.malformed:
        return "a malformed record", 0
    for side, (name, text) in enumerate((("source", src), ("target", tgt))):
        if not is_unicode(text):
            return f"a {name} that is not valid UTF-8", side
    if "\n" in src or "\n" in tgt:
        return "a line break inside a sentence", int("\n" not in src)
    return None


def _copy(path: Path, file: IO[bytes]) -> None:
    """Append a file's bytes, uncompressed and without a byte-order mark, and a last line end."""
    with open_bytes(path) as stream:
        file.write(stream.read(len(BOM_UTF8)).removeprefix(BOM_UTF8))
        shutil.copyfileobj(stream, file)
    if file.tell():
        file.seek(-1, SEEK_END)
    if file.read(1) != b"\n":
        file.write(b"\n")


def _share_swapped_in_training(train: Pairs, valid: Pairs) -> float | None:
    """The share of training pairs that look more like swapped validation pairs, or None if that cannot be told.

    It cannot be told if a model of one half of the validation pairs does not recognise swapped pairs of the other half.
    """
    halves = [valid[0::2], valid[1::2]]
    told = [_share_swapped(halves[own], lean=_lean(halves[1 - own])) for own in (0, 1)]
    if max(told) > 1 - _MIN_TOLD_APART:
        return None
    return _share_swapped(train, lean=_lean(valid))


def _share_swapped(pairs: Pairs, *, lean: Callable[[str], float]) -> float:
    return sum(lean(src) < lean(tgt) for src, tgt in pairs) / len(pairs)


def _lean(model: Pairs) -> Callable[[str], float]:
    """The likeness of a text to the source side of pairs rather than the target side: mean log-odds of its trigrams."""
    src, tgt = (Counter(gram for pair in model for gram in _trigrams(pair[side])) for side in (0, 1))
    kinds = len(src.keys() | tgt.keys()) + 1
    sums = [counts.total() + kinds for counts in (src, tgt)]
    unseen = math.log(sums[1] / sums[0])
    odds = {gram: math.log((src[gram] + 1) / (tgt[gram] + 1)) + unseen for gram in src.keys() | tgt.keys()}

    def lean(text: str) -> float:
        grams = _trigrams(text)
        return sum(odds.get(gram, unseen) for gram in grams) / len(grams)

    return lean


def _trigrams(text: str) -> list[str]:
    padded = f" {text[:_MAX_CHARACTERS].lower()}  "
    return [padded[start : start + _ORDER] for start in range(len(padded) - _ORDER + 1)]


def _is_identified_as_swapped(pairs: Pairs, languages: CorpusLanguages) -> bool:
    """True if most of the text is identified as the other side's language; False if nothing identifies it."""
    if find_spec("py3langid") is None:
        return False
    identifier = language_identifier(where=None)
    codes = tuple(short_code(code) for code in (languages.source, languages.target))
    if codes[0] == codes[1] or not {*codes} <= {*identifier.labels}:
        return False
    pairs = pairs[:_PAIRS_IDENTIFIED]
    groups = [pairs[start : start + _PAIRS_AT_ONCE] for start in range(0, len(pairs), _PAIRS_AT_ONCE)]
    turned = [
        tuple(identifier.classify(" ".join(pair[side] for pair in group))[0] for side in (1, 0)) == codes
        for group in groups
    ]
    return sum(turned) > len(groups) / 2
