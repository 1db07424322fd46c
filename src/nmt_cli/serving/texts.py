"""Texts of a request to their translations: limits, sentences, the queue, the time limit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nmt_cli.serving.errors import ClientGone, invalid_request, server_busy, too_large, too_many_texts
from nmt_cli.serving.models import PieceCounter, ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.settings import RequestLimits
from nmt_cli.serving.workers.messages import AttentionJob, Job, NextWordsJob, SearchJob
from nmt_cli.tokenization.segmentation import split_line, split_sentences

_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
# Characters that mean nothing in a sentence; the model is given a space.
_CONTROL = {code: " " for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request: a name that its requests share, and a future that is done once it disconnects."""

    name: str
    gone: asyncio.Future[None]


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

    segmented: SplitText
    sentences: list[TranslatedSentence]

    @property
    def text(self) -> str:
        """The translation, with the whitespace of the source."""
        return self.segmented.join([sentence.candidates[0].text for sentence in self.sentences])

    @property
    def candidates(self) -> list[TextCandidate]:
        """Whole translations, best first: the best of all sentences, the second best of all, and so on."""
        if not self.sentences:
            return [TextCandidate(self.text, 0.0, 0.0)]
        ranks = zip(*(sentence.candidates for sentence in self.sentences), strict=False)
        return [
            TextCandidate(
                self.segmented.join([candidate.text for candidate in rank]),
                sum(candidate.score for candidate in rank),
                sum(candidate.log_prob for candidate in rank),
            )
            for rank in ranks
        ]


