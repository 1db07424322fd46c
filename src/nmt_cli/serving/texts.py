"""Texts: cut into sentences for the queue, and put together again from the translations of their sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmt_cli.tokenization.sentence_splitting import split_sentences, split_to_fit

_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
# Characters that mean nothing in a sentence; the model is given a space.
_SPACE_OF_CONTROL = {code: " " for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class SplitText:
    """The sentences of a text; `gaps` has the whitespace before the first, between each two, and after the last."""

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        return "".join(parts)


def split_text(text: str, *, fits: Callable[[str], bool], by_sentence: bool) -> SplitText:
    """`text` cut at its line breaks, if `by_sentence` after each sentence, and further if a part does not fit."""
    sentences: list[str] = []
    gaps = [""]
    for part in _LINE_BREAK.split(text):
        line = part.translate(_SPACE_OF_CONTROL) if not part.isspace() else part
        if not line.strip():
            gaps[-1] += part
            continue
        for piece in _fitting_parts(line, fits, by_sentence=by_sentence):
            sentence = piece.strip()
            before, _, after = piece.partition(sentence) if sentence else (piece, "", "")
            gaps[-1] += before
            if sentence:
                sentences.append(sentence)
                gaps.append(after)
    return SplitText(sentences, gaps)


def _fitting_parts(line: str, fits: Callable[[str], bool], *, by_sentence: bool) -> list[str]:
    pieces = []
    for sentence in split_sentences(line) if by_sentence else [line]:
        is_short = fits(sentence.strip())
        pieces += [sentence] if is_short else split_to_fit(sentence, fits=lambda text: fits(text.strip()))
    return pieces


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
