"""The service behind all APIs: texts of a request to their translations, within limits of size and time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from nmt_cli.errors import DataError, NmtError
from nmt_cli.serving.errors import ClientGone, invalid_request, server_busy, shortened, too_large, too_many_texts
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.models import ModelRoute, ModelRouter, ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.texts import TextCandidate, TranslatedSentence, TranslatedText, split_text
from nmt_cli.serving.worker_model import AttentionTask, NextWordsTask, SearchTask, SentenceTask

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request; `requests` limits the requests in work.

    `timeout_seconds` is the longest time from the last byte of a request to its answer. A client may take as long to
    send a request.
    """

    characters: int
    texts: int
    sentences: int
    requests: int
    timeout_seconds: float
    alternatives: int
    beam: int

    @property
    def body_bytes(self) -> int:
        """The longest body: twelve bytes for each character, as if all were escaped, and 64 KB for the rest."""
        return 12 * self.characters + 65536


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request: a name that its requests share, and a future that is done once it disconnects."""

    name: str
    gone: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Service:
    """The state of a server, which all APIs share."""

    models: ModelRouter
    limits: RequestLimits
    keys: ApiKeys
    metrics: ServerMetrics

    def check(self, texts: Sequence[str]) -> None:
        """Raise RequestError if there are too many texts or characters, or a text is not valid Unicode."""
        if len(texts) > self.limits.texts:
            raise too_many_texts(len(texts), most=self.limits.texts)
        characters = sum(map(len, texts))
        if characters > self.limits.characters:
            hint = f"send at most {self.limits.characters:,} characters in a request"
            raise too_large(f"{characters:,} characters are too many", hint=hint)
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            hint = "send whole characters: a lone surrogate is none"
            raise invalid_request("the text holds half a character", hint=hint) from None

    def search_task(
        self,
        model: ServedModel,
        *,
        nbest: int = 1,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_extra_tokens: int | None = None,
        prefix: str = "",
        alignments: bool = False,
    ) -> SearchTask:
        """The search for a request; RequestError beyond the limits. Settings that are None are the model's own.

        The beam is at least as wide as the number of translations.
        """
        own, limits = model.config.recipe.decoding, self.limits
        if nbest > limits.alternatives + 1:
            hint = f"ask for at most {limits.alternatives + 1}"
            raise invalid_request(f"{shortened(str(nbest))} translations are too many", hint=hint, where="nbest")
        if beam is not None and beam > limits.beam:
            hint = f"ask for at most {limits.beam}"
            raise invalid_request(f"a beam of {shortened(str(beam))} is too wide", hint=hint, where="beam")
        longest = own.max_extra_tokens
        return SearchTask(
            beam=max(own.beam if beam is None else beam, nbest),
            nbest=nbest,
            length_penalty=own.length_penalty if length_penalty is None else length_penalty,
            max_extra_tokens=longest if max_extra_tokens is None else min(max_extra_tokens, longest),
            prefix=prefix.strip(),
            alignments=alignments,
        )

    async def translate_each(
        self,
        texts: Sequence[str],
        *,
        source: str | None,
        target: str | None,
        nbest: int,
        by_sentence: bool,
        owner: KeyOwner,
        caller: Caller,
    ) -> list[tuple[TranslatedText, ModelRoute]]:
        """The translation of each text by the model for its language, with how that model was found."""
        self.check(texts)
        with owner.charged(max(1, len(texts))):
            routes = [self.models.route(source, target, text=text) for text in texts]
            groups: dict[ServedModel, list[int]] = {}
            for place, route in enumerate(routes):
                groups.setdefault(route.model, []).append(place)
            calls = [
                self.translate(
                    [texts[place] for place in places],
                    model,
                    self.search_task(model, nbest=nbest),
                    by_sentence=by_sentence,
                    caller=caller,
                )
                for model, places in groups.items()
            ]
            # Almost always there is a single call, which needs no task.
            found = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        owner.characters += sum(map(len, texts))
        of_model = {model: iter(translated) for model, translated in zip(groups, found, strict=True)}
        return [(next(of_model[route.model]), route) for route in routes]

    async def reload(self) -> list[NmtError]:
        """Read the keys and load the models again; the errors, which say what stays as it was."""
        problems: list[NmtError] = []
        try:
            await asyncio.to_thread(self.keys.read_again)
        except DataError as problem:
            problem.message = f"the old keys stay: {problem.message}"
            logger.error("%s; %s", problem.message, problem.hint)
            problems.append(problem)
        return problems + await self.models.reload()

    async def translate(
        self, texts: Sequence[str], model: ServedModel, task: SearchTask, *, by_sentence: bool, caller: Caller
    ) -> list[TranslatedText]:
        """The translation of each text; ClientGone if the client leaves, RequestError if there is no room or time."""
        return [text async for text in self.stream(texts, model, task, by_sentence=by_sentence, caller=caller)]

    async def stream(
        self, texts: Sequence[str], model: ServedModel, task: SearchTask, *, by_sentence: bool, caller: Caller
    ) -> AsyncIterator[TranslatedText]:
        """The same as `translate`, but each text comes as soon as it and all texts before it are done."""
        self.check(texts)
        self.check([task.prefix])
        num_pieces = cache(model.num_pieces)
        split = [
            split_text(text, fits=lambda part: num_pieces(part) <= model.max_pieces, by_sentence=by_sentence)
            for text in texts
        ]
        waiting = [[_queued(text, num_pieces(text), task, caller) for text in one.sentences] for one in split]
        everything = [sentence for group in waiting for sentence in group]
        if len(everything) > self.limits.sentences:
            hint = f"send at most {self.limits.sentences:,} sentences in a request"
            raise too_large(f"{len(everything):,} sentences are too many", hint=hint)
        if task.prefix and len(everything) != 1:
            raise invalid_request("a prefix is of one sentence", hint="send a single sentence", where="prefix")
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit(everything, model)
            for one, group in zip(split, waiting, strict=True):
                await self._wait(group, caller=caller, deadline=deadline)
                yield TranslatedText(one, [_translated_sentence(sentence) for sentence in group])
        finally:
            _abandon(everything)

    async def ask_about_words(
        self, source: str, task: AttentionTask | NextWordsTask, model: ServedModel, *, caller: Caller
    ) -> dict[str, Any]:
        """A worker's answer about single words: next words, or attention."""
        name, target = ("translation", task.target) if isinstance(task, AttentionTask) else ("prefix", task.prefix)
        self.check([source, target])
        for field, text in (("text", source), (name, target)):
            if model.num_pieces(text) > model.max_pieces:
                raise too_large(f"the {field} is too long to look into", hint="send a single sentence", where=field)
        sentence = _queued(source.strip(), model.num_pieces(source.strip()), task, caller)
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
        seconds = max(1, int(self.limits.timeout_seconds / 2))
        raise server_busy("the translation took too long", retry_after_seconds=seconds)


def _queued(text: str, num_pieces: int, task: SentenceTask, caller: Caller) -> QueuedSentence:
    return QueuedSentence(text, num_pieces + 1, task, caller.name, asyncio.get_running_loop().create_future())


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
