"""A line's translation: made of the translations of its parts, or chosen among candidates by minimum Bayes risk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp

from nmt_cli.decoding.search.hypotheses import Details, SourceSentence
from nmt_cli.decoding.terms import TermList
from nmt_cli.languages import bleu_tokenizer
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.casing import Casing
from nmt_cli.tokenization.pieces import Link, Range, word_alignment
from nmt_cli.tokenization.split_text import SplitText, by_rank


@dataclass(frozen=True, slots=True)
class Translation:
    """A line's translation: its text without line breaks, its score and log-probability, and its number of pieces.

    The score is the log-probability, without that of a prefix or of a beginning with terms, over the length penalty.
    `alternatives` are the next best translations, best first. A line translated in parts has sums over its parts; a
    blank line has an empty translation with score 0.

    The rest is there only on request. `word_log_probs` holds the log-probabilities of the words and of the end.
    `links` holds the characters that were made from each other. `alignment` has the pairs of source and target words of
    a line, and not those of a sentence in it. `utility` is the mean similarity to the other candidates. `unmet_terms`
    are terms of the source whose translation is missing.
    """

    text: str
    score: float
    log_prob: float
    num_pieces: int
    alternatives: tuple[Translation, ...] = ()
    word_log_probs: tuple[float, ...] = ()
    links: tuple[Link, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    utility: float | None = None
    unmet_terms: tuple[str, ...] = ()


BLANK = Translation("", 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class LineSentence:
    """A sentence as the model reads it, the casing that it was written in, and what must be in it.

    These are the `kept` ranges of the sentence, and the translations of its `terms`. It is not searched if it
    `is_copied`, because it has no letters to translate.
    """

    text: str
    source: SourceSentence
    languages: LanguagePair
    casing: Casing | None = None
    kept: Sequence[Range] = ()
    terms: TermList | None = None
    is_copied: bool = False


@dataclass(frozen=True, slots=True)
class SplitLine:
    """A line in sentences."""

    split: SplitText
    sentences: list[LineSentence]
    languages: LanguagePair

    def join(self, translated: Sequence[Sequence[Translation]]) -> Translation:
        """The line's translation, made of the translations of each part, best first."""
        if not translated:
            return BLANK
        best, *others = map(self._join_parts, by_rank(translated))
        return replace(best, alternatives=tuple(others))

    def _join_parts(self, translations: Sequence[Translation]) -> Translation:
        """The line's translation, made of one translation of each part."""
        texts, links_of_parts = [part.text for part in translations], [part.links for part in translations]
        text, links = self.split.joined(texts, links_of_parts, self.languages, keeps_breaks=False)
        has_word_scores = any(part.word_log_probs for part in translations)
        return Translation(
            text,
            sum(part.score for part in translations),
            sum(part.log_prob for part in translations),
            sum(part.num_pieces for part in translations),
            word_log_probs=_joined_scores(text, translations) if has_word_scores else (),
            links=tuple(links),
            alignment=tuple(word_alignment(links, self.split.text, text)) if links else (),
            unmet_terms=tuple(term for part in translations for term in part.unmet_terms),
        )


def _joined_scores(text: str, parts: Sequence[Translation]) -> tuple[float, ...]:
    """The scores of the words of a text that is made of parts, and of its end; a part may begin inside of a word."""
    scores: list[float] = []
    end_score, position = 0.0, 0
    for part in parts:
        num_words = len(part.text.split())
        own = list(part.word_log_probs[:num_words])
        end_score += sum(part.word_log_probs[num_words:])
        position = text.index(part.text, position)
        if own and scores and not (text[position - 1].isspace() or part.text[0].isspace()):
            scores[-1] += own.pop(0)
        scores += own
        position += len(part.text)
    return (*scores, end_score)


def copied(text: str, kept: Sequence[Range], *, details: Details) -> Translation:
    """The translation of a text that stays as it is: certain, and each word and kept range from itself."""
    words = [match.span() for match in re.finditer(r"\S+", text)] if details.alignment else []
    return Translation(
        text,
        0.0,
        0.0,
        0,
        word_log_probs=(0.0,) * (len(text.split()) + 1) if details.piece_log_probs else (),
        links=tuple(Link(*own, *own) for own in (*words, *kept)),
    )


def without_repetition(translations: Iterable[Translation]) -> list[Translation]:
    """The translations, best first, each text once: pieces can spell the same text in several ways."""
    best: dict[str, Translation] = {}
    for translation in translations:
        best.setdefault(translation.text, translation)
    return list(best.values())


def best_by_utility(
    line: Translation, *, utility: str, target_language: str, is_sampled: bool, nbest: int
) -> Translation:
    """The candidates of a line ranked by expected utility (chrf or bleu), as in minimum Bayes risk decoding.

    Samples have equal weights, other candidates their probability. Kumar and Byrne 2004, N04-1022.
    """
    if line == BLANK:
        return line
    candidates = [replace(line, alternatives=()), *line.alternatives]
    weights = [1.0] * len(candidates)
    if not is_sampled:
        weights = relative_probabilities([candidate.log_prob for candidate in candidates])
    texts = [candidate.text for candidate in candidates]
    utilities = expected_utilities(texts, weights, utility=utility, target_language=target_language)
    ranked = sorted(zip(candidates, utilities, strict=True), key=lambda pair: -pair[1])
    best, *others = without_repetition(replace(candidate, utility=value) for candidate, value in ranked)[:nbest]
    return replace(best, alternatives=tuple(others))


def expected_utilities(
    texts: Sequence[str], weights: Sequence[float], *, utility: str, target_language: str
) -> list[float]:
    """The mean utility of each text, 0 to 100, with each of the texts as the reference, weighted by `weights`."""
    similarity = cache(_similarity(utility, target_language))
    total = sum(weights)
    return [
        sum(weight * similarity(text, reference) for reference, weight in zip(texts, weights, strict=True)) / total
        for text in texts
    ]


def relative_probabilities(log_probs: Sequence[float]) -> list[float]:
    """The probability of each hypothesis over the highest probability."""
    highest = max(log_probs)
    return [exp(log_prob - highest) for log_prob in log_probs]


def _similarity(utility: str, target_language: str) -> Callable[[str, str], float]:
    """sacreBLEU's sentence score: chrF2, or BLEU with exponential smoothing over the orders that the sentence has.

    BLEU has the tokens of the language.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    is_bleu = utility == "bleu"
    metric = BLEU(effective_order=True, tokenize=bleu_tokenizer(target_language)) if is_bleu else CHRF()
    return lambda text, reference: float(metric.sentence_score(text, [reference]).score)


def in_one_line(text: str) -> str:
    """The text without line breaks, which byte pieces can spell, too: n lines in, n lines out."""
    return text.replace("\r", " ").replace("\n", " ")
