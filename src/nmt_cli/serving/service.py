"""The service behind all APIs: texts of a request to their translations, within limits of size and time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupRules
from nmt_cli.errors import DataError
from nmt_cli.recipe.schema import SplitSentences
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.models import ModelRoute, ModelRouter, ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.request_errors import (
    TIMEOUT,
    ClientGone,
    invalid_request_error,
    server_busy_error,
    shorten,
    too_large_error,
    too_many_error,
)
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.translated_texts import SentText, SplitBlock, TranslatedText, join_sentences
from nmt_cli.serving.worker_model import AttentionTask, NextWordsTask, SearchTask, Sentence, SentenceTask
from nmt_cli.tokenization.sentence_splitting import SplitText

T = TypeVar("T")
logger = logging.getLogger(__name__)

_SHORT_CHARACTERS, _FEW_TEXTS = 500, 8


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
        owner: KeyOwner,
        caller: Caller,
    ) -> list[tuple[TranslatedText, ModelRoute]]:
        """The translation of each text by the model for its language, with how that model was found."""
        plain_texts = [text.plain for text in texts]
        with owner.charged(requests=max(1, len(texts)), characters=sum(map(len, plain_texts))):
            routes = await off_the_loop(
                plain_texts, lambda: [self.models.route(source, target, text=text) for text in plain_texts]
            )
            translations = [text async for text in self.translate(texts, routes, options, caller=caller)]
        return list(zip(translations, routes, strict=True))

    async def reload(self) -> None:
        """Read the keys again and load the models that have changed; what fails is logged, and stays as it was."""
        try:
            await asyncio.to_thread(self.keys.read_again)
        except DataError as error:
            logger.error("the old keys stay: %s; %s", error.message, error.hint)
        await self.models.reload()

    async def translate(
        self, texts: Sequence[SentText], routes: Sequence[ModelRoute], options: SearchOptions, *, caller: Caller
    ) -> AsyncIterator[TranslatedText]:
        """The translation of each text, as soon as it and all texts before it are done.

        A text that is not to be translated is its own translation. ClientGone if the client leaves, RequestError if
        there is no room or time.
        """
        tasks = {model: self.search_task(model, options) for model in dict.fromkeys(route.model for route in routes)}
        blocks_of_texts = await off_the_loop(
            [text.sent for text in texts],
            lambda: [
                [(block, *route.split(block, when=options.split_sentences)) for block in text.blocks]
                for text, route in zip(texts, routes, strict=True)
            ],
        )
        num_sentences = sum(len(split.sentences) for blocks in blocks_of_texts for _, split, _ in blocks)
        if num_sentences > self.limits.sentences:
            raise too_many_error(num_sentences, "sentences", limit=self.limits.sentences)
        if any(task.prefix for task in tasks.values()) and num_sentences != 1:
            raise invalid_request_error("a prefix is of one sentence", hint="send a single sentence", where="prefix")
        queued_texts = [
            _QueuedText(
                text,
                route,
                [SplitBlock(block, split) for block, split, _ in blocks],
                [
                    _queued_sentences(block, split, num_pieces, tasks[route.model], options, caller)
                    for block, split, num_pieces in blocks
                ],
            )
            for text, route, blocks in zip(texts, routes, blocks_of_texts, strict=True)
        ]
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        try:
            for model in tasks:
                of_model = [text.all_sentences for text in queued_texts if text.route.model is model]
                self._submit(list(chain.from_iterable(of_model)), model)
            for text in queued_texts:
                await self._wait(text.all_sentences, caller=caller, deadline=deadline)
                yield await text.joined(alignments=options.alignments)
        finally:
            _abandon([sentence for text in queued_texts for sentence in text.all_sentences])

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
        sentence = _queued_sentence(Sentence(texts[0]), pieces_of_texts[0], task, caller)
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
        answers = [[sentence.result.result() for sentence in of_block] for of_block in self.sentences]
        languages = self.route.model.config.languages
        # To put marks into a long text takes time.
        marked = [block.block.text for block in self.blocks if block.block.marks]
        return await off_the_loop(
            marked, lambda: join_sentences(self.text, self.blocks, answers, languages, alignments=alignments)
        )


def _queued_sentences(
    block: MarkedText,
    split: SplitText,
    num_pieces: Sequence[int],
    task: SearchTask,
    options: SearchOptions,
    caller: Caller,
) -> list[QueuedSentence]:
    is_aligned = options.alignments or bool(block.marks)
    sentences = [
        Sentence(text, tuple(kept), is_aligned)
        for text, kept in zip(split.sentences, split.ranges_by_sentence(block.kept), strict=True)
    ]
    return [
        _queued_sentence(sentence, number, task, caller) for sentence, number in zip(sentences, num_pieces, strict=True)
    ]


def _queued_sentence(sentence: Sentence, num_pieces: int, task: SentenceTask, caller: Caller) -> QueuedSentence:
    return QueuedSentence(sentence, num_pieces + 1, task, caller.name, asyncio.get_running_loop().create_future())


def _abandon(sentences: Sequence[QueuedSentence]) -> None:
    """Cancel the sentences; asyncio then reports none of their errors."""
    for sentence in sentences:
        if not sentence.result.cancel() and not sentence.result.cancelled():
            sentence.result.exception()