class TextTranslator:
    """Translates the texts of a request, within the limits."""

    def __init__(self, limits: RequestLimits) -> None:
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
    ) -> SearchJob:
        """The search for a request; RequestError beyond the limits. Settings that are None are the model's own.

        The beam is at least as wide as the number of translations.
        """
        own = model.config.recipe.decoding
        limit = self.limits.alternatives + 1
        if nbest > limit:
            raise invalid_request(f"{nbest} translations are too many", hint=f"ask for at most {limit}", where="nbest")
        if beam is not None and beam > self.limits.beam:
            raise invalid_request(
                f"a beam of {beam} is too wide", hint=f"ask for at most {self.limits.beam}", where="beam"
            )
        return SearchJob(
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
        """Raise RequestError if there are too many texts or characters, or a text is not valid Unicode."""
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
                raise invalid_request("the text holds half a character", hint=hint) from None

    async def translate(
        self, texts: Sequence[str], model: ServedModel, job: SearchJob, *, by_sentence: bool, caller: Caller
    ) -> list[TranslatedText]:
        """The translation of each text; ClientGone if the client leaves, RequestError if there is no room or time."""
        return [text async for text in self.stream(texts, model, job, by_sentence=by_sentence, caller=caller)]

    async def stream(
        self, texts: Sequence[str], model: ServedModel, job: SearchJob, *, by_sentence: bool, caller: Caller
    ) -> AsyncIterator[TranslatedText]:
        """The same as `translate`, but each text comes as soon as it and all texts before it are done."""
        self.check(texts)
        self.check([job.prefix])
        counter = model.counter()
        segmented = [segment_text(text, fits=counter.fits, by_sentence=by_sentence) for text in texts]
        waiting = [[_sentence(text, counter, job, caller) for text in one.sentences] for one in segmented]
        everything = [sentence for group in waiting for sentence in group]
        if len(everything) > self.limits.sentences:
            hint = f"send at most {self.limits.sentences:,} sentences in a request"
            raise too_large(f"{len(everything):,} sentences are too many", hint=hint)
        if job.prefix and len(everything) != 1:
            raise invalid_request("a prefix is of one sentence", hint="send a single sentence", where="prefix")
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit(everything, model)
            for one, group in zip(segmented, waiting, strict=True):
                await self._wait(group, caller=caller, deadline=deadline)
                yield TranslatedText(one, [_translated_sentence(sentence) for sentence in group])
        finally:
            _abandon(everything)

    async def look(
        self, source: str, job: AttentionJob | NextWordsJob, model: ServedModel, *, caller: Caller
    ) -> dict[str, Any]:
        """A worker's answer about single words: next words, or attention."""
        target = job.target if isinstance(job, AttentionJob) else job.prefix
        self.check([source, target])
        counter = model.counter()
        for name, text in (("text", source), ("translation" if isinstance(job, AttentionJob) else "prefix", target)):
            if not counter.fits(text):
                raise too_large(f"the {name} is too long to look into", hint="send a single sentence", where=name)
        sentence = _sentence(source.strip(), counter, job, caller)
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit([sentence], model)
            await self._wait([sentence], caller=caller, deadline=deadline)
            return sentence.result.result()
        finally:
            _abandon([sentence])

    def _submit(self, sentences: Sequence[QueuedSentence], model: ServedModel) -> None:
        """Queue the sentences; RequestError at once if they cannot be done in time."""
        if sentences and (refusal := model.pool.refusal) is not None:
            raise refusal
        behind, allowed = model.wait_seconds, self.limits.timeout_seconds
        if behind > allowed:
            model.queue.drop_unwanted()
            behind = model.wait_seconds
        if behind > allowed:
            message = f"the server is {behind:.0f} s behind, and a request may take {allowed:g} s"
            raise server_busy(message, retry_after_seconds=min(60, max(1, int(behind / 2))))
        model.queue.submit(sentences)

    async def _wait(self, group: Sequence[QueuedSentence], *, caller: Caller, deadline: float) -> None:
        """Wait until all sentences are done; the first error is raised."""
        if not group:
            return
        first = group[0].result
        results: asyncio.Future[Any] = first if len(group) == 1 else asyncio.gather(*(one.result for one in group))
        remaining = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([results, caller.gone], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        if results.done():
            results.result()
            return
        results.cancel()
        with suppress(asyncio.CancelledError):
            await results
        if caller.gone.done():
            raise ClientGone
        raise server_busy(
            "the translation took too long", retry_after_seconds=max(1, int(self.limits.timeout_seconds / 2))
        )


def _sentence(text: str, counter: PieceCounter, job: Job, caller: Caller) -> QueuedSentence:
    result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    return QueuedSentence(text, counter.count(text) + 1, job, caller.name, result)


def _translated_sentence(sentence: QueuedSentence) -> TranslatedSentence:
    answer = sentence.result.result()
    candidates = [
        TextCandidate(one["text"], one["score"], one["log_prob"]) for one in (answer, *answer.get("alternatives", ()))
    ]
    return TranslatedSentence(sentence.text, candidates, [list(pair) for pair in answer.get("alignment", ())])


def _abandon(sentences: Sequence[QueuedSentence]) -> None:
    """Cancel the sentences; asyncio then reports none of their errors."""
    for sentence in sentences:
        if not sentence.result.cancel() and not sentence.result.cancelled():
            sentence.result.exception()


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


def segment_text(text: str, *, fits: Callable[[str], bool], by_sentence: bool) -> SplitText:
    """`text` cut at its line breaks, if `by_sentence` after each sentence, and further if a part does not fit."""
    sentences: list[str] = []
    gaps = [""]
    for part in _LINE_BREAK.split(text):
        line = part.translate(_CONTROL) if not part.isspace() else part
        if not line.strip():
            gaps[-1] += part
            continue
        for piece in _pieces(line, fits, by_sentence=by_sentence):
            sentence = piece.strip()
            before, _, after = piece.partition(sentence) if sentence else (piece, "", "")
            gaps[-1] += before
            if sentence:
                sentences.append(sentence)
                gaps.append(after)
    return SplitText(sentences, gaps)


def _pieces(line: str, fits: Callable[[str], bool], *, by_sentence: bool) -> list[str]:
    pieces = []
    for sentence in split_sentences(line) if by_sentence else [line]:
        is_short = fits(sentence.strip())
        pieces += [sentence] if is_short else split_line(sentence, fits=lambda text: fits(text.strip()))
    return pieces
