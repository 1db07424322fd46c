"""The service behind all APIs: texts of a request to their translations, within limits of size and time."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.formats import DocumentInBlocks, Limits, read_document
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupDocument
from nmt_cli.documents.markup_tokens import MarkupRules
from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.serving.document_store import DocumentStore, StoredDocument
from nmt_cli.serving.glossaries import GlossaryStore
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.queued_texts import Caller, QueuedText, abandon, found_terms, queued_sentence
from nmt_cli.serving.request_errors import (
    BUSY_CODE,
    TIMEOUT,
    ClientGone,
    RequestError,
    invalid_request_error,
    server_busy_error,
    shorten,
    too_large_error,
    too_many_error,
)
from nmt_cli.serving.request_limits import MAX_FILE_BYTES, RequestLimits, SearchOptions
from nmt_cli.serving.router import ModelRoute, ModelRouter, is_source_given
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.translated_texts import TranslatedText, read_text
from nmt_cli.serving.worker_model import AskedSentence, AttentionTask, NextWordsTask, SearchTask
from nmt_cli.text_encoding import wide_encoding

T = TypeVar("T")
logger = logging.getLogger(__name__)

_SHORT_CHARACTERS, _FEW_TEXTS = 500, 8
_DOCUMENT_LIMITS = Limits(max_bytes=MAX_FILE_BYTES, max_entries=2000, max_unpacked_bytes=10 * MAX_FILE_BYTES)
_HEAD_BYTES = 1 << 14  # in which a document names its language
_NAMED_SOURCE = re.compile(
    r"""<(?:xliff|file|header)\b[^>]{0,1000}?\s(?:srcLang|srclang|source-language)\s*=\s*["']([\w-]+)["']"""
)
# A document has so many sentences in the queue at once, and looks again for room after so many seconds.
_PORTION_SENTENCES, _ROOM_SECONDS = 64, 0.2
_RESTART_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Service:
    """The state of a server, which all APIs share."""

    models: ModelRouter
    limits: RequestLimits
    keys: ApiKeys
    metrics: ServerMetrics
    documents: DocumentStore = field(default_factory=DocumentStore)
    glossaries: GlossaryStore = field(default_factory=GlossaryStore)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server ends: documents in work then end after the sentences that are searched."""

    async def read_texts(self, texts: Sequence[str], rules: MarkupRules | None) -> list[MarkupDocument]:
        """The texts of a request, with markup or, without rules, plain; RequestError as from `check_texts`.

        Tags do not count as characters.
        """
        sent_texts = await off_the_loop(texts, lambda: [read_text(text, rules) for text in texts])
        self.check_texts([text.plain for text in sent_texts])
        return sent_texts

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise RequestError if there are too many texts or characters."""
        lengths = [len(text) for text in texts]
        for number, what, limit in (
            (len(texts), "texts", self.limits.texts),
            (max(lengths, default=0), "characters in a text", self.limits.characters),
            (sum(lengths), "characters", self.limits.request_characters),
        ):
            if number > limit:
                raise too_many_error(number, what, limit=limit)

    async def find_route(self, source: str | None, target: str | None, *, text: str) -> ModelRoute:
        """The model for a text, as `ModelRouter.route` finds it."""
        return await off_the_loop([text], partial(self.models.route, source, target, text=text))

    def search_task(self, model: ServedModel, options: SearchOptions) -> SearchTask:
        """The search that a request asks for; RequestError beyond the limits.

        The beam is at least as wide as the number of translations.
        """
        defaults, limits = model.config.recipe.decoding, self.limits
        if options.nbest > limits.alternatives + 1:
            message = f"{shorten(str(options.nbest))} translations are too many"
            raise invalid_request_error(message, hint=f"ask for at most {limits.alternatives + 1}", where="nbest")
        if options.beam is not None and options.beam > limits.beam:
            message = f"a beam of {shorten(str(options.beam))} is too wide"
            raise invalid_request_error(message, hint=f"ask for at most {limits.beam}", where="beam")
        max_extra_tokens = defaults.max_extra_tokens
        if options.max_extra_tokens is not None:
            max_extra_tokens = min(max_extra_tokens, options.max_extra_tokens)
        return SearchTask(
            beam=max(defaults.beam if options.beam is None else options.beam, options.nbest),
            nbest=options.nbest,
            length_penalty=defaults.length_penalty if options.length_penalty is None else options.length_penalty,
            max_extra_tokens=max_extra_tokens,
            prefix=options.prefix.strip(),
        )

    async def translate_each(
        self,
        texts: Sequence[MarkupDocument],
        options: SearchOptions,
        *,
        source: str | None,
        target: str | None,
        terms: TermList | None = None,
        owner: KeyOwner,
        caller: Caller,
    ) -> list[tuple[TranslatedText, ModelRoute]]:
        """The translation of each text by the model for its language, with how that model was found."""
        plain_texts = [text.plain for text in texts]
        with owner.charged(requests=max(1, len(texts)), characters=sum(map(len, plain_texts))):
            routes = await off_the_loop(
                plain_texts, lambda: [self.models.route(source, target, text=text) for text in plain_texts]
            )
            found = self.translate(texts, routes, options, terms=terms, caller=caller)
            translations = [text async for text in found]
        return list(zip(translations, routes, strict=True))

    async def translate(
        self,
        texts: Sequence[MarkupDocument],
        routes: Sequence[ModelRoute],
        options: SearchOptions,
        *,
        terms: TermList | None = None,
        caller: Caller,
    ) -> AsyncIterator[TranslatedText]:
        """The translation of each text, as soon as it and all texts before it are done.

        A text that is not to be translated is its own translation. ClientGone if the client leaves, RequestError if
        there is no room or time.
        """
        blocks = [text.blocks for text in texts]
        queued_texts = await self._split(blocks, routes, options, terms=terms, caller=caller)
        num_sentences = sum(len(text.sentences) for text in queued_texts)
        if num_sentences > self.limits.sentences:
            raise too_many_error(num_sentences, "sentences", limit=self.limits.sentences)
        if options.prefix.strip() and num_sentences != 1:
            raise invalid_request_error("a prefix is of one sentence", hint="send a single sentence", where="prefix")
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            for model in dict.fromkeys(route.model for route in routes):
                of_model = [text.sentences for text in queued_texts if text.route.model is model]
                self._submit(list(chain.from_iterable(of_model)), model)
            for text, queued in zip(texts, queued_texts, strict=True):
                await self._wait(queued.sentences, caller=caller, deadline=deadline)
                # To put marks into a long text takes time.
                marked = [block.text for block in text.blocks if block.marks]
                yield await off_the_loop(marked, partial(queued.translated, text, alignments=options.alignments))
        finally:
            abandon([sentence for text in queued_texts for sentence in text.sentences])

    async def start_document(
        self,
        content: bytes,
        name: str,
        *,
        source: str | None,
        target: str,
        terms: TermList | None = None,
        owner: KeyOwner,
        caller: Caller,
    ) -> StoredDocument:
        """The document in the bytes of a file, whose translation has begun.

        RequestError or DataError if it cannot be read, is too long, or there is no room.
        """
        document, route = await asyncio.to_thread(self._read_document, content, name, source, target)
        num_characters = sum(len(block.text) for block in document.blocks)
        if num_characters > self.limits.request_characters:
            raise too_many_error(num_characters, "characters in a document", limit=self.limits.request_characters)
        # It counts as the texts that it would be.
        num_requests = max(1, math.ceil(num_characters / self.limits.characters))
        with ExitStack() as stack:
            stack.enter_context(owner.charged(requests=num_requests, characters=num_characters))
            self.documents.make_room(owner)
            charged = stack.pop_all()

        async def translate() -> bytes:
            with charged:
                blocks = await self._translate_in_portions(document.blocks, route, terms=terms, caller=caller)
                return await asyncio.to_thread(document.write, blocks)

        return self.documents.start(name, translate(), target=route.target, characters=num_characters, owner=owner)

    def _read_document(
        self, content: bytes, name: str, source: str | None, target: str
    ) -> tuple[DocumentInBlocks, ModelRoute]:
        """The document, and the model for it; its language is detected if neither request nor file names one."""
        sources = self.models.sources_of(target)
        known = source if is_source_given(source) else _named_source(content, sources)
        route = self.models.route(known or sources[0], target, text="")
        try:
            document = read_document(content, name, languages=route.languages, limits=_DOCUMENT_LIMITS)
        except DataError as error:
            if error.setting != "column":
                raise
            hint = "send a table with only the column to translate"
            raise invalid_request_error(error.message, hint=hint, where="file") from None
        if known is not None:
            return document, route
        first, route = route, self.models.route(None, target, text="\n".join(block.text for block in document.blocks))
        if route.pair != first.pair:  # some formats hold several languages
            document = read_document(content, name, languages=route.languages, limits=_DOCUMENT_LIMITS)
        return document, route

    async def _translate_in_portions(
        self, blocks: Sequence[MarkedText], route: ModelRoute, *, terms: TermList | None, caller: Caller
    ) -> list[MarkedText]:
        """The translations of any number of blocks; it waits for room in the queue, and takes little."""
        (queued,) = await self._split([blocks], [route], SearchOptions(), terms=terms, caller=caller)
        sentences = queued.sentences
        size = min(_PORTION_SENTENCES, self.limits.sentences)
        loop = asyncio.get_running_loop()
        try:
            for start in range(0, len(sentences), size):
                portion, room_deadline = sentences[start : start + size], loop.time() + self.limits.timeout_seconds
                while True:
                    if self.ending.is_set():
                        raise server_busy_error("the server is ending", retry_after_seconds=_RESTART_SECONDS)
                    try:
                        self._submit(portion, route.model)
                        break
                    except RequestError as error:
                        if error.code != BUSY_CODE or loop.time() > room_deadline:
                            raise
                    await asyncio.wait([caller.gone], timeout=_ROOM_SECONDS)
                    if caller.gone.done():
                        raise ClientGone
                deadline = loop.time() + self.limits.timeout_seconds
                await self._wait(portion, caller=caller, deadline=deadline)
            return await asyncio.to_thread(queued.best_blocks)
        finally:
            abandon(sentences)

    async def _split(
        self,
        texts: Sequence[Sequence[MarkedText]],
        routes: Sequence[ModelRoute],
        options: SearchOptions,
        *,
        terms: TermList | None,
        caller: Caller,
    ) -> list[QueuedText]:
        """The blocks of texts in sentences, which are not in the queue yet."""
        tasks = {model: self.search_task(model, options) for model in dict.fromkeys(route.model for route in routes)}
        return await off_the_loop(
            [block.text for blocks in texts for block in blocks],
            lambda: [
                QueuedText.of(blocks, route, options, tasks[route.model], terms=terms, caller=caller)
                for blocks, route in zip(texts, routes, strict=True)
            ],
        )

    async def ask_about_words(
        self,
        source: str,
        task: AttentionTask | NextWordsTask,
        route: ModelRoute,
        *,
        terms: TermList | None = None,
        caller: Caller,
    ) -> dict[str, Any]:
        """A worker's answer about single words: next words, or attention."""
        model = route.model
        field, target = ("translation", task.target) if isinstance(task, AttentionTask) else ("prefix", task.prefix)
        texts = [source.strip(), target]
        pieces_of_texts = await off_the_loop(texts, lambda: [model.num_pieces(text) for text in texts])
        for name, num_pieces in zip(("text", field), pieces_of_texts, strict=True):
            if num_pieces > model.max_pieces:
                raise too_large_error(f"the {name} is too long to look into", hint="send a single sentence", where=name)
        found = found_terms(texts[0], (), route, terms)
        asked = AskedSentence(texts[0], route.pair, terms=found)
        sentence = queued_sentence(asked, pieces_of_texts[0], task, caller)
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit([sentence], model)
            await self._wait([sentence], caller=caller, deadline=deadline)
            return sentence.result.result()
        finally:
            abandon([sentence])

    async def reload(self) -> None:
        """Read the keys again and load the models that have changed; what fails is logged, and stays as it was."""
        try:
            await asyncio.to_thread(self.keys.read_again)
        except DataError as error:
            logger.error("the old keys stay: %s; %s", error.message, error.hint)
        await self.models.reload()

    def _submit(self, sentences: Sequence[QueuedSentence], model: ServedModel) -> None:
        """Queue the sentences; RequestError at once if they cannot be done in time."""
        if not sentences:
            return
        if (refusal := model.pool.refusal) is not None:
            raise refusal
        timeout = self.limits.timeout_seconds
        if model.wait_seconds > timeout:
            model.queue.drop_unwanted()
        if (wait := model.wait_seconds) > timeout:
            message = f"the server is {wait:.0f} s behind, and a request may take {timeout:g} s"
            raise server_busy_error(message, retry_after_seconds=min(60, max(1, int(wait / 2))))
        model.queue.submit(sentences)

    async def _wait(self, sentences: Sequence[QueuedSentence], *, caller: Caller, deadline: float) -> None:
        """Wait until all sentences are done; the first error is raised."""
        if not sentences:
            return
        results: asyncio.Future[Any] = asyncio.gather(*(sentence.result for sentence in sentences))
        # asyncio logs an error that nobody reads. If this task is cancelled, nobody else reads it.
        results.add_done_callback(asyncio.Future.exception)
        remaining = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([results, caller.gone], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        if results.done():
            results.result()
        elif caller.gone.done():
            raise ClientGone
        else:
            seconds = max(1, int(self.limits.timeout_seconds / 2))
            raise server_busy_error("the translation took too long", retry_after_seconds=seconds, code=TIMEOUT)


def _named_source(content: bytes, sources: Sequence[str]) -> str | None:
    """The source language that an XLIFF or TMX file names, if it is one of these."""
    head = content[:_HEAD_BYTES]
    named = _NAMED_SOURCE.search(head.decode(wide_encoding(head) or "utf-8", errors="ignore"))
    return named and match_code(named[1], sources)


async def off_the_loop(texts: Sequence[str], work: Callable[[], T]) -> T:
    """The result of some work on texts: in a thread if they are long, because other requests must not wait for it.

    Work on a short text takes less time than a thread would need to begin it.
    """
    is_short = len(texts) <= _FEW_TEXTS and sum(map(len, texts)) <= _SHORT_CHARACTERS
    return work() if is_short else await asyncio.to_thread(work)
