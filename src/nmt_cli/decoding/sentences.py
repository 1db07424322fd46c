"""Sentences to their translations: in one search, and in more if the first one lacks or changed what must be there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.placed_terms import beginnings_with_terms
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis, SourceSentence
from nmt_cli.decoding.search.repetition import has_loop
from nmt_cli.decoding.terms import Occurrence, missing_terms
from nmt_cli.decoding.translation import LineSentence, Translation, in_one_line
from nmt_cli.documents.kept_text import WithoutKept, links_to_copies
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.casing import written_in
from nmt_cli.tokenization.pieces import Link, piece_links, word_alignment, word_log_probs

_Ranked = list[tuple[Hypothesis, str]]
_SEARCHES_FOR_TERMS = 3  # at most, after the one without terms


class SentenceTranslator:
    """Translates sentences with an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def translate(
        self, sentences: Sequence[LineSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Translation]]:
        """The translations of each sentence, best first.

        A sentence with a loop or without one of its terms is searched again, and so is one with other text in place of
        its kept ranges: without them, and they are then put back. So all this changes and costs nothing where the model
        does right by itself.
        """
        free = config.model_copy(update={"stop_loops": False})
        sources = [one.source for one in sentences]
        terms_of = [[] if one.terms is None else one.terms.find(one.text) for one in sentences]
        found = self._with_texts(self._engine.search(sources, config=free, nbest=nbest, details=details))
        if not config.samples:
            self._fill_empty(found, sources, config=free, nbest=nbest, details=details)
        if config.stop_loops:
            self._stop_loops(found, sentences, config=config, nbest=nbest, details=details)
        self._place_terms(found, sentences, terms_of, config=config, nbest=nbest, details=details)
        translations: list[list[Translation]] = []
        changed: dict[int, WithoutKept] = {}
        for index, (sentence, terms, hypotheses) in enumerate(zip(sentences, terms_of, found, strict=True)):
            candidates = [self._translation(sentence, terms, *one, details=details) for one in hypotheses]
            translations.append([candidate for candidate in candidates if candidate is not None])
            if len(translations[index]) < len(candidates):
                changed[index] = WithoutKept.of(sentence.text, sentence.kept)
        if changed:
            texts = [without.marked.text for without in changed.values()]
            again = [
                replace(
                    sentences[index], text=text, source=replace(sentences[index].source, ids=ids), casing=None, kept=()
                )
                for index, text, ids in zip(changed, texts, self._engine.source.encode_raw(texts), strict=True)
            ]
            searched = self.translate(again, config=config, nbest=nbest, details=replace(details, alignment=True))
            for (index, without), ranked in zip(changed.items(), searched, strict=True):
                translations[index] = [_put_back(without, translation) for translation in ranked]
        return [
            [_in_casing(sentence, translation, self._engine.languages.target) for translation in ranked]
            for sentence, ranked in zip(sentences, translations, strict=True)
        ]

    def _fill_empty(
        self,
        found: list[_Ranked],
        sources: Sequence[SourceSentence],
        *,
        config: DecodingConfig,
        nbest: int,
        details: Details,
    ) -> None:
        """Replace what was found, if the best of it is no text, by the best texts of a beam."""
        empty = [index for index, ranked in enumerate(found) if sources[index].ids and not ranked[0][1].strip()]
        if not empty:
            return
        wide = config.model_copy(update={"beam": max(2, config.beam)})
        again = self._engine.search([sources[index] for index in empty], config=wide, nbest=wide.beam, details=details)
        for index, ranked in zip(empty, self._with_texts(again), strict=True):
            found[index] = [one for one in ranked if one[1].strip()][:nbest] or found[index]

    def _stop_loops(
        self,
        found: list[_Ranked],
        sentences: Sequence[LineSentence],
        *,
        config: DecodingConfig,
        nbest: int,
        details: Details,
    ) -> None:
        """Replace what was found, if it has a loop, by what a search finds that stops loops.

        If there still is a loop after this, the source no longer allows any repetition.
        """
        for may_not_repeat in (False, True):
            bound = {
                index: replace(sentence.source, may_not_repeat=may_not_repeat)
                for index, (sentence, ranked) in enumerate(zip(sentences, found, strict=True))
                if any(has_loop(sentence.text, text) for _, text in ranked)
            }
            if not bound:
                return
            again = self._engine.search(list(bound.values()), config=config, nbest=nbest, details=details)
            for index, ranked in zip(bound, self._with_texts(again), strict=True):
                found[index] = ranked

    def _place_terms(
        self,
        found: list[_Ranked],
        sentences: Sequence[LineSentence],
        terms_of: Sequence[Sequence[Occurrence]],
        *,
        config: DecodingConfig,
        nbest: int,
        details: Details,
    ) -> None:
        """Replace what was found, if it lacks terms, by what searches find that begin with them in their places.

        The first search goes on after the last of these terms. It may make this term part of a longer word, or lose one
        that stood behind it. So later searches begin with the next words, too, and choose from the whole beam.
        """
        lacking: dict[int, int] = {}
        for index, terms in enumerate(terms_of):
            if terms:
                lacking[index], found[index] = _with_most_terms(terms, found[index])
        for num_more in range(_SEARCHES_FOR_TERMS):
            to_mend = {index: found[index][0] for index, number in lacking.items() if number}
            begun = self._begin_with_terms(to_mend, sentences, terms_of, num_more=num_more, config=config)
            if not begun:
                return
            again = self._engine.search(
                [source for _, source in begun],
                config=config,
                nbest=config.num_candidates if num_more else nbest,
                details=details,
            )
            choices: dict[int, _Ranked] = {}
            for (index, _), ranked in zip(begun, self._with_texts(again), strict=True):
                choices.setdefault(index, []).extend(ranked)
            for index, hypotheses in choices.items():
                number, best = _with_most_terms(terms_of[index], hypotheses)
                if number < lacking[index]:
                    lacking[index] = number
                    found[index] = sorted(best, key=lambda one: -one[0].score)[:nbest]

    def _begin_with_terms(
        self,
        found: Mapping[int, tuple[Hypothesis, str]],
        sentences: Sequence[LineSentence],
        terms_of: Sequence[Sequence[Occurrence]],
        *,
        num_more: int,
        config: DecodingConfig,
    ) -> list[tuple[int, SourceSentence]]:
        """Sources to search, by the indices of their sentences, with the beginnings of a translation that has terms."""
        sources = [sentences[index].source for index in found]
        aligned = self._engine.align(sources, [[hypothesis] for hypothesis, _ in found.values()], config=config)
        beginnings: list[tuple[int, str]] = []
        for (index, (_, text)), source, ranked in zip(found.items(), sources, aligned, strict=True):
            links = self._links(sentences[index], ranked[0], text)
            (before,) = self._engine.target.decode([source.prefix]) if source.prefix else [""]
            texts = beginnings_with_terms(text, links, terms_of[index], num_fixed=len(before), num_more=num_more)
            beginnings += [(index, beginning) for beginning in texts]
        rows = self._engine.target.encode_raw([beginning for _, beginning in beginnings])
        return [
            (index, replace(sentences[index].source, prefix=ids))
            for (index, _), ids in zip(beginnings, rows, strict=True)
            if len(ids) < self._engine.max_positions
        ]

    def _links(self, sentence: LineSentence, hypothesis: Hypothesis, text: str) -> list[Link]:
        source_pieces = self._engine.source.pieces(sentence.source.ids)
        target_pieces = self._engine.target.pieces(hypothesis.ids)
        return piece_links(source_pieces, target_pieces, hypothesis.alignment, (sentence.text, text))

    def _with_texts(self, nbest_lists: Sequence[Sequence[Hypothesis]]) -> list[_Ranked]:
        ids = [hypothesis.ids for ranked in nbest_lists for hypothesis in ranked]
        texts = iter(self._engine.target.decode(ids))
        return [[(hypothesis, in_one_line(next(texts))) for hypothesis in ranked] for ranked in nbest_lists]

    def _translation(
        self,
        sentence: LineSentence,
        terms: Sequence[Occurrence],
        hypothesis: Hypothesis,
        text: str,
        *,
        details: Details,
    ) -> Translation | None:
        """The translation of a hypothesis; None if it has other text in place of the kept ranges."""
        unmet = [sentence.text[terms[index].start : terms[index].end] for index in missing_terms(terms, text)]
        translation = Translation(
            text, hypothesis.score, hypothesis.log_prob, len(hypothesis.ids), unmet_terms=tuple(unmet)
        )
        copies = links_to_copies(sentence.text, sentence.kept, text)
        if copies is None:
            return None
        translation = replace(translation, links=tuple(copies))
        if not (details.piece_log_probs or details.alignment):
            return translation
        if details.piece_log_probs:
            scores = word_log_probs(self._engine.target.pieces(hypothesis.ids), hypothesis.piece_log_probs)
            translation = replace(translation, word_log_probs=tuple(scores))
        if details.alignment:
            links = self._links(sentence, hypothesis, text)
            alignment = word_alignment(links, sentence.text, text)
            translation = replace(translation, links=(*links, *copies), alignment=tuple(alignment))
        return translation


