"""Texts of a request to their translations: limits, splitting, the queue, the time it may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nmt_cli.serving.batcher import Sentence
from nmt_cli.serving.jobs import Attend, Job, Search, Vary
from nmt_cli.serving.limits import Limits
from nmt_cli.serving.models import Counter, ServedModel
from nmt_cli.serving.refusals import busy, invalid, too_large, too_many_texts
from nmt_cli.serving.segments import Segmented, segment


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who waits for an answer: a name that is the same in all requests of a client, and a future done once it goes."""

    name: str
    gone: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A translation: its text, ln P over the length penalty, and ln P."""

    text: str
    score: float
    log_prob: float


@dataclass(frozen=True, slots=True)
class TranslatedSentence:
    """A sentence and its translations, best first; where asked for, pairs of source and target words of the best."""

    source: str
    candidates: list[Candidate]
    alignment: list[list[int]]


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """A text's sentences, and the whitespace around them."""

    segmented: Segmented
    sentences: list[TranslatedSentence]

    @property
    def text(self) -> str:
        """The translation, with the whitespace of the source."""
        return self.segmented.join([sentence.candidates[0].text for sentence in self.sentences])

    @property
    def candidates(self) -> list[Candidate]:
        """Whole translations, best first: the best of all sentences, the second best of all, and so on."""
        if not self.sentences:
            return [Candidate(self.text, 0.0, 0.0)]
        ranks = zip(*(sentence.candidates for sentence in self.sentences), strict=False)
        return [
            Candidate(
                self.segmented.join([candidate.text for candidate in rank]),
                sum(candidate.score for candidate in rank),
                sum(candidate.log_prob for candidate in rank),
            )
            for rank in ranks
        ]


class Translation:
    """What the APIs share: texts in, translated texts out, within the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def search(
        self,
        model: ServedModel,
        *,
        nbest: int = 1,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_extra_tokens: int | None = None,
        prefix: str = "",
        alignments: bool = False,
    ) -> Search:
        """The search with the model's own settings where none are given; Refused beyond the limits.

        More translations than the beam is wide widen it.
        """
        own = model.config.recipe.decoding
        limit = self.limits.alternatives + 1
        if nbest > limit:
            raise invalid(f"{nbest} translations are too many", hint=f"ask for at most {limit}", where="nbest")
        if beam is not None and beam > self.limits.beam:
            raise invalid(f"a beam of {beam} is too wide", hint=f"ask for at most {self.limits.beam}", where="beam")
        return Search(
            beam=max(beam if beam is not None else own.beam, nbest),
            nbest=nbest,
            length_penalty=own.length_penalty if length_penalty is None else length_penalty,
            max_extra_tokens=own.max_extra_tokens
            if max_extra_tokens is None
            else min(max_extra_tokens, own.max_extra_tokens),
            prefix=prefix.strip(),
            alignments=alignments,
        )

    def check(self, texts: Sequence[str]) -> None:
        """Raise Refused where there are too many texts or characters, or what is no text."""
        if len(texts) > self.limits.texts:
            raise too_many_texts(len(texts), most=self.limits.texts)
        characters = sum(map(len, texts))
        if characters > self.limits.characters:
            hint = f"send at most {self.limits.characters:,} characters in a request"
            raise too_large(f"{characters:,} characters are too many", hint=hint)
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:
                hint = "send whole characters: a lone surrogate is none"
                raise invalid("the text holds half a character", hint=hint) from None

    async def translate(
        self, texts: Sequence[str], model: ServedModel, job: Search, *, by_sentence: bool, asker: Asker
    ) -> list[TranslatedText]:
        """The translation of each text; ClientGone once the asker is, Refused where there is no room or time."""
        return [text async for text in self.stream(texts, model, job, by_sentence=by_sentence, asker=asker)]

    async def stream(
        self, texts: Sequence[str], model: ServedModel, job: Search, *, by_sentence: bool, asker: Asker
    ) -> AsyncIterator[TranslatedText]:
        """As `translate`, each text as soon as it and those before it are done."""
        self.check(texts)
        self.check([job.prefix])
        counter = model.counter()
        segmented = [segment(text, fits=counter.fits, by_sentence=by_sentence) for text in texts]
        waiting = [[_sentence(text, counter, job, asker) for text in one.sentences] for one in segmented]
        everything = [sentence for group in waiting for sentence in group]
        if len(everything) > self.limits.sentences:
            hint = f"send at most {self.limits.sentences:,} sentences in a request"
            raise too_large(f"{len(everything):,} sentences are too many", hint=hint)
        if job.prefix and len(everything) != 1:
            raise invalid("a prefix is of one sentence", hint="send a single sentence", where="prefix")
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit(everything, model)
            for one, group in zip(segmented, waiting, strict=True):
                await self._wait(group, asker=asker, deadline=deadline)
                yield TranslatedText(one, [_translated(sentence) for sentence in group])
        finally:
            _abandon(everything)

    async def look(self, source: str, job: Attend | Vary, model: ServedModel, *, asker: Asker) -> dict[str, Any]:
        """What the worker tells of the words of a single sentence's translation."""
        target = job.target if isinstance(job, Attend) else job.prefix
        self.check([source, target])
        counter = model.counter()
        for name, text in (("text", source), ("translation" if isinstance(job, Attend) else "prefix", target)):
            if not counter.fits(text):
                raise too_large(f"the {name} is too long to look into", hint="send a single sentence", where=name)
        sentence = _sentence(source.strip(), counter, job, asker)
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit([sentence], model)
            await self._wait([sentence], asker=asker, deadline=deadline)
            return sentence.result.result()
        finally:
            _abandon([sentence])

    def _submit(self, sentences: Sequence[Sentence], model: ServedModel) -> None:
        """Queue the sentences; Refused where they could not be done in time, which is better told now than then."""
        if sentences and (refusal := model.crew.refusal) is not None:
            raise refusal
        behind, allowed = model.wait_seconds, self.limits.timeout_seconds
        if behind > allowed:
            message = f"the server is {behind:.0f} s behind, and a request may take {allowed:g} s"
            raise busy(message, retry_after_seconds=min(60, max(1, int(behind / 2))))
        model.batcher.submit(sentences)

    async def _wait(self, group: Sequence[Sentence], *, asker: Asker, deadline: float) -> None:
        """Wait until all are done; the first error among them is raised."""
        if not group:
            return
        results: asyncio.Future[Any] = asyncio.gather(*(sentence.result for sentence in group))
        remaining = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([results, asker.gone], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        if results.done():
            results.result()
            return
        results.cancel()
        with suppress(asyncio.CancelledError):
            await results
        if asker.gone.done():
            raise ClientGone
        raise busy("the translation took too long", retry_after_seconds=max(1, int(self.limits.timeout_seconds / 2)))


def _sentence(text: str, counter: Counter, job: Job, asker: Asker) -> Sentence:
    result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    return Sentence(text, counter.count(text) + 1, job, asker.name, result)


def _translated(sentence: Sentence) -> TranslatedSentence:
    answer = sentence.result.result()
    candidates = [
        Candidate(one["text"], one["score"], one["log_prob"]) for one in (answer, *answer.get("alternatives", ()))
    ]
    return TranslatedSentence(sentence.text, candidates, [list(pair) for pair in answer.get("alignment", ())])


def _abandon(sentences: Sequence[Sentence]) -> None:
    """Want no more answers; errors that nobody looked at are not reported."""
    for sentence in sentences:
        if not sentence.result.cancel() and not sentence.result.cancelled():
            sentence.result.exception()
