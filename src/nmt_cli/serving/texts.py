"""Texts: cut into sentences for the queue, and put together again from the translations of their sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.sentence_splitting import SplitText, split_line
from nmt_cli.tokenization.tokenizer import is_blank

# A model would lose a tag. The values of its attributes tell <b id=1> from the comparisons in "a <b and c> d".
_TAG = r"""</?[A-Za-z][\w:.-]*(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*\s*/?>|<!--[^<>]*-->"""
_LINE_BREAK = r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_BREAK = re.compile(rf"({_LINE_BREAK}|{_TAG})")


def split_text(text: str, language: str, *, fits: Callable[[str], bool], is_split: Callable[[str], bool]) -> SplitText:
    """The text cut at its line breaks and tags, and after the sentences of a line that is to be split.

    Parts that do not fit are cut further.
    """
    segments: list[str] = []
    for part in _BREAK.split(text):
        is_gap = _BREAK.fullmatch(part)
        segments += (
            [part] if is_gap else split_line(part, language, by_sentence=is_split(part), is_short=fits, fits=fits)
        )
    return SplitText.of(segments, is_gap=lambda segment: is_blank(segment) or bool(_BREAK.fullmatch(segment)))


@dataclass(frozen=True, slots=True)
class TextCandidate:
    """A translation: its text, its score (log-probability over length penalty) and its log-probability."""

    text: str
    score: float
    log_prob: float


@dataclass(frozen=True, slots=True)
class TranslatedSentence:
    """A sentence with its translations, best first, and the word alignment of the best if it was asked for."""

    source: str
    candidates: list[TextCandidate]
    alignment: list[list[int]]


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """A text's sentences, and the whitespace around them."""

    split: SplitText
    sentences: list[TranslatedSentence]
    languages: LanguagePair

    @property
    def text(self) -> str:
        """The best translation."""
        return self.candidates[0].text

    @property
    def candidates(self) -> list[TextCandidate]:
        """Whole translations, best first: the best of all sentences, the second best of all, and so on.

        The last candidate of a sentence stands for all that are missing.
        """
        of_sentences = [sentence.candidates for sentence in self.sentences]
        ranks = [
            [candidates[min(rank, len(candidates) - 1)] for candidates in of_sentences]
            for rank in range(max(map(len, of_sentences), default=1))
        ]
        return [
            TextCandidate(
                self.split.join([candidate.text for candidate in rank], self.languages),
                sum(candidate.score for candidate in rank),
                sum(candidate.log_prob for candidate in rank),
            )
            for rank in ranks
        ]
