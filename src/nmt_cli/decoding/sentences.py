"""Sentences to their translations: the best hypotheses with their kept text, links and casing."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.mended_search import MendedSearch, links_of
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis
from nmt_cli.decoding.terms import Occurrence, missing_terms
from nmt_cli.decoding.translation import LineSentence, Translation
from nmt_cli.documents.kept_text import WithoutKept, links_to_copies
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.casing import capitalised, in_capitals
from nmt_cli.tokenization.pieces import Range, word_log_probs


def translate_sentences(
    engine: Engine, sentences: Sequence[LineSentence], *, config: DecodingConfig, nbest: int, details: Details
) -> list[list[Translation]]:
    """The translations of each sentence, best first, in its casing."""
    translations = _translate(engine, sentences, config=config, nbest=nbest, details=details)
    return [
        [_in_casing(sentence, translation) for translation in ranked]
        for sentence, ranked in zip(sentences, translations, strict=True)
    ]


def _translate(
    engine: Engine, sentences: Sequence[LineSentence], *, config: DecodingConfig, nbest: int, details: Details
) -> list[list[Translation]]:
    """The translations of each sentence, in lower case if the sentence was changed to it.

    If a translation changes the kept ranges of its sentence, the sentence is searched again without them. Then they are
    put back.
    """
    found_terms = list(map(_terms_to_translate, sentences))
    found = MendedSearch(engine, sentences, found_terms, config=config, nbest=nbest, details=details).run()
    translations: list[list[Translation]] = []
    lost_kept: dict[int, WithoutKept] = {}
    for index, (sentence, occurrences, ranked) in enumerate(zip(sentences, found_terms, found, strict=True)):
        candidates = [
            _translation(engine, sentence, occurrences, hypothesis, text, details=details)
            for hypothesis, text in ranked
        ]
        translations.append([candidate for candidate in candidates if candidate is not None])
        if len(translations[index]) < len(candidates):
            lost_kept[index] = WithoutKept.of(sentence.text, sentence.kept)
    if lost_kept:
        searched = _translate_without_kept(engine, lost_kept, sentences, config=config, nbest=nbest, details=details)
        for index, without_kept in zip(lost_kept, searched, strict=True):
            translations[index] = without_kept
    return translations


def _translate_without_kept(
    engine: Engine,
    lost_kept: Mapping[int, WithoutKept],
    sentences: Sequence[LineSentence],
    *,
    config: DecodingConfig,
    nbest: int,
    details: Details,
) -> list[list[Translation]]:
    """The translations of some of the sentences, searched without their kept ranges, which are then put back."""
    texts = [without.marked.text for without in lost_kept.values()]
    shorter = [
        replace(sentences[index], text=text, source=replace(sentences[index].source, ids=ids), kept=())
        for index, text, ids in zip(lost_kept, texts, engine.source.encode_source(texts), strict=True)
    ]
    searched = _translate(engine, shorter, config=config, nbest=nbest, details=replace(details, alignment=True))
    prefixes = engine.target.decode([sentence.source.prefix for sentence in shorter])
    return [
        [_put_back(without, translation, prefix=prefix) for translation in ranked]
        for without, prefix, ranked in zip(lost_kept.values(), prefixes, searched, strict=True)
    ]


def _translation(
    engine: Engine,
    sentence: LineSentence,
    occurrences: Sequence[Occurrence],
    hypothesis: Hypothesis,
    text: str,
    *,
    details: Details,
) -> Translation | None:
    """The translation of a hypothesis; None if the kept ranges of the sentence are changed in it."""
    copies = links_to_copies(sentence.text, sentence.kept, text)
    if copies is None:
        return None
    missing = [occurrences[index] for index in missing_terms(occurrences, text)]
    scores = (
        word_log_probs(engine.target.pieces(hypothesis.ids), hypothesis.piece_log_probs)
        if details.piece_log_probs
        else ()
    )
    links = links_of(engine, sentence, hypothesis, text) if details.alignment else ()
    return Translation(
        text,
        hypothesis.score,
        hypothesis.log_prob,
        len(hypothesis.ids),
        word_log_probs=tuple(scores),
        links=(*links, *copies),
        unmet_terms=tuple(sentence.text[one.start : one.end] for one in missing),
    )


def _terms_to_translate(sentence: LineSentence) -> list[Occurrence]:
    """The terms in a sentence outside of its kept ranges; a translation may begin with a capital letter."""
    if sentence.terms is None:
        return []
    find = sentence.terms.find if sentence.casing is None else sentence.terms.find_without_case
    found = find(sentence.text)
    free = [one for one in found if not any(start < one.end and one.start < end for start, end in sentence.kept)]
    capitals = [[capitalised(form, sentence.languages.target) for form in one.targets] for one in free]
    return [
        replace(one, targets=tuple(dict.fromkeys([*one.targets, *forms])))
        for one, forms in zip(free, capitals, strict=True)
    ]


def _put_back(without: WithoutKept, translation: Translation, *, prefix: str) -> Translation:
    """The translation of a sentence that was searched without its kept ranges, but for those in its prefix."""
    text, links = without.put_back(translation.text, translation.links, prefix=prefix)
    scores = translation.word_log_probs
    if scores:
        put = [link[2:] for link in links[: len(without.kept)] if link.target_start >= len(prefix)]
        scores = _scores_with_copies(scores, translation.text.split(), text=text, copied=put)
    return replace(translation, text=text, links=tuple(links), word_log_probs=scores)


def _scores_with_copies(
    scores: Sequence[float], words: Sequence[str], *, text: str, copied: Sequence[Range]
) -> tuple[float, ...]:
    """The scores of the words of a text, and of its end.

    `words` are the words of the translation without the `copied` ranges, and `scores` their scores. A word of the text
    has the sum of the scores of the `words` that begin in it.
    """
    starts = [0, *accumulate(map(len, words))]
    position, of_words = 0, []
    for word in re.finditer(r"\S+", text):
        num_copied = sum(max(0, min(end, word.end()) - max(start, word.start())) for start, end in copied)
        end = position + len(word[0]) - num_copied
        of_words.append(sum(scores[bisect_left(starts, position) : bisect_left(starts, end)], 0.0))
        position = end
    return (*of_words, *scores[len(words) :])


def _in_casing(sentence: LineSentence, translation: Translation) -> Translation:
    """The translation in capitals if its source was, apart from the copies of kept text.

    The translation of a title is a sentence: most languages do not write titles as English does.
    """
    if sentence.casing != "capitals":
        return translation
    kept = {span: sentence.text[slice(*span)] for span in sentence.kept}
    targets = {link[2:] for link in translation.links if kept.get(link[:2]) == translation.text[slice(*link[2:])]}
    text, links = in_capitals(translation.text, translation.links, sorted(targets), sentence.languages.target)
    return replace(translation, text=text, links=tuple(links))