def _with_most_terms(terms: Sequence[Occurrence], hypotheses: _Ranked) -> tuple[int, _Ranked]:
    """The fewest terms that one of the hypotheses lacks, and those that lack no more."""
    numbers = [len(missing_terms(terms, text)) for _, text in hypotheses]
    fewest = min(numbers)
    return fewest, [one for one, number in zip(hypotheses, numbers, strict=True) if number == fewest]


def _put_back(without: WithoutKept, translation: Translation) -> Translation:
    """The translation of a sentence that was searched without its kept ranges."""
    text, links = without.put_back(translation.text, translation.links)
    alignment = tuple(word_alignment(links, without.text, text))
    scores = translation.word_log_probs
    if scores:
        of_searched = iter(scores)
        copied = [(link.target_start, link.target_end) for link in links[: len(without.kept)]]
        words = re.finditer(r"\S+", text)
        of_words = [0.0 if word.span() in copied else next(of_searched, 0.0) for word in words]
        scores = (*of_words, *of_searched)
    return replace(translation, text=text, links=tuple(links), alignment=alignment, word_log_probs=scores)


def _in_casing(sentence: LineSentence, translation: Translation, language: str) -> Translation:
    text, links = written_in(sentence.casing, translation.text, translation.links, sentence.kept, language)
    return translation if text is translation.text else replace(translation, text=text, links=tuple(links))
