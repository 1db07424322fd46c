"""Sentences of a line, and long lines split into parts that a model can translate."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# The longest source sentence in training, if a model does not say it: nearly all sentences of any corpus are shorter.
_USUAL_LONGEST = 128
# Marks at the end of a sentence: with a space after them, and in Chinese, Japanese and Burmese also without one.
_STOPS, _STOPS_WITHOUT_SPACE = ".!?…।؟۔։።፧។៕", "。！？။"
# Possessive quantifiers and the lookbehind keep texts of nothing but marks from taking quadratic time.
_SENTENCE_END = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]++[\"'”’»)\]]*+\s++(?=\S)"
    rf"|(?<![{_STOPS_WITHOUT_SPACE}])[{_STOPS_WITHOUT_SPACE}]++[」』”’）]*+(?:[\"'»)\]]++(?=\s|\Z))?+\s*+(?=\S)"
)
_BETWEEN_WORDS = re.compile(r"[\s\"'“‘„«(\[]")
_LONGEST_ABBREVIATION = 32  # in characters; all abbreviations are shorter
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
# Where to cut, best first: after a sentence, after a clause, between words. CJK marks have no space after them.
# The first is looser than _SENTENCE_END: any full stop will do, because the text has to be cut somewhere.
_BOUNDARIES = (
    re.compile(rf"[{_STOPS}॥]+[\"'”’»)\]]*\s+|[{_STOPS_WITHOUT_SPACE}]+[」』”’）]*(?:[\"'»)\]]+(?=\s|\Z))?\s*"),
    re.compile(r"[,;:–—،؛፣]+\s+|[，、；：၊]\s*"),
    re.compile(r"\s+"),
)
_FIRST_GUESS = 64  # characters of a part that fits


class LineSplitter:
    """Splits lines into parts, and logs which lines have several parts.

    `longest_trained` is the length, in pieces without EOS, of the longest source sentence in training; None if it is
    not known, as for imported models.
    """

    def __init__(self, tokenizer: Tokenizer, *, longest_trained: int | None) -> None:
        self._tokenizer = tokenizer
        self._split_above = longest_trained or _USUAL_LONGEST
        self._trained_lines = "no line in training had" if longest_trained else "lines in training seldom have"
        self._has_logged_split = False

    def split(
        self, text: str, ids: Sequence[int], *, line_number: int, model_limit: int, has_prefix: bool
    ) -> list[str]:
        """The parts of a line, in order; a blank line has none. `ids` has its pieces.

        A line longer than any in training is split after each sentence, because models trained on single sentences
        leave out parts of longer texts. A line with a prefix is kept whole if the model can take it: nobody knows
        where its prefix ends. A sentence, or a line with a prefix, of more than `model_limit` pieces is cut into parts
        as long as sentences in training.
        """
        part_limit, is_too_long = min(model_limit, self._split_above), len(ids) > model_limit
        parts = [text] if text else []
        if len(ids) > part_limit and not has_prefix:
            parts = split_sentences(text)
        if is_too_long:
            parts = [cut for part in parts for cut in self._cut(part, model_limit=model_limit, part_limit=part_limit)]
        if is_too_long and len(parts) > 1:
            place = "" if has_prefix else "at sentence ends and, in longer sentences, "
            message = f"line {line_number} has {len(ids):,} pieces, and this model takes {model_limit:,} at once"
            message += f": it is translated in {len(parts)} parts, cut {place}after at most {part_limit:,} pieces"
            logger.warning("%s", message)
        elif len(parts) > 1 and not self._has_logged_split:
            message = f"line {line_number} has {len(ids):,} pieces, and {self._trained_lines} more than {part_limit:,}"
            logger.info("%s: it is split at sentence ends, as all such lines are", message)
            self._has_logged_split = True
        return parts

    def _cut(self, text: str, *, model_limit: int, part_limit: int) -> list[str]:
        """Parts of at most `part_limit` pieces if the text has more than `model_limit`, otherwise the whole text."""
        if self._num_pieces(text) <= model_limit:
            return [text]
        parts = split_to_fit(text, fits=lambda part: self._num_pieces(part) <= part_limit)
        return [part for part in parts if part.strip()]

    def _num_pieces(self, text: str) -> int:
        return len(self._tokenizer.encode([text.strip()])[0])


def split_sentences(line: str) -> list[str]:
    """The sentences of a line, each with the whitespace after it; together they are the line.

    In doubt a sentence goes on: after an abbreviation, an initial or a number, and before a small letter.
    """
    sentences = []
    start = 0
    for mark in _SENTENCE_END.finditer(line):
        if _ends_sentence(line, start, mark):
            sentences.append(line[start : mark.end()])
            start = mark.end()
    return [*sentences, line[start:]] if start < len(line) else sentences


def _ends_sentence(line: str, start: int, mark: re.Match[str]) -> bool:
    """Whether the sentence that begins at `start` ends at this mark."""
    first_letter = _FIRST_LETTER.match(line, mark.end())
    if first_letter is None:
        return False
    letter = first_letter[1]
    is_small = letter.islower() and letter != letter.title()  # Georgian letters count as small, also at the beginning
    if is_small:
        return False
    ends_with_other_mark = mark[0][0] not in ".۔" or mark[0].startswith("..")
    if ends_with_other_mark:
        return True
    before = line[max(start, mark.start() - _LONGEST_ABBREVIATION) : mark.start()]
    word = _BETWEEN_WORDS.split(before)[-1].lower()
    is_initial, is_number = len(word) < 2, word.replace(".", "").isdigit()
    is_dotted_abbreviation = word[-2:-1] == "."  # z.B.
    return not (is_initial or is_number or is_dotted_abbreviation or word in _ABBREVIATIONS)


def split_to_fit(text: str, *, fits: Callable[[str], bool]) -> list[str]:
    """The parts of `text` in order, each of which fits; together they are `text`, with nothing added or left out.

    A part ends after a sentence, a clause or a word, in this order of preference. A boundary in the first half of the
    part is passed over. A word that does not fit is cut anywhere, but a single character is never cut.
    """
    parts = []
    start = 0
    while start < len(text):
        part = _first_part(text, start, fits)
        parts.append(part)
        start += len(part)
    return parts


def _first_part(text: str, start: int, fits: Callable[[str], bool]) -> str:
    """The part of `text` that begins at `start`."""
    longest = _longest_prefix(text, start, fits)
    if start + len(longest) == len(text):
        return longest
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(longest)]
        # A prefix can have more pieces than the whole text, so it need not fit if the text does.
        end = next((end for end in reversed(ends) if fits(longest[:end])), 0)
        if 2 * end >= len(longest):
            return longest[:end]
    return longest


def _longest_prefix(text: str, start: int, fits: Callable[[str], bool]) -> str:
    """About the longest text from `start` on that fits, by doubling and bisection; at least one character."""
    rest = len(text) - start
    fitting, guess = 1, _FIRST_GUESS
    while fitting < rest and fits(text[start : start + guess]):
        fitting, guess = min(guess, rest), 2 * guess
    too_long = min(guess, rest + 1)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if fits(text[start : start + middle]):
            fitting = middle
        else:
            too_long = middle
    return text[start : start + fitting]
