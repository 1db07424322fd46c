"""A text as the sentences to translate and the whitespace between them, which is kept as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmt_cli.decoding.splitting import split_line

_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
# Where a sentence may end: before a space, or in Chinese and Japanese without one. Possessive and from the first mark
# on only: texts of nothing but marks must not take quadratic time.
_END = re.compile(r"(?<![.!?…।])[.!?…।]++[\"'”’»)\]]*+\s++(?=\S)|(?<![。！？])[。！？]++[」』”’）]*+\s*+(?=\S)")
_BETWEEN_WORDS = re.compile(r"[\s\"'“‘„«(\[]")
# More characters than any abbreviation has: what stands further back is not looked at.
_WORD_WINDOW = 32
_FIRST_LETTER = re.compile(r"[\"'“‘„«(\[¿¡–—-]*(.)", re.DOTALL)
_ABBREVIATIONS = frozenset(
    re.findall(
        r"\S+",
        """
        mr mrs ms dr prof st jr sr gen col sen rep gov capt lt sgt rev hon mt no nos vol fig figs eq sec pp ca cf vs
        etc al ed inc ltd corp co dept est approx jan feb mar apr jun jul aug sep sept oct nov dec
        nr str bzw ca evtl ggf inkl usw vgl abs art bd hrsg jh mio mrd tel u.a z.b d.h i.d.r
        m mm mme mlle av env ex p.ex c.-à-d sra srta dña núm pág sig dott ing tzv např tzn mj atd apod resp č
            """,
    )
)
# Characters that mean nothing in a sentence; the model is given a space.
_CONTROL = {code: " " for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class Segmented:
    """The sentences of a text; `gaps` has the whitespace before the first, between each two, and after the last."""

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        return "".join(parts)


def segment(text: str, *, fits: Callable[[str], bool], by_sentence: bool) -> Segmented:
    """`text` cut at its line breaks, where `by_sentence` after each sentence, and further where a part does not fit."""
    sentences: list[str] = []
    gaps = [""]
    for part in _LINE_BREAK.split(text):
        line = part.translate(_CONTROL) if not part.isspace() else part
        if not line.strip():
            gaps[-1] += part
            continue
        for piece in _pieces(line, fits, by_sentence=by_sentence):
            sentence = piece.strip()
            before, _, after = piece.partition(sentence) if sentence else (piece, "", "")
            gaps[-1] += before
            if sentence:
                sentences.append(sentence)
                gaps.append(after)
    return Segmented(sentences, gaps)


def split_sentences(line: str) -> list[str]:
    """The sentences of a line, each with the whitespace after it; together they are the line.

    In doubt there is no end: after an abbreviation, an initial or a number, and before a small letter.
    """
    sentences = []
    start = 0
    for found in _END.finditer(line):
        if _is_end(line, start, found):
            sentences.append(line[start : found.end()])
            start = found.end()
    return [*sentences, line[start:]] if start < len(line) else sentences


def _is_end(line: str, start: int, found: re.Match[str]) -> bool:
    following = _FIRST_LETTER.match(line, found.end())
    if following is None or following[1].islower():
        return False
    if found[0][0] != "." or found[0].startswith(".."):
        return True
    before = line[max(start, found.start() - _WORD_WINDOW) : found.start()]
    word = _BETWEEN_WORDS.split(before)[-1].lower()
    return not (len(word) < 2 or word in _ABBREVIATIONS or word.replace(".", "").isdigit() or word[-2] == ".")


def _pieces(line: str, fits: Callable[[str], bool], *, by_sentence: bool) -> list[str]:
    pieces = []
    for sentence in split_sentences(line) if by_sentence else [line]:
        is_short = fits(sentence.strip())
        pieces += [sentence] if is_short else split_line(sentence, fits=lambda text: fits(text.strip()))
    return pieces
