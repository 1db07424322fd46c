"""Served models, each with a language pair, a tokenizer, a queue and workers; and the model for a text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeGuard

from nmt_cli.artifacts.directory_kinds import check_is_model, kind_of
from nmt_cli.artifacts.manifest import DAMAGED_HINT, model_digest, verify_files
from nmt_cli.artifacts.model_directory import SavedModelConfig, load_saved_config, load_tokenizer
from nmt_cli.artifacts.run import model_of_run
from nmt_cli.documents.kept_text import find_kept, without_overlaps
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.errors import ModelError, NmtError, UsageError
from nmt_cli.languages import (
    IDENTIFIED_CHARACTERS,
    DetectedLanguage,
    detect_language,
    identify_language,
    identify_other,
    in_script_of,
    match_code,
    standard_code,
)
from nmt_cli.recipe.schema import SplitSentences
from nmt_cli.serving.queue import BatchQueue
from nmt_cli.serving.request_errors import RequestError, invalid_request_error, shorten
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.translated_texts import split_text
from nmt_cli.serving.worker_pool import ModelSettings, WorkerPool
from nmt_cli.tokenization.casing import as_sentence
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.sentence_splitting import is_split
from nmt_cli.tokenization.split_text import SplitText, has_letters
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_TOKENIZER = "source.spm"
_LEAST_UNCHANGED = 0.9  # probability that a text is in the target's language already


class ServedModel:
    """One language pair. `path` is the model directory or run that the user named; each reload looks it up again."""

    def __init__(self, path: Path, settings: ModelSettings, metrics: ServerMetrics) -> None:
        self.path = path
        self._settings = settings
        files = _read_model(path)
        self._use(files)
        self._reload_lock = asyncio.Lock()
        self.pair = files.pair
        self.name = "-".join(self.pair)
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
            if files.pair != self.pair:
                message = f"{files.directory} now translates {'-'.join(files.pair)}"
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
        max_positions = self.config.recipe.model.max_positions
        extra_tokens = min(self.config.recipe.decoding.max_extra_tokens, max_positions // 2)
        # The translator would split longer sentences in its own way.
        return min(self._settings.split_pieces, max_positions - max(1, extra_tokens))

    def num_pieces(self, text: str) -> int:
        """Source pieces of a text, EOS not counted."""
        return len(self._tokenizer.encode_raw([text])[0])

    def as_sentence(self, text: str, kept: Sequence[Range]) -> str:
        """The text as the worker writes it for the search, with the same number of characters."""
        ranges = without_overlaps(kept, find_kept(text))
        language, trained = self.config.languages.pairs[0].source, self.config.trained_lines
        return as_sentence(text, ranges, tokenizer=self._tokenizer, language=language, trained=trained).text

    def split(self, block: MarkedText, *, when: SplitSentences) -> tuple[SplitText, list[int]]:
        """The text of a block in sentences that are translated whole, and the source pieces of each.

        `when` says which lines are split; `auto` leaves that to the model's own setting.
        """
        own = self.config.recipe.decoding.split_sentences if when == "auto" else when
        num_pieces = cache(self.num_pieces)
        split = split_text(
            block.text,
            self.pair[0],
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

    @property
    def pair(self) -> tuple[str, str]:
        (pair,) = self.config.languages.pairs
        return standard_code(pair.source), standard_code(pair.target)


def _read_model(path: Path) -> _ModelFiles:
    """The model that a directory or run holds now; NmtError if there is none, or it cannot be read."""
    try:
        directory = model_of_run(path) if kind_of(path) == "run" else path
        check_is_model(directory)
        # The digest first: workers that agree with it afterwards have read the same model.
        digest = model_digest(directory)
        config = load_saved_config(directory)
        # Only the file that is read here; each worker verifies all files.
        verify_files(directory, error=ModelError, hint=DAMAGED_HINT, names_to_hash=[_TOKENIZER])
        tokenizer = load_tokenizer(directory / _TOKENIZER, num_pieces=config.vocabulary.source)
        return _ModelFiles(directory, digest, config, tokenizer)
    except OSError as error:
        hint = "the user that runs nmt serve must have the right to read it"
        raise ModelError(f"the model cannot be read: {error.strerror}", where=error.filename, hint=hint) from None


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The model for a text, and the language that was detected if none was given."""

    model: ServedModel
    detected: DetectedLanguage | None

    @property
    def source(self) -> str:
        """The code of the text's language."""
        return self.model.pair[0] if self.detected is None else self.detected.code

    @property
    def is_translated(self) -> bool:
        """False if the text is in the target's language already."""
        return self.source == self.model.pair[0]

    def split(self, block: MarkedText, *, when: SplitSentences) -> tuple[SplitText, list[int]]:
        """The text of a block as its model splits it; a text that is not translated has no sentences."""
        return self.model.split(block, when=when) if self.is_translated else (SplitText([], [block.text]), [])


