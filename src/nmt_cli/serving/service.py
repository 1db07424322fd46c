"""The service behind all APIs: texts of a request to their translations, within limits of size and time."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.formats import DocumentInBlocks, Limits, read_document
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupRules
from nmt_cli.errors import DataError
from nmt_cli.recipe.schema import SplitSentences
from nmt_cli.serving.document_store import DocumentStore, StoredDocument
from nmt_cli.serving.glossaries import GlossaryStore
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.models import ModelRoute, ModelRouter, ServedModel
from nmt_cli.serving.queue import QueuedSentence
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
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.translated_texts import SentText, SplitBlock, TranslatedText, join_sentences
from nmt_cli.serving.worker_model import AskedSentence, AttentionTask, NextWordsTask, SearchTask, SentenceTask
from nmt_cli.tokenization.split_text import SplitText

T = TypeVar("T")
logger = logging.getLogger(__name__)

_SHORT_CHARACTERS, _FEW_TEXTS = 500, 8
MAX_FILE_BYTES = 10_000_000
"""The largest document."""
_DOCUMENT_LIMITS = Limits(max_bytes=MAX_FILE_BYTES, max_entries=2000, max_unpacked_bytes=10 * MAX_FILE_BYTES)
# A document has so many sentences in the queue at once, and looks again for room after so many seconds.
_PORTION_SENTENCES, _ROOM_SECONDS = 64, 0.2


def _check_not_text(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


# The last annotation of a field of numbers, around its bounds. pydantic alone would read a number from text, and its
# strict mode would refuse 3.0, which is an integer in JSON.
NUMBER = BeforeValidator(_check_not_text)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request; `characters` limits each text, and `requests` the requests in work.

    `timeout_seconds` is the longest time from the last byte of a request to its answer.
    """

    characters: int
    texts: int
    sentences: int
    requests: int
    timeout_seconds: float
    alternatives: int
    beam: int

    @property
    def request_characters(self) -> int:
        """The characters of all texts of a request: clients send 50 texts at once and more."""
        return 10 * self.characters

    @property
    def body_bytes(self) -> int:
        """The longest body: twelve bytes for each character, as if all were escaped, and 64 KB for the rest."""
        return 12 * self.request_characters + 65536


