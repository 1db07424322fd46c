"""Served models, each with its directions, a tokenizer, a queue and workers; and the model for a text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
from nmt_cli.recipe.directions import shown_codes
from nmt_cli.recipe.schema import LanguagePair, SplitSentences
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
        return len(self._tokenizer.encode_raw([text])[0])

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
        verify_files(directory, error=ModelError, hint=DAMAGED_HINT, names_to_hash=[_TOKENIZER])
        tokenizer = load_tokenizer(directory / _TOKENIZER, num_pieces=config.vocabulary.source)
        pairs = [(standard_code(pair.source), standard_code(pair.target)) for pair in config.languages.offered]
        return _ModelFiles(directory, digest, config, tokenizer, list(dict.fromkeys(pairs)))
    except OSError as error:
        hint = "the user that runs nmt serve must have the right to read it"
        raise ModelError(f"the model cannot be read: {error.strerror}", where=error.filename, hint=hint) from None


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The model for a text, its direction, and the language that was detected if none was given."""

    model: ServedModel
    pair: tuple[str, str]
    detected: DetectedLanguage | None

    @property
    def source(self) -> str:
        """The code of the text's language."""
        return self.pair[0] if self.detected is None else self.detected.code

    @property
    def target(self) -> str:
        """The code of the translation's language."""
        return self.pair[1]

    @property
    def languages(self) -> LanguagePair:
        """The direction."""
        return LanguagePair(source=self.pair[0], target=self.pair[1])

    @property
    def is_translated(self) -> bool:
        """False if the text is in the target's language already."""
        return self.source == self.pair[0]

    def as_sentence(self, text: str, kept: Sequence[Range]) -> str:
        """The text as the worker writes it for the search, with the same number of characters."""
        return self.model.as_sentence(text, kept, language=self.pair[0])

    def split(self, block: MarkedText, *, when: SplitSentences) -> tuple[SplitText, list[int]]:
        """The text of a block as its model splits it; a text that is not translated has no sentences."""
        if not self.is_translated:
            return SplitText([], [block.text]), []
        return self.model.split(block, language=self.pair[0], when=when)


class ModelRouter:
    """All served models, and the choice of the model for a text."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = list(models)
        self._by_pair: dict[tuple[str, str], ServedModel] = {}
        self._targets_of: dict[str, list[str]] = {}
        self._sources_of: dict[str, list[str]] = {}
        # A model whose directions are not known, such as M2M-100, has those that no other model has.
        for model in sorted(models, key=lambda model: not model.config.languages.pairs):
            taken = [pair for pair in model.pairs if pair in self._by_pair]
            if taken and model.config.languages.pairs:
                message = f"{self._by_pair[taken[0]].path} and {model.path} both translate {'-'.join(taken[0])}"
                raise UsageError(message, setting="model", hint="give one model for each language pair")
            if taken:
                logger.info("%s: left to other models: %s", model.name, _shown(["-".join(pair) for pair in taken]))
            for source, target in model.pairs:
                if self._by_pair.setdefault((source, target), model) is model:
                    self._targets_of.setdefault(source, []).append(target)
                    self._sources_of.setdefault(target, []).append(source)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The directions of all models, in their order, but models of unknown directions last."""
        return list(self._by_pair)

    @property
    def sources(self) -> list[str]:
        """The codes of the source languages, in the order of the models."""
        return list(self._targets_of)

    @property
    def targets(self) -> list[str]:
        """The codes of the target languages, in the order of the models."""
        return list(self._sources_of)

    def targets_of(self, source: str) -> list[str]:
        """The target languages of a source language."""
        return self._targets_of[source]

    def sources_of(self, target: str) -> list[str]:
        """The source languages of a target; RequestError if nothing is translated into it."""
        return self._sources_of[_matching_code(target, self.targets, name="target")]

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
            sources, fitting = self.sources, self.targets
            if target is not None:
                _matching_code(target, self.targets, name="target")
                fitting = [code for code in self.targets if match_code(target, [code]) is not None]
                sources = [*dict.fromkeys(source for code in fitting for source in self._sources_of[code])]
            detected = _detect_source(text, sources, fitting)
            code = detected.code
            if code not in sources:
                if target is None and len(self.targets) > 1:
                    raise _missing_target_error(self.targets, detected)
                return self._route_of((self._sources_of[code][0], code), detected)
        else:
            code = _matching_code(source, self.sources, name="source")
        targets = self._targets_of[code]
        if target is None:
            if len(targets) > 1:
                raise _missing_target_error(targets, detected)
            return self._route_of((code, targets[0]), detected)
        _matching_code(target, self.targets, name="target")
        if (target_code := match_code(target, targets)) is None:
            return self._untrained_route(code, target)
        return self._route_of((code, target_code), detected)

    def _route_of(self, pair: tuple[str, str], detected: DetectedLanguage | None) -> ModelRoute:
        return ModelRoute(self._by_pair[pair], pair, detected)

    def _untrained_route(self, source: str, target: str) -> ModelRoute:
        """The first model that knows both languages, though not from its training; RequestError if there is none."""
        for model in self:
            pair = match_code(source, model.sources), match_code(target, model.targets)
            if pair[0] is not None and pair[1] is not None and pair[0] != pair[1]:
                return ModelRoute(model, (pair[0], pair[1]), None)
        hint = f"target: one of {_shown(self._targets_of[source])}"
        raise invalid_request_error(f"{source} to {shorten(target)} is not supported", hint=hint, where="target")

    def detect(self, text: str) -> DetectedLanguage:
        """The language of a text among the languages of all models, or any language if it clearly is in another one.

        The first source with a confidence of 0 stands for a text that does not say its language.
        """
        return (
            _detect(text, self.sources, self.targets)
            or identify_language(text)
            or DetectedLanguage(self.sources[0], 0.0)
        )

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


def _detect_source(text: str, sources: Sequence[str], targets: Sequence[str]) -> DetectedLanguage:
    """The language of a text: one that is translated, or a target's own; RequestError for another one."""
    found = _detect(text, sources, targets)
    if found is None or found.code not in (*sources, *targets):
        raise _untranslated_error(found or identify_language(text), sources)
    return found


def _detect(text: str, sources: Sequence[str], targets: Sequence[str]) -> DetectedLanguage | None:
    """The language of a text: one of the models' languages, or another one if it clearly is in that.

    A text that does not say its language has the first source of its script, with a confidence of 0. None if the text
    is in another script.
    """
    text = text[:IDENTIFIED_CHARACTERS]
    codes = [*dict.fromkeys([*sources, *targets])]
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
    return invalid_request_error(message, hint=f"source: one of {_shown(sources)}", where="source")


def _missing_target_error(targets: Sequence[str], detected: DetectedLanguage | None) -> RequestError:
    message, hint = "the target language is missing", f"give target: one of {_shown(targets)}"
    if detected is not None and detected.confidence:
        message += f", and the text was detected as {detected.code}"
        hint += "; or give source, if the text is in another language"
    return invalid_request_error(message, hint=hint, where="target")


def _matching_code(wanted: str, codes: Sequence[str], *, name: str) -> str:
    """The code that a language of a request names; RequestError if there is none."""
    code = match_code(wanted, codes)
    if code is None:
        message, hint = f"{shorten(wanted)} is not supported", f"{name}: one of {_shown(codes)}"
        raise invalid_request_error(message, hint=hint, where=name)
    return code


def _shown(codes: Sequence[str]) -> str:
    return shown_codes(codes, listed_by="/languages")
