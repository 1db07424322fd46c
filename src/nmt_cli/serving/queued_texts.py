"""Texts whose sentences wait in the queue: cut for it, and put together once the sentences are done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupDocument
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.request_limits import SearchOptions
from nmt_cli.serving.router import ModelRoute
from nmt_cli.serving.translated_texts import (
    Answer,
    SplitBlock,
    TranslatedText,
    join_sentences,
    translated_blocks,
)
from nmt_cli.serving.worker_model import AskedSentence, SentenceTask


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request: a name that its requests share, and a future that is done once it disconnects."""

    name: str
    gone: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class QueuedText:
    """The blocks of a text, and all their sentences for the queue."""

    route: ModelRoute
    blocks: Sequence[SplitBlock]
    sentences: Sequence[QueuedSentence]

    @classmethod
    def of(
        cls,
        blocks: Sequence[MarkedText],
        route: ModelRoute,
        options: SearchOptions,
        task: SentenceTask,
        *,
        terms: TermList | None,
        caller: Caller,
    ) -> QueuedText:
        """The blocks as the model of a route takes them, with the task for each of their sentences.

        A text that is not to be translated has no sentences.
        """
        split_blocks: list[SplitBlock] = []
        sentences: list[QueuedSentence] = []
        for block in blocks:
            split, counts = route.split(block, when=options.split_sentences)
            split_blocks.append(SplitBlock(block, split))
            is_aligned = options.alignments or bool(block.marks)
            for text, kept, num_pieces in zip(split.sentences, split.kept_by_sentence(), counts, strict=True):
                found = found_terms(text, kept, route, terms)
                asked = AskedSentence(text, route.pair, tuple(kept), found, is_aligned)
                sentences.append(queued_sentence(asked, num_pieces, task, caller))
        return cls(route, split_blocks, sentences)

    def translated(self, text: MarkupDocument, *, alignments: bool) -> TranslatedText:
        """The translation of the text that has these blocks, once the sentences are done."""
        return join_sentences(text, self.blocks, self._answers, self.route.languages, alignments=alignments)

    def best_blocks(self) -> list[MarkedText]:
        """The translations of the blocks, once the sentences are done."""
        return translated_blocks(self.blocks, self._answers, self.route.languages)

    @property
    def _answers(self) -> list[Answer]:
        return [sentence.result.result() for sentence in self.sentences]


def queued_sentence(sentence: AskedSentence, num_pieces: int, task: SentenceTask, caller: Caller) -> QueuedSentence:
    """The sentence for the queue."""
    return QueuedSentence(sentence, num_pieces + 1, task, caller.name, caller.gone.get_loop().create_future())


def abandon(sentences: Sequence[QueuedSentence]) -> None:
    """Cancel the sentences; asyncio then reports none of their errors."""
    for sentence in sentences:
        if not sentence.result.cancel() and not sentence.result.cancelled():
            sentence.result.exception()


def found_terms(
    text: str, kept: Sequence[tuple[int, int]], route: ModelRoute, terms: TermList | None
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The terms in a sentence; those of a line in capitals are found without case."""
    if terms is None:
        return ()
    cased = route.model.as_sentence(text, kept, language=route.pair[0])
    found = terms.find(text) if cased == text else terms.find_without_case(cased)
    return tuple((one.term, one.targets) for one in found)
