"""The sentences of a text and the gaps between them, and the text put together of their translations."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Final, Self, TypeVar

from nmt_cli.languages import is_without_spaces, script_of
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.pieces import Link, Range
from nmt_cli.tokenization.white_space import is_blank

CLOSING: Final = "\"'”’“‘»)\\]¹²³⁰-⁹†"
"""What closes a sentence after its mark, also the marks of notes, to be put between the brackets of a pattern."""
WIDE: Final = "\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60"
"""The letters and marks of Chinese and Japanese, in the same way."""
# In Chinese and Japanese, sentences too follow each other without a space; in Thai and its kin, only words do.
_SCRIPTS_WITHOUT_GAPS = ("Hani", "Hans", "Hant", "Jpan")
_ENDS_WIDE = re.compile(rf"[{WIDE}…—][{CLOSING}]*\Z")
_LETTER_OF_LIST = re.compile(r"(?<!\w)[^\W\d_]\)")
_ENDS_WITH_WIDE_MARK = re.compile(rf"[。！？…；：，、｡」』）】》〉][{CLOSING}]*\Z")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SplitText:
    """The sentences of a text; `gaps` has what stands before the first, between each two, and after the last.

    The `kept` ranges of the text, in order, stay as they are.
    """

    sentences: list[str]
    gaps: list[str]
    kept: Sequence[Range] = ()

    @classmethod
    def of(cls, segments: Iterable[str], kept: Sequence[Range] = ()) -> Self:
        """The text that these segments are, each with the white space around it; a blank one belongs to a gap."""
        sentences: list[str] = []
        gaps = [""]
        for segment in segments:
            sentence = "" if is_blank(segment) else segment.strip()
            before, _, after = segment.partition(sentence) if sentence else (segment, "", "")
            gaps[-1] += before
            if sentence:
                sentences.append(sentence)
                gaps.append(after)
        return cls(sentences, gaps, kept)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(chain(self.gaps[:1], *zip(self.sentences, self.gaps[1:], strict=True)))

    def joined(
        self,
        translations: Sequence[str],
        links: Iterable[Iterable[Link]],
        languages: LanguagePair,
        *,
        keeps_breaks: bool,
    ) -> tuple[str, list[Link]]:
        """The text of the translations of its sentences, and its links; `links` has those of each translation.

        The gaps are as the target language is written: Chinese and Japanese sentences follow without a space. If the
        source has no space after a sentence and the target needs one, it gets one. Unless line breaks are kept, a gap
        between two translations is a space or nothing, and there is none around them.
        """
        gaps = self._target_gaps(translations, languages, keeps_breaks=keeps_breaks)
        source_length, text = len(self.gaps[0]), gaps[0]
        moved: list[Link] = []
        parts = zip(self.sentences, self.gaps[1:], translations, gaps[1:], links, strict=True)
        for sentence, source_gap, translation, gap, own in parts:
            moved += [link.shifted(source_length, len(text)) for link in own]
            source_length += len(sentence) + len(source_gap)
            text += translation + gap
        return text, moved

    def kept_by_sentence(self) -> list[list[Range]]:
        """The kept ranges as ranges of each sentence; one across an end is cut there."""
        found: list[list[Range]] = []
        start = 0
        for gap, sentence in zip(self.gaps, self.sentences, strict=False):
            start += len(gap)
            end = start + len(sentence)
            found.append(ranges_in(self.kept, start, end))
            start = end
        return found

    def _target_gaps(self, translations: Sequence[str], languages: LanguagePair, *, keeps_breaks: bool) -> list[str]:
        gaps = list(self.gaps) if keeps_breaks else ["", *self.gaps[1:-1], ""]
        for index in range(1, len(self.sentences)):
            sentence, next_sentence = self.sentences[index - 1 : index + 1]
            if self.gaps[index] or has_letters(next_sentence):  # an emoji can follow without a space in any language
                translation = translations[index - 1]
                gaps[index] = _target_gap(gaps[index], sentence, translation, languages, keeps_breaks=keeps_breaks)
        return gaps


def ranges_in(ranges: Sequence[Range], start: int, end: int) -> list[Range]:
    """Ranges of a text, in order, as ranges of the part of it from `start` to `end`; one across an end is cut there."""
    inside = ranges[bisect_right(ranges, start, key=itemgetter(1)) : bisect_left(ranges, end, key=itemgetter(0))]
    return [(max(first, start) - start, min(last, end) - start) for first, last in inside]


def by_rank(candidates: Sequence[Sequence[T]]) -> list[list[T]]:
    """The best candidates of all parts of a text, the second best of all, and so on.

    The last candidate of a part stands for all that are missing: a part may have fewer than another.
    """
    ranks = range(max(map(len, candidates), default=1))
    return [[ranked[min(rank, len(ranked) - 1)] for ranked in candidates] for rank in ranks]


def _target_gap(gap: str, source: str, translation: str, languages: LanguagePair, *, keeps_breaks: bool) -> str:
    """The gap after a sentence and its translation, with a sentence after them."""
    has_break = gap.splitlines() not in ([], [gap])
    if (has_break and keeps_breaks) or gap.strip():
        return gap
    if script_of(languages.target) in _SCRIPTS_WITHOUT_GAPS and (
        _ENDS_WITH_WIDE_MARK if has_break else _ENDS_WIDE
    ).search(translation):
        return ""
    if gap:
        return gap if keeps_breaks else " "
    return "" if source[-1].isalnum() and not is_without_spaces(languages.source) else " "


def has_letters(text: str) -> bool:
    """Whether a text has a letter of any script; digits, emoji and the `a)` of a list are none."""
    return any(map(str.isalpha, _LETTER_OF_LIST.sub("", text)))
