"""A served model, with its directions, a tokenizer, a queue and workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nmt_cli.artifacts.directory_kinds import check_is_model, kind_of
from nmt_cli.artifacts.manifest import DAMAGED_HINT, model_digest, verify_files
from nmt_cli.artifacts.model_directory import SavedModelConfig, load_saved_config, load_tokenizer
from nmt_cli.artifacts.run import model_of_run
from nmt_cli.documents.kept_text import find_kept, without_overlaps
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.languages import standard_code
from nmt_cli.recipe.schema import SplitSentences
from nmt_cli.serving.queue import BatchQueue
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.translated_texts import split_text
from nmt_cli.serving.worker_pool import ModelSettings, WorkerPool
from nmt_cli.tokenization.casing import as_sentence
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.sentence_splitting import is_split
from nmt_cli.tokenization.split_text import SplitText
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_TOKENIZER = "source.spm"


class ServedModel:
    """A model of one or more directions. `path` is the directory or run that the user named; a reload reads it again.

    `pairs` has the directions by their standard codes, which need not be the model's own.
    """

    def __init__(self, path: Path, settings: ModelSettings, metrics: ServerMetrics) -> None:
        self.path = path
        self._settings = settings
        files = _read_model(path)
        self._use(files)
        self._reload_lock = asyncio.Lock()
        self.pairs = files.pairs
        self.sources, self.targets = (list(dict.fromkeys(codes)) for codes in zip(*self.pairs, strict=True))
        self.name = "-".join(self.pairs[0]) if len(self.pairs) == 1 else str(files.config.languages)
        metrics.name_model(self.name)
        self.queue = BatchQueue(
            self.name,
            max_tokens=self._max_batch_tokens,
            max_wait_seconds=settings.max_wait_seconds,
            max_sentences=settings.max_queued_sentences,
            metrics=metrics,
        )
        self.pool = WorkerPool(self.queue, settings, metrics, reload=self.reload)
        metrics.workers.labels(self.name).set_function(lambda: self.pool.num_ready)

    async def load(self) -> None:
        """Start its workers."""
        await self.pool.replace_workers(self.directory, await self.pool.start_workers(self.directory, self.digest))
        logger.info("%s: %s is loaded", self.name, self.directory)

    async def reload(self) -> None:
        """Load the model that its path names now, if it is another; on any error the old one stays.

        Reloads wait for each other.
        """
        async with self._reload_lock:
            # All that may fail comes before the workers are replaced. It may take long, and requests do not wait.
            files = await asyncio.to_thread(_read_model, self.path)
            if {*files.pairs} != {*self.pairs}:
                message = f"{files.directory} now translates {files.config.languages}"
                raise UsageError(message, where=str(files.directory), hint="restart nmt serve")
            if (files.directory, files.digest) == (self.directory, self.digest):
                logger.info("%s: %s has not changed", self.name, self.directory)
                return
            workers = await self.pool.start_workers(files.directory, files.digest)
            self._use(files)
            self.queue.max_tokens = self._max_batch_tokens
            await self.pool.replace_workers(files.directory, workers)
            logger.info("%s: %s is loaded in its place", self.name, files.directory)

    @property
    def wait_seconds(self) -> float:
        """Seconds until the workers have done all queued sentences."""
        return self.queue.queued_seconds / max(1, self.pool.num_ready)

    @property
    def max_pieces(self) -> int:
        """The source pieces of the longest sentence that is translated whole."""
        positions = self.config.recipe.model.max_positions - self.config.languages.most_symbols
        # The translator would split longer sentences in its own way.
        return min(self._settings.split_pieces, self.config.recipe.decoding.longest_source(positions))

    def num_pieces(self, text: str) -> int:
        """Source pieces of a text, EOS not counted."""
        return len(self._tokenizer.encode_source([text])[0])

    def as_sentence(self, text: str, kept: Sequence[Range], *, language: str) -> str:
        """The text as the worker writes it for the search, with the same number of characters."""
        ranges, trained = without_overlaps(kept, find_kept(text)), self.config.trained_lines
        return as_sentence(text, ranges, tokenizer=self._tokenizer, language=language, trained=trained).text

    def split(self, block: MarkedText, *, language: str, when: SplitSentences) -> tuple[SplitText, list[int]]:
        """The text of a block in sentences that are translated whole, and the source pieces of each.

        `when` says which lines are split; `auto` leaves that to the model's own setting.
        """
        own = self.config.recipe.decoding.split_sentences if when == "auto" else when
        num_pieces = cache(self.num_pieces)
        split = split_text(
            block.text,
            language,
            kept=block.kept,
            fits=lambda part: num_pieces(part) <= self.max_pieces,
            # Counting the pieces of a whole text takes time.
            is_split=lambda line: is_split(
                line, num_pieces(line) if own == "auto" else 0, when=own, trained=self.config.trained_lines
            ),
        )
        return split, [num_pieces(sentence) for sentence in split.sentences]

    def _use(self, files: _ModelFiles) -> None:
        self.directory, self.digest = files.directory, files.digest
        self.config, self._tokenizer = files.config, files.tokenizer

    @property
    def _max_batch_tokens(self) -> int:
        return self._settings.max_batch_tokens or self.config.recipe.decoding.batch_tokens


@dataclass(frozen=True, slots=True)
class _ModelFiles:
    """The files of a model that the server itself reads."""

    directory: Path
    digest: str
    config: SavedModelConfig
    tokenizer: Tokenizer
    pairs: list[tuple[str, str]]


def _read_model(path: Path) -> _ModelFiles:
    """The model that a directory or run holds now; NmtError if there is none, or it cannot be read."""
    try:
        directory = model_of_run(path) if kind_of(path) == "run" else path
        check_is_model(directory)
        # The digest first: workers that agree with it afterwards have read the same model.
        digest = model_digest(directory)
        config = load_saved_config(directory)
        # Only the file that is read here; each worker verifies all files.
        verify_files(directory, hint=DAMAGED_HINT, names_to_hash=[_TOKENIZER])
        tokenizer = load_tokenizer(directory / _TOKENIZER, num_pieces=config.vocabulary.source)
        pairs = [(standard_code(pair.source), standard_code(pair.target)) for pair in config.languages.offered]
        return _ModelFiles(directory, digest, config, tokenizer, list(dict.fromkeys(pairs)))
    except OSError as error:
        hint = "the user that runs nmt serve must have the right to read it"
        raise ModelError(f"the model cannot be read: {error.strerror}", where=error.filename, hint=hint) from None
