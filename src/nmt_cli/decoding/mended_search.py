"""Hypotheses of sentences, searched again if they are empty, have loops, or lack terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.placed_terms import beginnings_with_terms
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis, SourceSentence, length_penalty
from nmt_cli.decoding.search.repetition import NGRAM_WITHOUT_LOOPS, has_loop
from nmt_cli.decoding.terms import Occurrence, missing_terms
from nmt_cli.decoding.translation import LineSentence, in_one_line
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.pieces import Link, piece_links

# The hypotheses of a sentence with their texts, best first.
Ranked = list[tuple[Hypothesis, str]]
_SEARCHES_FOR_TERMS = 3  # at most, after the one without terms


class MendedSearch:
    """The search of some sentences; a sentence that the model does right by itself is searched once."""

    def __init__(
        self,
        engine: Engine,
        sentences: Sequence[LineSentence],
        occurrences: Sequence[Sequence[Occurrence]],
        *,
        config: DecodingConfig,
        nbest: int,
        details: Details,
    ) -> None:
        """`occurrences` are those of terms in each sentence."""
        self._engine = engine
        self._sentences = sentences
        self._occurrences = occurrences
        self._config = config
        self._first_config = config.model_copy(update={"stop_loops": False})
        self._nbest = nbest
        self._details = details
        self._found: list[Ranked] = []

    def run(self) -> list[Ranked]:
        """The hypotheses of each sentence, at most `nbest`."""
        self._found = self._search([sentence.source for sentence in self._sentences], config=self._first_config)
        if not self._config.samples:
            self._fill_empty()
        self._stop_loops()
        self._place_terms()
        return self._found

    def _search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int | None = None
    ) -> list[Ranked]:
        if not sources:
            return []
        nbest_lists = self._engine.search(sources, config=config, nbest=nbest or self._nbest, details=self._details)
        ids = [hypothesis.ids for ranked in nbest_lists for hypothesis in ranked]
        texts = iter(self._engine.target.decode(ids))
        return [[(hypothesis, in_one_line(next(texts))) for hypothesis in ranked] for ranked in nbest_lists]

    def _fill_empty(self) -> None:
        """Replace what was found, if the best of it is no text, by the best texts of a beam."""
        empty = {
            index: sentence.source
            for index, (sentence, ranked) in enumerate(zip(self._sentences, self._found, strict=True))
            if sentence.source.ids and not ranked[0][1].strip()
        }
        wide = self._first_config.model_copy(update={"beam": max(2, self._first_config.beam), "min_tokens": 0})
        again = self._search(list(empty.values()), config=wide, nbest=wide.beam)
        for index, ranked in zip(empty, again, strict=True):
            self._found[index] = [one for one in ranked if one[1].strip()][: self._nbest] or self._found[index]

    def _stop_loops(self) -> None:
        """Replace what has a loop by what a search finds that stops loops; what has none stays.

        If there still is a loop after this, no n-gram stands twice.
        """
        ngrams = filter(None, (self._config.no_repeat_ngram, NGRAM_WITHOUT_LOOPS))
        without_ngrams = self._config.model_copy(update={"no_repeat_ngram": min(ngrams)})
        for config in (self._config, without_ngrams):
            looping = {
                index: sentence.source
                for index, (sentence, ranked) in enumerate(zip(self._sentences, self._found, strict=True))
                if any(self._has_loop(index, text) for _, text in ranked)
            }
            again = self._search(list(looping.values()), config=config)
            for index, ranked in zip(looping, again, strict=True):
                self._found[index] = self._without_loops(index, ranked)

    def _without_loops(self, index: int, again: Ranked) -> Ranked:
        """What was found without a loop, and what was found again; samples are all drawn again."""
        if self._config.samples:
            return again
        good = {text: (hypothesis, text) for hypothesis, text in self._found[index] if not self._has_loop(index, text)}
        both = [*good.values(), *((hypothesis, text) for hypothesis, text in again if text not in good)]
        return sorted(both, key=lambda one: -one[0].score)[: self._nbest]

    def _place_terms(self) -> None:
        """Replace what was found, if it lacks terms, by what searches find that begin with them in their places.

        The first search goes on after the last of these terms. It may make this term part of a longer word, or lose one
        that stood behind it. So later searches begin with the next words, too, and choose from the whole beam.
        """
        num_lacking: dict[int, int] = {}
        for index, occurrences in enumerate(self._occurrences):
            if occurrences:
                num_lacking[index], self._found[index] = _lacking_fewest(occurrences, self._found[index])
        for num_more in range(_SEARCHES_FOR_TERMS):
            indices = [index for index, number in num_lacking.items() if number]
            if not indices:
                return
            with_beginnings = self._begin_with_terms(indices, num_more=num_more)
            again = self._search(
                [source for _, source in with_beginnings],
                config=self._first_config,
                nbest=self._config.num_candidates if num_more else self._nbest,
            )
            by_beginning: dict[int, list[tuple[int, Ranked]]] = {}
            for (index, source), ranked in zip(with_beginnings, again, strict=True):
                by_beginning.setdefault(index, []).append((len(source.prefix), ranked))
            for index, of_sentence in by_beginning.items():
                ranked = self._rank_together(of_sentence)
                without_loop = [one for one in ranked if not self._has_loop(index, one[1])]
                number, best = _lacking_fewest(self._occurrences[index], without_loop or ranked)
                if number < num_lacking[index]:
                    num_lacking[index] = number
                    self._found[index] = best[: self._nbest]

    def _rank_together(self, by_beginning: Sequence[tuple[int, Ranked]]) -> Ranked:
        """The hypotheses of several beginnings, each with its number of pieces, best first.

        A score leaves out the beginning. Of several, the likeliest is free, and the others cost how much less likely
        they are.
        """
        log_probs = [sum(ranked[0][0].piece_log_probs[:length]) for length, ranked in by_beginning]
        together: Ranked = []
        for log_prob, (_, ranked) in zip(log_probs, by_beginning, strict=True):
            for hypothesis, text in ranked:
                cost = (max(log_probs) - log_prob) / length_penalty(len(hypothesis.ids) + 1, config=self._config)
                together.append((replace(hypothesis, score=hypothesis.score - cost), text))
        return sorted(together, key=lambda one: -one[0].score)

    def _has_loop(self, index: int, text: str) -> bool:
        """Whether a translation has a loop that must not be."""
        return self._config.stop_loops and has_loop(self._sentences[index].text, text)

    def _begin_with_terms(self, indices: Sequence[int], *, num_more: int) -> list[tuple[int, SourceSentence]]:
        """Sources, each with its index, whose prefix is a beginning of the translation with the terms in it."""
        sources = [self._sentences[index].source for index in indices]
        found = [self._found[index][0] for index in indices]
        aligned = self._engine.align(sources, [[hypothesis] for hypothesis, _ in found], config=self._config)
        beginnings: list[tuple[int, str]] = []
        for index, source, (hypothesis,), (_, text) in zip(indices, sources, aligned, found, strict=True):
            (fixed,) = self._engine.target.decode([source.prefix]) if source.prefix else [""]
            texts = beginnings_with_terms(
                text,
                links_of(self._engine, self._sentences[index], hypothesis, text),
                self._occurrences[index],
                num_fixed=len(fixed),
                num_more=num_more,
            )
            beginnings += [(index, beginning) for beginning in texts]
        rows = self._engine.target.encode_target([beginning for _, beginning in beginnings])
        return [
            (index, replace(self._sentences[index].source, prefix=ids))
            for (index, _), ids in zip(beginnings, rows, strict=True)
            if len(ids) < self._engine.max_positions
        ]


def links_of(engine: Engine, sentence: LineSentence, hypothesis: Hypothesis, text: str) -> list[Link]:
    """The links between a sentence and the text of a hypothesis that has an alignment."""
    source_pieces, target_pieces = engine.source.pieces(sentence.source.ids), engine.target.pieces(hypothesis.ids)
    return piece_links(source_pieces, target_pieces, hypothesis.alignment, (sentence.text, text))


def _lacking_fewest(occurrences: Sequence[Occurrence], hypotheses: Ranked) -> tuple[int, Ranked]:
    """How many terms the best hypotheses lack, and these hypotheses."""
    numbers = [len(missing_terms(occurrences, text)) for _, text in hypotheses]
    fewest = min(numbers)
    return fewest, [one for one, number in zip(hypotheses, numbers, strict=True) if number == fewest]
