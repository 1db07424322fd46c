"""Texts: cut into sentences for the queue, and put together again from the translations of their sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import BaseModel, PlainSerializer

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


Rounded = Annotated[float, PlainSerializer(partial(round, ndigits=6), return_type=float)]


class Candidate(BaseModel):
    """A translation, its score (log-probability over length penalty), and its log-probability."""

    text: str
    score: Rounded
    log_prob: Rounded


class TranslatedSentence(Candidate):
    """A sentence's translation; `alignment` has pairs of word positions, in the source and in the translation."""

    source: str
    alternatives: list[Candidate]
    alignment: list[list[int]] | None = None


class TranslatedText(Candidate):
    """A text's translation, with the translations of its sentences."""

    alternatives: list[Candidate]
    sentences: list[TranslatedSentence]


def join_sentences(split: SplitText, sentences: list[TranslatedSentence], languages: LanguagePair) -> TranslatedText:
    """The text made of the translations of its sentences: of the best of each, of the second best of each, and so on.

    The last translation of a sentence stands for all that are missing.
    """
    of_sentences = [[sentence, *sentence.alternatives] for sentence in sentences]
    ranks = [
        [candidates[min(rank, len(candidates) - 1)] for candidates in of_sentences]
        for rank in range(max(map(len, of_sentences), default=1))
    ]
    best, *alternatives = [
        Candidate(
            text=split.join([candidate.text for candidate in rank], languages),
            score=sum(candidate.score for candidate in rank),
            log_prob=sum(candidate.log_prob for candidate in rank),
        )
        for rank in ranks
    ]
    return TranslatedText(**dict(best), alternatives=alternatives, sentences=sentences)