class SearchOptions(BaseModel):
    """How texts are split and searched; settings that are left out are the model's own."""

    nbest: Annotated[int, Field(ge=1, description="translations of each text and sentence; else 1"), NUMBER] = 1
    beam: Annotated[int | None, Field(ge=1, description="width of the search; 1 is greedy"), NUMBER] = None
    length_penalty: Annotated[float | None, Field(ge=0, le=10, allow_inf_nan=False), NUMBER] = None
    max_extra_tokens: Annotated[int | None, Field(ge=0, description="at most the model's own"), NUMBER] = None
    prefix: Annotated[str, Field(description="what the translation of a single sentence begins with")] = ""
    split_sentences: Annotated[
        SplitSentences, Field(description="auto: as in nmt decode; never: a line is cut only if the model needs it")
    ] = "always"
    alignments: Annotated[bool, Field(strict=True, description="which source word each target word was made from")] = (
        False
    )


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
    documents: DocumentStore = field(default_factory=DocumentStore)
    glossaries: GlossaryStore = field(default_factory=GlossaryStore)

    async def read_texts(self, texts: Sequence[str], rules: MarkupRules | None) -> list[SentText]:
        """The texts of a request, with markup or, without rules, plain; RequestError as from `check_texts`.

        Tags do not count as characters.
        """
        _check_unicode(texts)
        sent_texts = await off_the_loop(texts, lambda: [SentText.read(text, rules) for text in texts])
        self.check_texts([text.plain for text in sent_texts])
        return sent_texts

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise RequestError if there are too many texts or characters, or a text is not valid Unicode."""
        lengths = [len(text) for text in texts]
        for number, what, limit in (
            (len(texts), "texts", self.limits.texts),
            (max(lengths, default=0), "characters in a text", self.limits.characters),
            (sum(lengths), "characters", self.limits.request_characters),
        ):
            if number > limit:
                raise too_many_error(number, what, limit=limit)
        _check_unicode(texts)

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
        texts: Sequence[SentText],
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

    async def reload(self) -> None:
        """Read the keys again and load the models that have changed; what fails is logged, and stays as it was."""
        try:
            await asyncio.to_thread(self.keys.read_again)
        except DataError as error:
            logger.error("the old keys stay: %s; %s", error.message, error.hint)
        await self.models.reload()

    async def translate(
        self,
        texts: Sequence[SentText],
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
        queued_texts = await self._split(texts, routes, options, terms=terms, caller=caller)
        num_sentences = sum(len(text.all_sentences) for text in queued_texts)
        if num_sentences > self.limits.sentences:
            raise too_many_error(num_sentences, "sentences", limit=self.limits.sentences)
        if options.prefix.strip() and num_sentences != 1:
            raise invalid_request_error("a prefix is of one sentence", hint="send a single sentence", where="prefix")
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            for model in dict.fromkeys(route.model for route in routes):
                of_model = [text.all_sentences for text in queued_texts if text.route.model is model]
                self._submit(list(chain.from_iterable(of_model)), model)
            for text in queued_texts:
                await self._wait(text.all_sentences, caller=caller, deadline=deadline)
                yield await text.joined(alignments=options.alignments)
        finally:
            _abandon([sentence for text in queued_texts for sentence in text.all_sentences])

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
        text = SentText("\n".join(block.text for block in document.blocks), document.blocks, lambda blocks: "")
        # It counts as the texts that it would be.
        num_requests = max(1, math.ceil(num_characters / self.limits.characters))

        async def translate() -> bytes:
            with charged:
                blocks = await self._translate_in_portions(text, route, terms=terms, caller=caller)
                return await asyncio.to_thread(document.write, blocks)

        self.documents.check_room(owner)
        with ExitStack() as stack:
            stack.enter_context(owner.charged(requests=num_requests, characters=num_characters))
            charged = stack.pop_all()
        target_code = route.model.pair[1]
        return self.documents.start(name, translate(), target=target_code, characters=num_characters, owner=owner)

    def _read_document(
        self, content: bytes, name: str, source: str | None, target: str
    ) -> tuple[DocumentInBlocks, ModelRoute]:
        """The document, and the model for it; its language is detected if none is given."""
        is_given = source is not None and source.strip().lower() not in ("auto", "")
        route = self.models.route(source if is_given else self.models.sources_of(target)[0], target, text="")
        document = read_document(content, name, languages=route.model.config.languages, limits=_DOCUMENT_LIMITS)
        if is_given:
            return document, route
        first, route = route, self.models.route(None, target, text="\n".join(block.text for block in document.blocks))
        if route.model is not first.model:  # some formats hold several languages
            document = read_document(content, name, languages=route.model.config.languages, limits=_DOCUMENT_LIMITS)
        return document, route

    async def _translate_in_portions(
        self, text: SentText, route: ModelRoute, *, terms: TermList | None, caller: Caller
    ) -> list[MarkedText]:
        """The translations of the blocks of a text of any length; it waits for room in the queue, and takes little."""
        (queued,) = await self._split([text], [route], SearchOptions(), terms=terms, caller=caller)
        sentences = queued.all_sentences
        size = min(_PORTION_SENTENCES, self.limits.sentences)
        loop = asyncio.get_running_loop()
        try:
            for start in range(0, len(sentences), size):
                portion, deadline = sentences[start : start + size], loop.time() + self.limits.timeout_seconds
                while True:
                    try:
                        self._submit(portion, route.model)
                        break
                    except RequestError as error:
                        if error.code != BUSY_CODE or loop.time() > deadline:
                            raise
                    await asyncio.wait([caller.gone], timeout=_ROOM_SECONDS)
                    if caller.gone.done():
                        raise ClientGone
                await self._wait(portion, caller=caller, deadline=deadline)
            return await asyncio.to_thread(queued.best_blocks)
        finally:
            _abandon(sentences)

    async def _split(
        self,
        texts: Sequence[SentText],
        routes: Sequence[ModelRoute],
        options: SearchOptions,
        *,
        terms: TermList | None,
        caller: Caller,
    ) -> list[_QueuedText]:
        """The texts in sentences, which are not in the queue yet."""
        tasks = {model: self.search_task(model, options) for model in dict.fromkeys(route.model for route in routes)}
        blocks_of_texts = await off_the_loop(
            [text.sent for text in texts],
            lambda: [
                [
                    _asked_sentences(block, *route.split(block, when=options.split_sentences), options, terms)
                    for block in text.blocks
                ]
                for text, route in zip(texts, routes, strict=True)
            ],
        )
        return [
            _QueuedText(
                text,
                route,
                [block for block, _ in blocks],
                [
                    [_queued_sentence(sentence, number, tasks[route.model], caller) for sentence, number in sentences]
                    for _, sentences in blocks
                ],
            )
            for text, route, blocks in zip(texts, routes, blocks_of_texts, strict=True)
        ]

    async def ask_about_words(
        self, source: str, task: AttentionTask | NextWordsTask, model: ServedModel, *, caller: Caller
    ) -> dict[str, Any]:
        """A worker's answer about single words: next words, or attention."""
        field, target = ("translation", task.target) if isinstance(task, AttentionTask) else ("prefix", task.prefix)
        texts = [source.strip(), target]
        pieces_of_texts = await off_the_loop(texts, lambda: [model.num_pieces(text) for text in texts])
        for name, num_pieces in zip(("text", field), pieces_of_texts, strict=True):
            if num_pieces > model.max_pieces:
                raise too_large_error(f"the {name} is too long to look into", hint="send a single sentence", where=name)
        sentence = _queued_sentence(AskedSentence(texts[0]), pieces_of_texts[0], task, caller)
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            self._submit([sentence], model)
            await self._wait([sentence], caller=caller, deadline=deadline)
            return sentence.result.result()
        finally:
            _abandon([sentence])

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


