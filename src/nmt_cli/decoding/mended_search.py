"""Hypotheses of sentences, searched again if they are empty, have loops, or lack terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.placed_terms import beginnings_with_terms
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis, SourceSentence
from nmt_cli.decoding.search.repetition import has_loop
from nmt_cli.decoding.terms import Occurrence, missing_terms
from nmt_cli.decoding.translation import LineSentence, in_one_line
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.pieces import Link, piece_links

# The hypotheses of a sentence with their texts, best first.
Ranked = list[tuple[Hypothesis, str]]
_NGRAM_OF_LOOPS = 3  # without any three pieces twice, no unit stands in a row more than three times
_SEARCHES_FOR_TERMS = 3  # at most, after the one without terms


class MendedSearch:
    """The search of some sentences; a sentence that the model does right by itself is searched once."""

    def __init__(
        self,
        engine: Engine,
        sentences: Sequence[LineSentence],
        terms: Sequence[Sequence[Occurrence]],
        *,
        config: DecodingConfig,
        nbest: int,
        details: Details,
    ) -> None:
        """`terms` are those of each sentence."""
        self._engine = engine
        self._sentences = sentences
        self._terms = terms
        self._config = config
        self._nbest = nbest
        self._details = details
        self._found: list[Ranked] = []

    def run(self) -> list[Ranked]:
        """The hypotheses of each sentence, at most `nbest`."""
        free = self._config.model_copy(update={"stop_loops": False})
        self._found = self._search([sentence.source for sentence in self._sentences], config=free)
        if not self._config.samples:
            self._fill_empty(free)
        if self._config.stop_loops:
            self._stop_loops()
        self._place_terms()
        return self._found

    def _search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int | None = None
    ) -> list[Ranked]:
        nbest_lists = self._engine.search(sources, config=config, nbest=nbest or self._nbest, details=self._details)
        ids = [hypothesis.ids for ranked in nbest_lists for hypothesis in ranked]
        texts = iter(self._engine.target.decode(ids))
        return [[(hypothesis, in_one_line(next(texts))) for hypothesis in ranked] for ranked in nbest_lists]

    def _fill_empty(self, config: DecodingConfig) -> None:
        """Replace what was found, if the best of it is no text, by the best texts of a beam."""
        empty = {
            index: sentence.source
            for index, (sentence, ranked) in enumerate(zip(self._sentences, self._found, strict=True))
            if sentence.source.ids and not ranked[0][1].strip()
        }
        wide = config.model_copy(update={"beam": max(2, config.beam)})
        again = self._search(list(empty.values()), config=wide, nbest=wide.beam) if empty else []
        for index, ranked in zip(empty, again, strict=True):
            self._found[index] = [one for one in ranked if one[1].strip()][: self._nbest] or self._found[index]

    def _stop_loops(self) -> None:
        """Replace what was found, if it has a loop, by what a search finds that stops loops.

        If there still is a loop after this, no n-gram stands twice.
        """
        ngrams = filter(None, (self._config.no_repeat_ngram, _NGRAM_OF_LOOPS))
        without_ngrams = self._config.model_copy(update={"no_repeat_ngram": min(ngrams)})
        for config in (self._config, without_ngrams):
            looping = {
                index: sentence.source
                for index, (sentence, ranked) in enumerate(zip(self._sentences, self._found, strict=True))
                if any(has_loop(sentence.text, text) for _, text in ranked)
            }
            again = self._search(list(looping.values()), config=config) if looping else []
            for index, ranked in zip(looping, again, strict=True):
                self._found[index] = ranked

    def _place_terms(self) -> None:
        """Replace what was found, if it lacks terms, by what searches find that begin with them in their places.

        The first search goes on after the last of these terms. It may make this term part of a longer word, or lose one
        that stood behind it. So later searches begin with the next words, too, and choose from the whole beam.
        """
        lacking: dict[int, int] = {}
        for index, terms in enumerate(self._terms):
            if terms:
                lacking[index], self._found[index] = _with_most_terms(terms, self._found[index])
        for num_more in range(_SEARCHES_FOR_TERMS):
            begun = self._begin_with_terms([index for index, number in lacking.items() if number], num_more=num_more)
            sources = [source for _, source in begun]
            num_choices = self._config.num_candidates if num_more else self._nbest
            again = self._search(sources, config=self._config, nbest=num_choices) if sources else []
            choices: dict[int, Ranked] = {}
            for (index, _), ranked in zip(begun, again, strict=True):
                choices.setdefault(index, []).extend(ranked)
            for index, ranked in choices.items():
                number, best = _with_most_terms(self._terms[index], ranked)
                if number < lacking[index]:
                    lacking[index] = number
                    self._found[index] = sorted(best, key=lambda one: -one[0].score)[: self._nbest]

    def _begin_with_terms(self, indices: Sequence[int], *, num_more: int) -> list[tuple[int, SourceSentence]]:
        """Sources of sentences, by their indices, with beginnings of their translations that have terms as prefixes."""
        sources = [self._sentences[index].source for index in indices]
        found = [self._found[index][0] for index in indices]
        aligned = self._engine.align(sources, [[hypothesis] for hypothesis, _ in found], config=self._config)
        beginnings: list[tuple[int, str]] = []
        for index, source, (hypothesis,), (_, text) in zip(indices, sources, aligned, found, strict=True):
            (fixed,) = self._engine.target.decode([source.prefix]) if source.prefix else [""]
            texts = beginnings_with_terms(
                text,
                links_of(self._engine, self._sentences[index], hypothesis, text),
                self._terms[index],
                num_fixed=len(fixed),
                num_more=num_more,
            )
            beginnings += [(index, beginning) for beginning in texts]
        rows = self._engine.target.encode_raw([beginning for _, beginning in beginnings])
        return [
            (index, replace(self._sentences[index].source, prefix=ids))
            for (index, _), ids in zip(beginnings, rows, strict=True)
            if len(ids) < self._engine.max_positions
        ]


def links_of(engine: Engine, sentence: LineSentence, hypothesis: Hypothesis, text: str) -> list[Link]:
    """The links between a sentence and the text of a hypothesis that has an alignment."""
    source_pieces, target_pieces = engine.source.pieces(sentence.source.ids), engine.target.pieces(hypothesis.ids)
    return piece_links(source_pieces, target_pieces, hypothesis.alignment, (sentence.text, text))


def _with_most_terms(terms: Sequence[Occurrence], hypotheses: Ranked) -> tuple[int, Ranked]:
    """The fewest terms that one of the hypotheses lacks, and those that lack no more."""
    numbers = [len(missing_terms(terms, text)) for _, text in hypotheses]
    fewest = min(numbers)
    return fewest, [one for one, number in zip(hypotheses, numbers, strict=True) if number == fewest]
