"""The models that are served: each a language pair, its tokenizer for counting, its queue and its workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.bundle.config import DAMAGED, BundleConfig, load_config
from nmt_cli.bundle.directory import model_of_run
from nmt_cli.bundle.kinds import kind_of, require_model
from nmt_cli.bundle.manifest import verify
from nmt_cli.errors import ModelError, NmtError, UsageError
from nmt_cli.serving.batcher import Batcher
from nmt_cli.serving.crew import Crew
from nmt_cli.serving.identity import digest_of
from nmt_cli.serving.jobs import Engine
from nmt_cli.serving.languages import Detected, Detector, match_code
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.refusals import Refused, invalid, shown
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_TOKENIZER = "source.spm"


@dataclass(frozen=True, slots=True)
class Operation:
    """How models are run: workers a model, their engine, and how batches are cut."""

    engine: Engine
    workers: int
    max_batch_tokens: int | None
    max_wait_seconds: float
    queue: int
    batch_timeout_seconds: float
    split_pieces: int


class ServedModel:
    """One language pair. `given` is the directory or run of the command line, looked up again at each swap."""

    def __init__(self, given: Path, operation: Operation, metrics: Metrics) -> None:
        self.given = given
        self._operation = operation
        self._take(_read(model_directory(given)))
        self._swapping = asyncio.Lock()
        self.pair = (self.config.languages.source, self.config.languages.target)
        self.name = "-".join(self.pair)
        metrics.name_model(self.name)
        self.batcher = Batcher(
            self.name,
            max_tokens=self._max_batch_tokens,
            max_wait_seconds=operation.max_wait_seconds,
            max_sentences=operation.queue,
            metrics=metrics,
        )
        self.crew = Crew(
            self.batcher,
            size=operation.workers,
            engine=operation.engine,
            timeout_seconds=operation.batch_timeout_seconds,
            metrics=metrics,
            swap=self.swap,
        )

    async def load(self) -> None:
        """Start its workers."""
        await self.crew.load(self.directory, self.digest)
        logger.info("%s: %s is loaded", self.name, self.directory)

    async def swap(self) -> None:
        """Take what now stands where the model was read, one swap after another; on any error the old one stays."""
        async with self._swapping:
            # All that may fail comes before the workers are replaced.
            found = _read(model_directory(self.given))
            directory, languages = found.directory, found.config.languages
            if (languages.source, languages.target) != self.pair:
                other = f"{languages.source}-{languages.target}"
                raise UsageError(f"{directory} now translates {other}", where=str(directory), hint="restart nmt serve")
            await self.crew.load(directory, found.digest)
            self._take(found)
            self.batcher.max_tokens = self._max_batch_tokens
            logger.info("%s: %s is loaded in its place", self.name, directory)

    @property
    def wait_seconds(self) -> float:
        """How long what waits already will keep the workers."""
        return self.batcher.queued_seconds / max(1, self.crew.num_ready)

    def counter(self) -> Counter:
        """A counter of source pieces, for one request."""
        return Counter(self._tokenizer, self._longest)

    @property
    def _max_batch_tokens(self) -> int:
        return self._operation.max_batch_tokens or self.config.recipe.decoding.batch_tokens

    def _take(self, found: _Found) -> None:
        self.directory, self.digest = found.directory, found.digest
        self.config, self._tokenizer = found.config, found.tokenizer
        config = found.config
        positions, extra = config.recipe.model.max_positions, config.recipe.decoding.max_extra_tokens
        # As much as the translator takes at once: it splits what is longer in its own way.
        self._longest = min(self._operation.split_pieces, positions - max(1, min(extra, positions // 2)))


class Counter:
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


@dataclass(frozen=True, slots=True)
class Route:
    """The model for a request, and the language that was detected if none was given."""

    model: ServedModel
    detected: Detected | None


class Models:
    """All models, found by source and target."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_pair: dict[tuple[str, str], ServedModel] = {}
        for model in models:
            if model.pair in self._by_pair:
                raise UsageError(
                    f"{self._by_pair[model.pair].given} and {model.given} both translate {model.name}",
                    where="--model",
                    hint="give one model for each language pair",
                )
            self._by_pair[model.pair] = model
        self.detector = Detector(tuple(self.sources))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_pair.values())

    @property
    def sources(self) -> list[str]:
        """The codes of the source languages, in the order of the models."""
        return list(dict.fromkeys(source for source, _ in self._by_pair))

    @property
    def targets(self) -> list[str]:
        """The codes of the target languages, in the order of the models."""
        return list(dict.fromkeys(target for _, target in self._by_pair))

    def targets_of(self, source: str) -> list[str]:
        """The target languages of a source language; none where it is only a target."""
        return [target for one, target in self._by_pair if one == source]

    @property
    def are_ready(self) -> bool:
        """Whether each model has a worker."""
        return all(model.crew.num_ready > 0 for model in self._by_pair.values())

    def route(self, source: str | None, target: str | None, *, text: str) -> Route:
        """The model for a source and a target.

        Without a source (None or auto) it is detected in `text`, among those of the models to the target; without a
        target (None) there must be one only.
        """
        if source is None or source.strip().lower() in ("auto", ""):
            detected = self.detect(text, target=target)
            code = detected.code
        else:
            detected = None
            code = _matched(source, self.sources, what="source")
        targets = self.targets_of(code)
        if target is None and len(targets) == 1:
            return Route(self._by_pair[code, targets[0]], detected)
        if target is None:
            raise _without_target(targets, detected)
        _matched(target, self.targets, what="target")
        chosen = match_code(target, targets)
        if chosen is None:
            hint = f"give source and target of one of the models: {', '.join(model.name for model in self)}"
            raise invalid(f"{code} to {shown(target)} is not supported", hint=hint, where="target")
        return Route(self._by_pair[code, chosen], detected)

    def detect(self, text: str, *, target: str | None = None) -> Detected:
        """The language of a text among the sources, or those of them that are translated into the target."""
        if target is None:
            return self.detector.detect(text, among=self.sources)
        _matched(target, self.targets, what="target")
        among = [source for source in self.sources if match_code(target, self.targets_of(source)) is not None]
        return self.detector.detect(text, among=among)

    async def load(self) -> None:
        """Load all of them; NmtError where one cannot be."""
        await asyncio.gather(
            asyncio.to_thread(self.detector.prepare), *(model.load() for model in self._by_pair.values())
        )

    async def swap(self) -> list[NmtError]:
        """Load all of them again, each on its own; what went wrong."""
        logger.info("loading the models again")
        outcomes = await asyncio.gather(*(model.swap() for model in self._by_pair.values()), return_exceptions=True)
        problems = [outcome for outcome in outcomes if isinstance(outcome, NmtError)]
        for problem in problems:
            logger.error("the old model stays: %s; %s", problem.message, problem.hint)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, NmtError):
                raise outcome
        return problems

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(model.crew.close() for model in self._by_pair.values()))


