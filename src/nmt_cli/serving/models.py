"""Served models: each has a language pair, a tokenizer that counts, a queue and workers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.artifacts.manifest import DAMAGED, kind_of, model_digest, require_model, verify_files
from nmt_cli.artifacts.model_directory import SavedModelConfig, load_saved_config, model_of_run
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.queue import BatchQueue
from nmt_cli.serving.settings import ModelSettings
from nmt_cli.serving.workers.pool import WorkerPool
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_TOKENIZER = "source.spm"


class ServedModel:
    """One language pair. `given` is the directory or run of the command line, looked up again at each swap."""

    def __init__(self, given: Path, settings: ModelSettings, metrics: ServerMetrics) -> None:
        self.given = given
        self._settings = settings
        self._take(_read_model_files(model_directory(given)))
        self._swapping = asyncio.Lock()
        self.pair = (self.config.languages.source, self.config.languages.target)
        self.name = "-".join(self.pair)
        metrics.name_model(self.name)
        self.queue = BatchQueue(
            self.name,
            max_tokens=self._max_batch_tokens,
            max_wait_seconds=settings.max_wait_seconds,
            max_sentences=settings.queue,
            metrics=metrics,
        )
        self.pool = WorkerPool(
            self.queue,
            size=settings.workers,
            engine=settings.engine,
            timeout_seconds=settings.batch_timeout_seconds,
            metrics=metrics,
            swap=self.swap,
        )

    async def load(self) -> None:
        """Start its workers."""
        await self.pool.load(self.directory, self.digest)
        logger.info("%s: %s is loaded", self.name, self.directory)

    async def swap(self) -> None:
        """Load the model that its path names now; on any error the old one stays. Swaps wait for each other."""
        async with self._swapping:
            # All that may fail comes before the workers are replaced.
            found = _read_model_files(model_directory(self.given))
            directory, languages = found.directory, found.config.languages
            if (languages.source, languages.target) != self.pair:
                other = f"{languages.source}-{languages.target}"
                raise UsageError(f"{directory} now translates {other}", where=str(directory), hint="restart nmt serve")
            await self.pool.load(directory, found.digest)
            self._take(found)
            self.queue.max_tokens = self._max_batch_tokens
            logger.info("%s: %s is loaded in its place", self.name, directory)

    @property
    def wait_seconds(self) -> float:
        """Seconds until the workers have done all queued sentences."""
        return self.queue.queued_seconds / max(1, self.pool.num_ready)

    def counter(self) -> PieceCounter:
        """A counter of source pieces, for one request."""
        return PieceCounter(self._tokenizer, self._longest)

    @property
    def _max_batch_tokens(self) -> int:
        return self._settings.max_batch_tokens or self.config.recipe.decoding.batch_tokens

    def _take(self, found: _ModelFiles) -> None:
        self.directory, self.digest = found.directory, found.digest
        self.config, self._tokenizer = found.config, found.tokenizer
        config = found.config
        positions, extra = config.recipe.model.max_positions, config.recipe.decoding.max_extra_tokens
        # The translator would split longer sentences in its own way.
        self._longest = min(self._settings.split_pieces, positions - max(1, min(extra, positions // 2)))


class PieceCounter:
    """Counts the source pieces of texts, of each text once."""

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._counted: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Source pieces of a text, EOS not counted."""
        if text not in self._counted:
            self._counted[text] = len(self._tokenizer.encode([text])[0])
        return self._counted[text]

    def fits(self, text: str) -> bool:
        """Whether the model takes the text as one sentence."""
        return self.count(text) <= self._longest


def model_directory(given: Path) -> Path:
    """The given model directory, or the model of the given run; ModelError if there is none."""
    directory = model_of_run(given) if kind_of(given) == "run" else given
    require_model(directory)
    return directory


@dataclass(frozen=True, slots=True)
class _ModelFiles:
    """The files of a model that the server itself reads."""

    directory: Path
    digest: str
    config: SavedModelConfig
    tokenizer: Tokenizer


def _read_model_files(directory: Path) -> _ModelFiles:
    """The model that the directory holds now; NmtError if it cannot be read."""
    try:
        # The digest first: workers that agree with it afterwards have read the same model.
        digest = model_digest(directory)
        config = load_saved_config(directory)
        # Only the file that is read here; each worker verifies all files.
        verify_files(directory, error=ModelError, hint=DAMAGED, hashed=[_TOKENIZER])
        return _ModelFiles(directory, digest, config, Tokenizer.load(directory / _TOKENIZER))
    except OSError as problem:
        hint = "the user that runs nmt serve must have the right to read it"
        raise ModelError(f"the model cannot be read: {problem.strerror}", where=problem.filename, hint=hint) from None
