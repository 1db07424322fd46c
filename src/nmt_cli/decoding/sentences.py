"""The sentences of a line."""

from __future__ import annotations

import re

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