def _check_unicode(texts: Sequence[str]) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        hint = "send whole characters: a lone surrogate is none"
        raise invalid_request_error("the text holds half a character", hint=hint) from None


async def off_the_loop(texts: Sequence[str], work: Callable[[], T]) -> T:
    """The result of some work on texts: in a thread if they are long, because other requests must not wait for it.

    Work on a short text takes less time than a thread would need to begin it.
    """
    is_short = len(texts) <= _FEW_TEXTS and sum(map(len, texts)) <= _SHORT_CHARACTERS
    return work() if is_short else await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class _QueuedText:
    """A text whose sentences are in the queue, in the lists of its blocks."""

    text: SentText
    route: ModelRoute
    blocks: Sequence[SplitBlock]
    sentences: Sequence[Sequence[QueuedSentence]]

    @property
    def all_sentences(self) -> list[QueuedSentence]:
        return list(chain.from_iterable(self.sentences))

    async def joined(self, *, alignments: bool) -> TranslatedText:
        """The translation, once the sentences are done."""
        # To put marks into a long text takes time.
        marked = [block.block.text for block in self.blocks if block.block.marks]
        languages = self.route.model.config.languages
        return await off_the_loop(
            marked, lambda: join_sentences(self.text, self.blocks, self._answers, languages, alignments=alignments)
        )

    def best_blocks(self) -> list[MarkedText]:
        """The translations of the blocks, once the sentences are done."""
        languages = self.route.model.config.languages
        return [block.translated(answers, languages) for block, answers in zip(self.blocks, self._answers, strict=True)]

    @property
    def _answers(self) -> list[list[dict[str, Any]]]:
        return [[sentence.result.result() for sentence in of_block] for of_block in self.sentences]


def _asked_sentences(
    block: MarkedText, split: SplitText, num_pieces: Sequence[int], options: SearchOptions, terms: TermList | None
) -> tuple[SplitBlock, list[tuple[AskedSentence, int]]]:
    """The block in sentences for a worker, each with its source pieces."""
    is_aligned = options.alignments or bool(block.marks)
    sentences = [
        AskedSentence(text, tuple(kept), _found_terms(text, terms), is_aligned)
        for text, kept in zip(split.sentences, split.ranges_by_sentence(block.kept), strict=True)
    ]
    return SplitBlock(block, split), list(zip(sentences, num_pieces, strict=True))


def _found_terms(text: str, terms: TermList | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = [] if terms is None else terms.find(text)
    return tuple((text[one.start : one.end], one.targets) for one in found)


def _queued_sentence(sentence: AskedSentence, num_pieces: int, task: SentenceTask, caller: Caller) -> QueuedSentence:
    return QueuedSentence(sentence, num_pieces + 1, task, caller.name, asyncio.get_running_loop().create_future())


def _abandon(sentences: Sequence[QueuedSentence]) -> None:
    """Cancel the sentences; asyncio then reports none of their errors."""
    for sentence in sentences:
        if not sentence.result.cancel() and not sentence.result.cancelled():
            sentence.result.exception()
