"""Sentences to their translations: in one search or, where the first one changed what must stay, in a second one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis
from nmt_cli.decoding.search.repetition import has_loop
from nmt_cli.decoding.term_encoder import TermEncoder
from nmt_cli.decoding.terms import Occurrence, missing_terms
from nmt_cli.decoding.translation import LineSentence, Translation, in_one_line
from nmt_cli.documents.kept_text import WithoutKept, links_to_copies
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.casing import written_in
from nmt_cli.tokenization.pieces import piece_links, word_alignment, word_log_probs


class SentenceTranslator:
    """Translates sentences with an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._term_encoder = TermEncoder(engine.target)

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
        found = self._with_texts(self._engine.search(sources, config=free, nbest=nbest, details=details))
        terms_of = [[] if one.terms is None else one.terms.find(one.text) for one in sentences]
        self._search_again(found, sentences, terms_of, config=config, nbest=nbest, details=details)
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

    def _search_again(
        self,
        found: list[list[tuple[Hypothesis, str]]],
        sentences: Sequence[LineSentence],
        terms_of: Sequence[Sequence[Occurrence]],
        *,
        config: DecodingConfig,
        nbest: int,
        details: Details,
    ) -> None:
        """Replace what was found, if it has a loop or lacks a term, by what a bound search finds.

        If there still is a loop after this, the source no longer allows any repetition.
        """
        for is_last in (False, True):
            bound = {}
            for index, (sentence, terms, ranked) in enumerate(zip(sentences, terms_of, found, strict=True)):
                loops = config.stop_loops and any(has_loop(sentence.text, text) for _, text in ranked)
                if loops or (not is_last and terms and any(missing_terms(terms, text) for _, text in ranked)):
                    encoded = tuple(map(self._term_encoder.encode, terms))
                    bound[index] = replace(sentence.source, terms=encoded, may_not_repeat=is_last)
            if not bound:
                return
            again = self._engine.search(list(bound.values()), config=config, nbest=nbest, details=details)
            for index, ranked in zip(bound, self._with_texts(again), strict=True):
                found[index] = ranked

    def _with_texts(self, nbest_lists: Sequence[Sequence[Hypothesis]]) -> list[list[tuple[Hypothesis, str]]]:
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
        target_pieces = self._engine.target.pieces(hypothesis.ids)
        if details.piece_log_probs:
            scores = word_log_probs(target_pieces, hypothesis.piece_log_probs)
            translation = replace(translation, word_log_probs=tuple(scores))
        if details.alignment:
            source_pieces = self._engine.source.pieces(sentence.source.ids)
            links = piece_links(source_pieces, target_pieces, hypothesis.alignment, (sentence.text, text))
            alignment = word_alignment(links, sentence.text, text)
            translation = replace(translation, links=(*links, *copies), alignment=tuple(alignment))
        return translation


def _put_back(without: WithoutKept, translation: Translation) -> Translation:
    """The translation of a sentence that was searched without its kept ranges."""
    text, links = without.put_back(translation.text, translation.links)
    return replace(
        translation, text=text, links=tuple(links), alignment=tuple(word_alignment(links, without.text, text))
    )


def _in_casing(sentence: LineSentence, translation: Translation, language: str) -> Translation:
    text, links = written_in(sentence.casing, translation.text, translation.links, sentence.kept, language)
    return translation if text is translation.text else replace(translation, text=text, links=tuple(links))