class ModelRouter:
    """All served models, and the choice of the model for a text."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_pair: dict[tuple[str, str], ServedModel] = {}
        for model in models:
            if model.pair in self._by_pair:
                message = f"{self._by_pair[model.pair].path} and {model.path} both translate {model.name}"
                raise UsageError(message, setting="model", hint="give one model for each language pair")
            self._by_pair[model.pair] = model

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
        """The target languages of a source language; empty if it is only a target."""
        return [target for model_source, target in self._by_pair if model_source == source]

    def sources_of(self, target: str) -> list[str]:
        """The source languages of a target; RequestError if nothing is translated into it."""
        code = _matching_code(target, self.targets, name="target")
        return [source for source, model_target in self._by_pair if model_target == code]

    @property
    def are_ready(self) -> bool:
        """Whether each model has a worker."""
        return all(model.pool.num_ready > 0 for model in self)

    def route(self, source: str | None, target: str | None, *, text: str) -> ModelRoute:
        """The model for a source and a target.

        Without a source (None or auto), the language of `text` is detected among the sources of the models to the
        target, and the target's own language. Without a target (None), there must be a single one.
        """
        detected = None
        if not is_source_given(source):
            if target is not None:
                _matching_code(target, self.targets, name="target")
            models = [model for model in self if target is None or match_code(target, [model.pair[1]]) is not None]
            detected = _detect_source(text, models)
            code = detected.code
            if code not in self.sources and target is None and len(self.targets) > 1:
                raise _missing_target_error(self.targets, detected)
            if code not in [model.pair[0] for model in models]:
                return ModelRoute(next(model for model in models if model.pair[1] == code), detected)
        else:
            code = _matching_code(source, self.sources, name="source")
        targets = self.targets_of(code)
        if target is None:
            if len(targets) > 1:
                raise _missing_target_error(targets, detected)
            return ModelRoute(self._by_pair[code, targets[0]], detected)
        _matching_code(target, self.targets, name="target")
        target_code = match_code(target, targets)
        if target_code is None:
            hint = f"give source and target of one of the models: {', '.join(model.name for model in self)}"
            raise invalid_request_error(f"{code} to {shorten(target)} is not supported", hint=hint, where="target")
        return ModelRoute(self._by_pair[code, target_code], detected)

    def detect(self, text: str) -> DetectedLanguage:
        """The language of a text among the languages of all models, or any language if it clearly is in another one.

        The first source with a confidence of 0 stands for a text that does not say its language.
        """
        return _detect(text, [*self]) or identify_language(text) or DetectedLanguage(self.sources[0], 0.0)

    async def load(self) -> None:
        """Load all models; NmtError if one cannot be loaded."""
        try:
            async with asyncio.TaskGroup() as group:  # on an error, it waits until all workers have ended
                for model in self:
                    group.create_task(model.load())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        await asyncio.to_thread(identify_language, "text")  # loads its own model

    async def reload(self) -> None:
        """Load the models that have changed, one after another; a model whose load fails stays as it is."""
        for model in self:
            (problem,) = await asyncio.gather(model.reload(), return_exceptions=True)
            if isinstance(problem, NmtError):
                logger.error("the old model stays: %s; %s", problem.message, problem.hint)
            elif isinstance(problem, Exception):
                logger.error("the old model stays: an unexpected error in nmt", exc_info=problem)
            elif problem is not None:
                raise problem

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(model.pool.close() for model in self))


def is_source_given(source: str | None) -> TypeGuard[str]:
    """Whether a request names the source; if not (None or auto), it is detected."""
    return source is not None and source.strip().lower() not in ("auto", "")


def _detect_source(text: str, models: Sequence[ServedModel]) -> DetectedLanguage:
    """The language of a text: one that the models translate, or the target's own; RequestError for another one."""
    found = _detect(text, models)
    if found is None or found.code not in chain.from_iterable(model.pair for model in models):
        raise _untranslated_error(found or identify_language(text), [*dict.fromkeys(model.pair[0] for model in models)])
    return found


def _detect(text: str, models: Sequence[ServedModel]) -> DetectedLanguage | None:
    """The language of a text: one of the models' languages, or another one if it clearly is in that.

    A text that does not say its language has the first source of its script, with a confidence of 0. None if the text
    is in another script.
    """
    text = text[:IDENTIFIED_CHARACTERS]
    sources = [*dict.fromkeys(model.pair[0] for model in models)]
    codes = [*sources, *(model.pair[1] for model in models)]
    if other := identify_other(text, codes):
        return other
    detected = detect_language(text, among=codes)
    if detected is None or (detected.code not in sources and detected.confidence < _LEAST_UNCHANGED):
        fitting = in_script_of(text, sources)
        if detected is not None and fitting:
            detected = detect_language(text, among=sources)
        if detected is None and (fitting or not has_letters(text)):
            detected = DetectedLanguage([*fitting, *sources][0], 0.0)
    return detected


def _untranslated_error(found: DetectedLanguage | None, sources: Sequence[str]) -> RequestError:
    message = f"the text is in {found.code}, which is not translated" if found else "the text is in another script"
    return invalid_request_error(message, hint=f"source: one of {', '.join(sources)}", where="source")


def _missing_target_error(targets: Sequence[str], detected: DetectedLanguage | None) -> RequestError:
    message, hint = "the target language is missing", f"give target: one of {', '.join(targets)}"
    if detected is not None and detected.confidence:
        message += f", and the text was detected as {detected.code}"
        hint += "; or give source, if the text is in another language"
    return invalid_request_error(message, hint=hint, where="target")


def _matching_code(wanted: str, codes: Sequence[str], *, name: str) -> str:
    """The code that a language of a request names; RequestError if there is none."""
    code = match_code(wanted, codes)
    if code is None:
        message, hint = f"{shorten(wanted)} is not supported", f"{name}: one of {', '.join(codes)}"
        raise invalid_request_error(message, hint=hint, where=name)
    return code
