"""Blocks of lines translated in order, by this process or by several worker processes with a model each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmt_cli import console
from nmt_cli.decoding.engine import open_engine
from nmt_cli.decoding.translation import Translation
from nmt_cli.decoding.translator import LineTranslator
from nmt_cli.decompression import DECOMPRESSION_ERRORS
from nmt_cli.devices import choose_device, num_cpus
from nmt_cli.errors import DataError
from nmt_cli.memory import collect_garbage_rarely
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from nmt_cli.tokenization.pieces import Range


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines, the number of the first, and optional prefixes of their translations.

    `kept` holds the ranges of characters of each line that stay as they are.
    """

    first_line: int
    lines: Sequence[str]
    prefixes: Sequence[str] | None = None
    kept: Sequence[Sequence[Range]] | None = None


@dataclass(frozen=True, slots=True)
class TranslatedBlock:
    """The translations of a block, with the times, the engine and the settings that made them.

    `started` and `ended` are seconds of the machine's monotonic clock, which is the same for all processes.
    """

    translations: list[Translation]
    started: float
    ended: float
    engine: str
    precision: str
    device: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TranslationJob:
    """The models that a worker opens, the device, and how it translates.

    `overrides` and `options` are arguments of `LineTranslator.translate`: settings of the decoding section, and others.
    `threads` are the CPUs to use; None means all CPUs of the process.
    """

    models: Sequence[Path]
    engine: str
    precision: str
    device: str
    threads: int | None
    overrides: Mapping[str, Any]
    options: Mapping[str, Any]
    log_level: int | None = None  # of a process of its own
    is_first: bool = True  # which alone logs what each of several workers would log as it begins

    def start(self) -> Callable[[LineBlock], TranslatedBlock]:
        """Open the models in this process; returns the function that translates blocks."""
        if self.log_level is not None:
            console.configure_logging(quiet=False)
            console.PACKAGE_LOGGER.setLevel(self.log_level if self.is_first else max(self.log_level, logging.WARNING))
            if (index := choose_device(self.device).index) is not None:
                torch.cuda.set_device(index)  # otherwise tensors without a device would take memory of the first GPU
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        engine = open_engine(self.models, engine=self.engine, device=self.device, precision=self.precision)
        if self.log_level is not None:
            console.PACKAGE_LOGGER.setLevel(self.log_level)
        collect_garbage_rarely()
        return partial(self._translate, LineTranslator(engine))

    def _translate(self, translator: LineTranslator, block: LineBlock) -> TranslatedBlock:
        started = time.monotonic()
        translations = translator.translate(
            block.lines,
            prefixes=block.prefixes,
            kept=block.kept,
            first_line=block.first_line,
            **self.options,
            **self.overrides,
        )
        return TranslatedBlock(
            translations,
            started,
            time.monotonic(),
            engine=translator.engine,
            precision=translator.precision,
            device=translator.device,
            settings=translator.settings(**self.overrides).model_dump(),
        )


@contextmanager
def parallel_translator(
    jobs: Sequence[TranslationJob],
) -> Iterator[Callable[[Iterable[LineBlock]], Iterator[TranslatedBlock]]]:
    """A function that maps blocks to their translations, in order, with one process per job.

    A single job runs in this process. Processes start when there are blocks for them. They end with the `with` block,
    and when this process ends. Their errors are raised here; DataError if one is killed. An error of
    reading comes after the translations of all blocks before it.
    """
    with worker_pool(jobs, hint=FEWER_WORKERS_HINT) as run:

        def translate(blocks: Iterable[LineBlock]) -> Iterator[TranslatedBlock]:
            reading_errors: list[Exception] = []
            yield from run(_until_error(blocks, reading_errors))
            if reading_errors:
                raise reading_errors[0]

        yield translate


def jobs_for_workers(job: TranslationJob, *, workers: int | None, is_bulk: bool) -> list[TranslationJob]:
    """The job of each worker: on all GPUs in turn if the job's device does not name one.

    If `workers` is None there is one worker per such GPU for a long text (`is_bulk`), otherwise a single worker.
    Several workers share the CPUs, and the first alone logs what each of them would log.
    """
    num_gpus = 0
    may_use_gpus = job.device in ("auto", "cuda") and job.engine != "ctranslate2" and job.precision != "int8"
    if may_use_gpus and workers != 1 and torch.cuda.is_available():
        num_gpus = torch.cuda.device_count()
    num_workers = workers or (max(1, num_gpus) if is_bulk else 1)
    if num_workers == 1:
        return [job]
    devices = [f"cuda:{index % num_gpus}" if num_gpus > 1 else job.device for index in range(num_workers)]
    threads, level = max(1, (job.threads or num_cpus()) // num_workers), console.PACKAGE_LOGGER.getEffectiveLevel()
    return [
        replace(job, device=device, threads=threads, log_level=level, is_first=index == 0)
        for index, device in enumerate(devices)
    ]


def _until_error(blocks: Iterable[LineBlock], errors: list[Exception]) -> Iterator[LineBlock]:
    """The blocks up to an error in reading, which goes into `errors`: the blocks before it are translated first."""
    try:
        yield from blocks
    except (DataError, *DECOMPRESSION_ERRORS) as error:
        errors.append(error)
