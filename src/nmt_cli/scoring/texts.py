"""The texts to be scored: one segment per line, read without touching a character.

A line ends at a line feed and nowhere else; the last one may lack it. A carriage return stays in its line, and
no metric sees it: BLEU and TER strip and chrF skips white space. A byte-order mark is not part of the first line.
"""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.languages import in_script_of, is_without_spaces
from nmt_cli.text_encoding import COMPOSE, STDIN, conversion, decode_utf8
from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.tokenised_text import piece_mark_in_text, sign_of_tokenisation

logger = logging.getLogger(__name__)

_LANGUAGES_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "km", "my", "bo")
_CHARACTERS_LOOKED_AT = 20_000
_MOST_SPACES = 0.1
_MANY_LINES = 0.05
# What nmt decode writes beside translations: how each row looks, and the command that takes the translations out.
_ROWS = (
    ("rows of --format tsv", r"\d+\t\d+\t-?\d+\.\d+\t-?\d+\.\d+\t", r"awk -F'\t' '$2 == 1 {print $5}'"),
    ("JSON lines", r'\{".*\}$', "jq -r .text"),
)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """The lines of a text, its name in errors, and the SHA-256 of its uncompressed bytes."""

    name: str
    lines: list[str]
    sha256: str


@dataclass(frozen=True, slots=True)
class System:
    """A translation system by its outputs: one text for each of its runs, which differ in their seed."""

    name: str
    runs: list[ScoredText]


def read_text(name: str, *, stdin: TextIO | None) -> ScoredText:
    """The text of a file, which may end in .gz, .zst or .xz, or of stdin if the name is `-`.

    Raises DataError for a file that is not there, for one without any line, and for text that is not UTF-8.
    """
    if name == "-":
        assert stdin is not None
        name, content = STDIN, stdin.buffer.read()
    else:
        with open_bytes(Path(name)) as stream:
            content = stream.read()
    if content in (b"", BOM_UTF8):
        hint = "check the path, or write the file again"
        if name == STDIN:
            hint = "give the translation with -i HYP, or look at the command before the pipe"
        raise DataError(f"{name} is empty: there is nothing to score", where=name, hint=hint)
    lines = decode_utf8(content, name=name).split("\n")
    if lines[-1] == "":
        lines.pop()
    return ScoredText(name, lines, hashlib.sha256(content).hexdigest())


def check_hypothesis(hypothesis: ScoredText, *, references: Sequence[ScoredText]) -> None:
    """Raise DataError if a hypothesis has another number of lines, or consists of pieces or of a decoder's rows.

    Warns if the hypothesis looks tokenised, because its scores cannot be compared with others. Also warns of
    empty lines beside text, of text beside blank lines, and of letters that are composed in one text only.
    """
    _check_no_rows(hypothesis)
    for reference in references:
        check_same_number_of_lines(hypothesis, reference)
    segments = list(zip(hypothesis.lines, *(reference.lines for reference in references), strict=True))
    if num_empty := sum(not line.strip() and all(map(str.strip, refs)) for line, *refs in segments):
        counts = f"{num_empty:,} empty lines out of {len(hypothesis.lines):,}"
        logger.warning("%s has %s; they count as empty translations", hypothesis.name, counts)
    if num_blank := sum(bool(line.strip()) and not any(map(str.strip, refs)) for line, *refs in segments):
        message = "%s of %s lines have a translation and a blank reference, so every word counts as wrong"
        logger.warning(message, f"{num_blank:,}", f"{len(hypothesis.lines):,}")
    _check_no_pieces(hypothesis)
    if sign := sign_of_tokenisation(hypothesis.lines):
        logger.warning("%s looks tokenised: %s; score detokenised text", hypothesis.name, sign)
    _warn_of_decomposed_text(hypothesis, references[0])


def check_reference(reference: ScoredText) -> None:
    """Warn of a reference that looks tokenised: scores against it cannot be compared with others."""
    if sign := sign_of_tokenisation(reference.lines):
        logger.warning("%s looks tokenised: %s; score against the untouched reference", reference.name, sign)


def language_without_spaces(lines: Sequence[str], *, given: str | None) -> str | None:
    """A language of the text's script, such as zh, if its words have no spaces and the `given` language's have some."""
    text = "".join(lines)[:_CHARACTERS_LOOKED_AT]
    if (given is not None and is_without_spaces(given)) or text.count(" ") > _MOST_SPACES * len(text):
        return None
    return next(iter(in_script_of(text, _LANGUAGES_WITHOUT_SPACES)), None)


def check_same_number_of_lines(text: ScoredText, other: ScoredText) -> None:
    """Raise DataError unless both have as many lines."""
    if len(text.lines) != len(other.lines):
        message = f"{text.name} has {len(text.lines):,} lines, {other.name} has {len(other.lines):,}"
        hint = "give texts of the same test set, with one line for each line of the reference"
        raise DataError(message, where=text.name, hint=hint)


def _check_no_rows(text: ScoredText) -> None:
    """Raise DataError, with the command that takes the translations out, if all lines are rows of nmt decode."""
    lines = [line.rstrip() for line in text.lines if line.strip()]
    for rows, pattern, command in _ROWS:
        if lines and all(map(re.compile(pattern).match, lines)):
            message = f"{text.name} has {rows}, and not a translation on each line"
            raise DataError(message, where=text.name, hint=conversion(_path_of(text), command, new="plain"))


def _warn_of_decomposed_text(hypothesis: ScoredText, reference: ScoredText) -> None:
    """Warn if many lines of one of two texts have letters apart from their accents (NFD), and the other has not."""
    texts = (hypothesis, reference)
    counts = [sum(not unicodedata.is_normalized("NFC", line) for line in text.lines) for text in texts]
    if max(counts) - min(counts) > _MANY_LINES * len(hypothesis.lines):
        text = texts[counts.index(max(counts))]
        command = conversion(_path_of(text), COMPOSE, new="composed")
        message = "%s has letters and accents apart (NFD) in %s lines, so equal words differ from the other text's: %s"
        logger.warning(message, text.name, f"{max(counts):,}", command)


def _path_of(text: ScoredText) -> Path | None:
    return None if text.name == STDIN else Path(text.name)


def _check_no_pieces(text: ScoredText) -> None:
    """Raise DataError if many lines have marks that undecoded output of SentencePiece or subword-nmt has."""
    if (piece := piece_mark_in_text(text.lines)) is not None:
        message = f"the hypothesis holds pieces instead of words: {piece.mark!r} in {piece.around!r}"
        next_step = "then detokenise the text"
        if piece.mark == SPACE_MARK:
            next_step = "or spm_decode --model=..., or nmt decode, which writes plain text"
        hint = f"join the pieces: {piece.join_command}, {next_step}"
        raise DataError(message, where=f"{text.name}:{piece.line_number}", hint=hint)
