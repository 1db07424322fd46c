"""Texts: cut into sentences for the queue, and put together again from the translations of their sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmt_cli.tokenization.sentence_splitting import split_sentences, split_to_fit

# A model would lose a tag. The values of its attributes tell <b id=1> from the comparisons in "a <b and c> d".
_TAG = r"""</?[A-Za-z][\w:.-]*(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*\s*/?>|<!--[^<>]*-->"""
_LINE_BREAK = r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_BREAK = re.compile(rf"({_LINE_BREAK}|{_TAG})")
# Control characters mean nothing in a sentence; the model gets a space instead.
_CONTROLS_TO_SPACES = {code: " " for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class SplitText:
    """The sentences of a text; `gaps` has the whitespace and tags before the first, between two, and after the last."""

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        return "".join(parts)


def split_text(text: str, *, fits: Callable[[str], bool], by_sentence: bool) -> SplitText:
    """The text cut at line breaks and tags, and after sentences if `by_sentence`; parts that do not fit are cut too."""
    sentences: list[str] = []
    gaps = [""]
    for part in _BREAK.split(text):
        line = part.translate(_CONTROLS_TO_SPACES) if not part.isspace() else part
        if not line.strip() or _BREAK.fullmatch(part):
            gaps[-1] += part
            continue
        for segment in _fitting_segments(line, fits, by_sentence=by_sentence):
            sentence = segment.strip()
            if not sentence:
                gaps[-1] += segment
                continue
            before, _, after = segment.partition(sentence)
            gaps[-1] += before
            sentences.append(sentence)
            gaps.append(after)
    return SplitText(sentences, gaps)


def _fitting_segments(line: str, fits: Callable[[str], bool], *, by_sentence: bool) -> list[str]:
    segments = []
    for sentence in split_sentences(line) if by_sentence else [line]:
        is_short = fits(sentence.strip())
        segments += [sentence] if is_short else split_to_fit(sentence, fits=lambda text: fits(text.strip()))
    return segments


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

    @property
    def text(self) -> str:
        """The translation, with the whitespace of the source."""
        return self.split.join([sentence.candidates[0].text for sentence in self.sentences])

    @property
    def candidates(self) -> list[TextCandidate]:
        """Whole translations, best first: the best of all sentences, the second best of all, and so on."""
        if not self.sentences:
            return [TextCandidate(self.text, 0.0, 0.0)]
        ranks = zip(*(sentence.candidates for sentence in self.sentences), strict=False)
        return [
            TextCandidate(
                self.split.join([candidate.text for candidate in rank]),
                sum(candidate.score for candidate in rank),
                sum(candidate.log_prob for candidate in rank),
            )
            for rank in ranks
        ]
