"""Sentences of a line, and long lines split into parts that a model can translate."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from nmt_cli.languages import short_code
from nmt_cli.recipe.schema import SplitSentences, TrainedLines
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.split_text import CLOSING, WIDE, SplitText, has_letters, ranges_in
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.white_space import INVISIBLE

logger = logging.getLogger(__name__)

# The most pieces of a part of a sentence that is cut. Nearly all sentences of any corpus are shorter.
_USUAL_LONGEST = 128
# Corpora of sentences have fewer lines of several sentences (Tatoeba 1 %, news 2 %, WMT14 5 to 8 %). A model that
# seldom saw a second sentence leaves it out, and to split a line costs only the view of its other sentences.
_MANY_LINES = 0.1
# Marks at the end of a sentence: with a space after them, and in some scripts also without one.
_STOPS, _STOPS_WITHOUT_SPACE = ".!?…։៕", "。！？။｡।؟۔።፧។"
_EMOJI = (
    "[\u203c\u2049\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
    "[\u200d\ufe0e-\ufe0f\u20e3\U000e0020-\U000e007f]*+"
)
_GAP = f"[{INVISIBLE}]*+(?=[^{INVISIBLE}])"
_NOTE = r"(?:\[[^\[\]]{1,20}\]|(?<=\w[.!?])\*{1,3}(?=\s|\Z))"
# Possessive quantifiers and lookbehinds keep texts of nothing but marks from taking quadratic time. The first condition
# makes the search three times as fast. A Greek question ends in a semicolon. In French a space stands before ».
_SENTENCE_END = re.compile(
    rf"(?=[{_STOPS}{_STOPS_WITHOUT_SPACE};\n\r\u2028\u2029])(?:"
    rf"(?:(?<![{_STOPS}])[{_STOPS}]++|(?<=[Ͱ-Ͽἀ-῿]);)(?:[{CLOSING}]|{_NOTE}|[ \xa0\u2009\u202f]»(?=\s|\Z))*+"
    rf"(?:[{INVISIBLE}]{_GAP}|(?={_EMOJI})|(?<=[.!?])(?=[^\W\d_]))"
    rf"|(?<![{_STOPS_WITHOUT_SPACE}])[{_STOPS_WITHOUT_SPACE}]++[」』”’）]*+(?:[\"'»)\]]++(?=\s|\Z))?+{_GAP}"
    rf"|[\n\r\u2028\u2029]{_GAP})"
)
_BESIDE_WIDE = re.compile(rf"(?<=[{WIDE}])[.!?]|[.!?](?=[{WIDE}])")
_SYMBOL = rf"(?:[•‣◦⁃]|{_EMOJI})[{INVISIBLE}]*+"
_SYMBOLS = re.compile(rf"(?:{_SYMBOL})++")
# Not "1.", which is an ordinal in many languages.
_SYMBOLS_OF_LINE = re.compile(
    rf"[{INVISIBLE}]*+(?:(?:[-–—*+>]|#{{1,6}}(?! \d+ )|\(?(?:\d{{1,3}}|[^\W\d_])\))[ \t]++|{_SYMBOL})++"
)
_LINE_BREAKS = frozenset("\n\r\u2028\u2029")
_LAST_SYMBOLS = re.compile(rf"(?:{_EMOJI}[{INVISIBLE}]*+)++\Z")
_BETWEEN_WORDS = re.compile(r"[\s\"'“‘„«(\[]")
_ENDED = re.compile(rf"[{_STOPS}{CLOSING}]")
# A letter that is neither small nor a capital, so it neither begins a sentence nor goes on with one.
_CASELESS = "א"
# A mark, as in "Well . . . No." and "so . . . , and", but no smiley, .NET or ...and.
_GOES_ON = re.compile(r"[.,)!?](?![\w.])")
_LONGEST_ABBREVIATION = 32  # in characters; all abbreviations are shorter
# Moses writes quotation marks as references.
_FIRST_WORD = re.compile(rf"(?:[{INVISIBLE}\"'“‘„«»(\[¿¡–—-]|&(?:quot|apos);)*+(?:\w\)\s)?([^\W_]+|\S)")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ABBREVIATIONS = _words(
    """
    mr mrs ms dr prof st gen col sen rep gov capt maj lt sgt rev hon mt ft cf vs al dept approx e.g i.e
    bzw ca evtl ggf inkl vgl sog bzgl hrsg mio mrd u.a z.b d.h i.d.r
    mm mme mlle mgr sra srta dra dña ee av ud uds dott sig avv ing dhr mevr drs kl tzv např tzn mj atd apod resp ul tp
    """
)
_ABBREVIATIONS_BEFORE_NUMBERS = _words(
    """
    no nos nr vol fig figs eq sec pp p art abs bd jh kap tel ed av núm pág sig č est
    jan feb mar apr jun jul aug sep sept oct nov dec
    """
)
_ENDS_OF_NAMES = _words("inc ltd corp co jr sr")
# With a capital letter, these begin a sentence even after an abbreviation or a number.
_FIRST_WORDS = _words(
    """
    the this that these there it he she they we you i what when who how why
    er sie es wir ich die der dies dann danach dort il elle ils elles nous vous je él ella ellos yo esto egli lui lei
    ele ela eles eu isso hij zij ze wij ik он она оно они мы я вы это ona ono oni
    """
)
# In these languages a full stop after a number makes it an ordinal: am 3. Mai.
_LANGUAGES_WITH_DOTTED_ORDINALS = _words("de lb da no nn fo is fi et lv hu cs sk pl sl hr sr bs tr az eu hsb dsb mk")
_LONGEST_ORDINAL = 3  # digits; longer ones are mostly years
# Where to cut, best first: after a sentence, after a clause, between words. CJK marks have no space after them.
# The first is looser than _SENTENCE_END: any full stop will do, because the text has to be cut somewhere.
_BOUNDARIES = (
    re.compile(rf"[{_STOPS}॥]+[\"'”’»)\]]*\s+|[{_STOPS_WITHOUT_SPACE}]+[」』”’）]*(?:[\"'»)\]]+(?=\s|\Z))?\s*"),
    re.compile(r"[,;:–—،؛፣]+\s+|[，、；：၊]\s*"),
    re.compile(r"\s+"),
)
_FIRST_GUESS = 64  # characters of a part that fits


class LineSplitter:
    """Splits lines into parts, and logs which lines have several parts."""

    def __init__(self, tokenizer: Tokenizer, *, trained: TrainedLines | None) -> None:
        self._tokenizer, self._trained = tokenizer, trained
        self._has_logged_split = False

    def split(
        self,
        line: str,
        ids: Sequence[int],
        language: str,
        *,
        kept: Sequence[Range],
        when: SplitSentences,
        place: str,
        model_limit: int,
    ) -> SplitText:
        """The parts of a line in a language, in order; a blank line has none. `ids` has its pieces.

        The line is split after each sentence, as `when` says, and if the model cannot take it. A sentence of more than
        `model_limit` pieces is cut into parts as long as sentences in training. Messages call the line `place`.
        """
        part_limit = min(model_limit, self._trained.usual_longest if self._trained else _USUAL_LONGEST)
        is_too_long = len(ids) > model_limit
        by_sentence = is_too_long or is_split(line, len(ids), when=when, trained=self._trained)
        if not by_sentence:
            return SplitText.of([line], kept)

        def fits(limit: int) -> Callable[[str], bool]:
            return lambda part: len(self._tokenizer.encode_source([part])[0]) <= limit

        fits_model = fits(model_limit) if is_too_long else lambda part: True
        parts = split_line(
            line, language, kept=kept, by_sentence=True, fits_model=fits_model, fits_part=fits(part_limit)
        )
        split = SplitText.of(parts, kept)
        if is_too_long and len(split.sentences) > 1:
            message = (
                "%s has %s pieces, and this model takes %s at once: it is translated in %d parts, cut at sentence ends "
                "and, in longer sentences, after at most %s pieces"
            )
            counts = f"{len(ids):,}", f"{model_limit:,}", len(split.sentences), f"{part_limit:,}"
            logger.warning(message, place, *counts)
        elif sum(map(has_letters, split.sentences)) > 1 and not self._has_logged_split:
            message = "%s has several sentences: each is translated by itself, as in all such lines"
            logger.info(message, place)
            self._has_logged_split = True
        return split


def is_split(line: str, num_pieces: int, *, when: SplitSentences, trained: TrainedLines | None) -> bool:
    """Whether a line is translated sentence by sentence.

    `auto` keeps a line whole if many lines in training had several sentences, and nearly all were at least as long.
    """
    if when != "auto":
        return when == "always"
    if trained is None or trained.several_sentences < _MANY_LINES:
        return True
    return num_pieces > trained.usual_longest or "\n" in line or "\r" in line


def share_of_several_sentences(lines: Iterable[str], language: str) -> float:
    """The share of the lines that hold several sentences."""
    counts = [sum(map(has_letters, split_sentences(line, language))) > 1 for line in lines]
    return sum(counts) / max(1, len(counts))


def split_line(
    line: str,
    language: str,
    *,
    kept: Sequence[Range],
    by_sentence: bool,
    fits_model: Callable[[str], bool],
    fits_part: Callable[[str], bool],
) -> list[str]:
    """The line in sentences, or whole. A sentence that does not fit the model is cut into parts."""
    segments = []
    position = 0
    for sentence in split_sentences(line, language, kept) if by_sentence else [line]:
        end = position + len(sentence)
        segments += (
            [sentence]
            if fits_model(sentence.strip())
            else split_to_fit(sentence, fits=lambda part: fits_part(part.strip()), kept=ranges_in(kept, position, end))
        )
        position = end
    return segments


def split_sentences(line: str, language: str, kept: Sequence[Range] = ()) -> list[str]:
    """The sentences of a line, each with the white space after it; together they are the line.

    In doubt a sentence goes on: after an abbreviation, an initial or an ordinal, and before a small letter, unless the
    line has no capital one. A line break ends a sentence like a full stop. Emoji, bullets and other marks of a list
    before and after a sentence are a part of their own. In `kept` ranges nothing ends a sentence.
    """
    text, language, is_lower_case = masked(line, kept), short_code(language), line == line.lower()
    symbols = _SYMBOLS_OF_LINE.match(text)
    starts = [0, symbols.end() if symbols else 0]
    for mark in _SENTENCE_END.finditer(text):
        end = mark.end()
        if end > starts[-1] and _ends_sentence(text, starts[-1], mark, language, is_lower_case=is_lower_case):
            symbols = (_SYMBOLS if _LINE_BREAKS.isdisjoint(mark[0]) else _SYMBOLS_OF_LINE).match(text, end)
            starts += [end, symbols.end() if symbols else end]
    last = None if line.isascii() else _LAST_SYMBOLS.search(text, starts[-1])
    ends = [*starts[1:], last.start() if last else len(line), len(line)]
    return [line[start:end] for start, end in zip([*starts, ends[-2]], ends, strict=True) if start < end]


def masked(text: str, kept: Sequence[Range]) -> str:
    """The text with a caseless letter for each character of its kept ranges.

    A range without letters directly after a sentence becomes quotation marks, which close it: the number of a note.
    """
    result, position = "", 0
    for start, end in kept:
        result += text[position:start]
        is_note = _ENDED.match(result, start - 1) and not has_letters(text[start:end])
        result += '"' * (end - start) if is_note else _CASELESS * (end - start)
        position = end
    return result + text[position:]


def _ends_sentence(line: str, start: int, mark: re.Match[str], language: str, *, is_lower_case: bool) -> bool:
    """Whether the sentence that begins at `start` ends at this mark."""
    first_word = _FIRST_WORD.match(line, mark.end())
    if first_word is None or _GOES_ON.match(line, first_word.start(1)):
        return False
    next_word = first_word[1]
    begins = next_word.istitle() and next_word.lower() in _FIRST_WORDS and line[first_word.end() :][:1] != "."
    is_without_space = mark[0][-1] in ".!?" and next_word[0].isalpha()
    if is_without_space and (mark[0][:2] == ".." or not (begins or _BESIDE_WIDE.match(line, mark.end() - 1))):
        return False  # node.js
    # Georgian letters count as small, also at the beginning; a name such as iPhone can begin a sentence.
    goes_on = next_word.islower() and next_word[0] != next_word[0].title()
    if goes_on and not (is_lower_case and mark[0].strip() in ".!?"):
        return False
    if mark[0][0] in "。！？" and mark[0][1:2] in "」』" and next_word[0] in "とっ":  # what was said goes on
        return False
    if mark[0][0] not in ".۔" or mark[0].startswith(".."):
        return True
    return _is_full_stop(line, start, mark.start(), language, next_word=next_word, begins=begins)


def _is_full_stop(line: str, start: int, stop: int, language: str, *, next_word: str, begins: bool) -> bool:
    """Whether a stop ends the sentence that begins at `start`, and not an abbreviation, an initial or an ordinal.

    `begins` says that the next word is one with which sentences begin.
    """
    before = line[max(start, stop - _LONGEST_ABBREVIATION) : stop]
    last_word = _BETWEEN_WORDS.split(before.rstrip("\"'”’“‘» \xa0\u2009\u202f"))[-1]
    word = last_word.lower()
    if (number := word.replace(".", "")).isdecimal():
        if next_word[0].isdecimal() and line[stop - 1].isspace():  # 3 . 5
            return False
        is_ordinal = language in _LANGUAGES_WITH_DOTTED_ORDINALS and len(number) <= _LONGEST_ORDINAL and not begins
        return not (is_ordinal or line[start:stop].strip() == last_word)  # of a list, if it is first
    if next_word[0].isdecimal() and (word in _ABBREVIATIONS_BEFORE_NUMBERS or word.endswith("str")):
        return False
    if word in _ABBREVIATIONS:
        return False
    is_initial = not word or (len(word) == 1 and word != word.upper() and (word, language) != ("i", "en"))
    is_dotted_abbreviation = "." in (word[1:2], word[-2:-1])  # p.ex, U.S
    return begins or not (is_initial or is_dotted_abbreviation or word in _ENDS_OF_NAMES)


def split_to_fit(text: str, *, fits: Callable[[str], bool], kept: Sequence[Range] = ()) -> list[str]:
    """The parts of `text` in order, each of which fits; together they are `text`, with nothing added or left out.

    A part ends after a sentence, a clause or a word, in this order of preference. A boundary in the first half of the
    part is passed over. A word that does not fit is cut anywhere, but a single character or a kept range is never cut:
    if it does not fit, it is a part of its own.
    """
    parts = []
    start = 0
    while start < len(text):
        end = start + len(_first_part(text, start, fits))
        place = bisect_right(kept, end, key=itemgetter(1))
        if place < len(kept) and kept[place][0] < end:
            end = kept[place][start >= kept[place][0]]
        parts.append(text[start:end])
        start = end
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
    least, most = 1, _FIRST_GUESS
    while start + least < len(text) and fits(text[start : start + most]):
        least, most = most, 2 * most
    sizes = range(least + 1, min(most, len(text) - start + 1))
    num_fitting = bisect_left(sizes, True, key=lambda size: not fits(text[start : start + size]))
    return text[start : start + least + num_fitting]