def model_directory(given: Path) -> Path:
    """The model directory that was given, or that of the run; ModelError where there is none."""
    directory = model_of_run(given) if kind_of(given) == "run" else given
    require_model(directory)
    return directory


@dataclass(frozen=True, slots=True)
class _Found:
    """What the server itself knows of a model that stands in a directory."""

    directory: Path
    digest: str
    config: BundleConfig
    tokenizer: Tokenizer


def _read(directory: Path) -> _Found:
    """What stands there; NmtError where it cannot be read."""
    try:
        # The digest first: workers that agree with it afterwards have read the same model.
        digest = digest_of(directory)
        config = load_config(directory)
        # Here only what is read here: each worker checks all.
        verify(directory, error=ModelError, hint=DAMAGED, hashed=[_TOKENIZER])
        return _Found(directory, digest, config, Tokenizer.load(directory / _TOKENIZER))
    except OSError as problem:
        hint = "the user that runs nmt serve must have the right to read it"
        raise ModelError(f"the model cannot be read: {problem.strerror}", where=problem.filename, hint=hint) from None


def _without_target(targets: Sequence[str], detected: Detected | None) -> Refused:
    """Why there is no model, where none of several targets was asked for."""
    message, hint = "the target language is missing", f"give target: one of {', '.join(targets)}"
    if detected is not None and not detected.is_only:
        message += f", and the text was detected as {detected.code}"
        hint += "; or give source, if the text is in another language"
    return invalid(message, hint=hint, where="target")


def _matched(wanted: str, codes: Sequence[str], *, what: str) -> str:
    code = match_code(wanted, codes)
    if code is None:
        raise invalid(f"{shown(wanted)} is not supported", hint=f"{what}: one of {', '.join(codes)}", where=what)
    return code
