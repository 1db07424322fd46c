"""Texts whose sentences wait in the queue: cut for it, and put together once the sentences are done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.request_limits import SearchOptions
from nmt_cli.serving.router import ModelRoute
from nmt_cli.serving.translated_texts import Answer, RequestText, SplitBlock, TranslatedText, join_sentences
from nmt_cli.serving.worker_model import AskedSentence, SentenceTask


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request: a name that its requests share, and a future that is done once it disconnects."""

    name: str
    gone: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class AskedBlock:
    """A block in sentences, as a worker is asked for them, with the source pieces of each."""

    split: SplitBlock
    sentences: Sequence[AskedSentence]
    num_pieces: Sequence[int]

    @classmethod
    def of(cls, block: MarkedText, route: ModelRoute, options: SearchOptions, terms: TermList | None) -> AskedBlock:
        """The block as the model of a route takes it; a block that is not to be translated has no sentences."""
        split, num_pieces = route.split(block, when=options.split_sentences)
        is_aligned = options.alignments or bool(block.marks)
        sentences = [
            AskedSentence(text, route.pair, tuple(kept), _found_terms(text, kept, route, options, terms), is_aligned)
            for text, kept in zip(split.sentences, split.ranges_by_sentence(block.kept), strict=True)
        ]
        return cls(SplitBlock(block, split), sentences, num_pieces)


@dataclass(frozen=True, slots=True)
class QueuedText:
    """The blocks of a text, and their sentences for the queue."""

    route: ModelRoute
    blocks: Sequence[SplitBlock]
    sentences: Sequence[Sequence[QueuedSentence]]

    @classmethod
    def of(cls, blocks: Sequence[AskedBlock], route: ModelRoute, task: SentenceTask, caller: Caller) -> QueuedText:
        """The blocks for a caller, with the task for each of their sentences."""
        sentences = [
            [queued_sentence(*one, task, caller) for one in zip(block.sentences, block.num_pieces, strict=True)]
            for block in blocks
        ]
        return cls(route, [block.split for block in blocks], sentences)

    @property
    def all_sentences(self) -> list[QueuedSentence]:
        """The sentences of all blocks."""
        return list(chain.from_iterable(self.sentences))

    def translated(self, text: RequestText, *, alignments: bool) -> TranslatedText:
        """The translation of the text that has these blocks, once the sentences are done."""
        return join_sentences(text, self.blocks, self._answers, self.route.languages, alignments=alignments)

    def best_blocks(self) -> list[MarkedText]:
        """The translations of the blocks, once the sentences are done."""
        languages = self.route.languages
        return [block.translated(answers, languages) for block, answers in zip(self.blocks, self._answers, strict=True)]

    @property
    def _answers(self) -> list[list[Answer]]:
        return [[sentence.result.result() for sentence in of_block] for of_block in self.sentences]


def queued_sentence(sentence: AskedSentence, num_pieces: int, task: SentenceTask, caller: Caller) -> QueuedSentence:
    """The sentence for the queue."""
    return QueuedSentence(sentence, num_pieces + 1, task, caller.name, asyncio.get_running_loop().create_future())


def abandon(sentences: Sequence[QueuedSentence]) -> None:
    """Cancel the sentences; asyncio then reports none of their errors."""
    for sentence in sentences:
        if not sentence.result.cancel() and not sentence.result.cancelled():
            sentence.result.exception()


def _found_terms(
    text: str, kept: Sequence[tuple[int, int]], route: ModelRoute, options: SearchOptions, terms: TermList | None
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The terms in a sentence as the worker writes it for the search: a line in capitals as a sentence."""
    if terms is None:
        return ()
    cased = text if options.prefix.strip() else route.as_sentence(text, kept)
    found = terms.find(text) if cased == text else terms.find_without_case(cased)
    return tuple((one.term, one.targets) for one in found)
