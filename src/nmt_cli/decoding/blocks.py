"""Blocks of lines and their translations, in order, by this process or by several workers with a model each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from nmt_cli import console
from nmt_cli.decoding.opening import open_engine
from nmt_cli.decoding.translator import Translation, Translator
from nmt_cli.devices import choose_device, collect_garbage_rarely, num_cpus
from nmt_cli.errors import DataError
from nmt_cli.workers import crew


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines, the number of the first, and for each what its translation begins with, if anything does."""

    first_line: int
    lines: Sequence[str]
    prefixes: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Translated:
    """The translations of a block, from when to when they were made, by what, and with which settings.

    `started` and `ended` are seconds of the machine's monotonic clock, which all processes read alike.
    """

    translations: list[Translation]
    started: float
    ended: float
    engine: str
    precision: str
    device: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Translating:
    """What one worker does: which models it opens, where, and how it translates with them.

    `settings` are keys of the decoding section, `asked` further options of `Translator.translate`. `threads` are the
    CPUs to use; None are all that the process may.
    """

    models: Sequence[Path]
    engine: str
    precision: str
    device: str
    threads: int | None
    settings: Mapping[str, Any]
    asked: Mapping[str, Any]

    def here(self) -> Callable[[Block], Translated]:
        """The function that translates blocks in this process, with the models open."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        asked = {**self.settings, **self.asked}
        engine = open_engine(self.models, engine=self.engine, device=self.device, precision=self.precision, asked=asked)
        collect_garbage_rarely()
        return partial(self._translate, Translator(engine))

    def _translate(self, translator: Translator, block: Block) -> Translated:
        started = time.monotonic()
        translations = translator.translate(
            block.lines, prefixes=block.prefixes, first_line=block.first_line, **self.settings, **self.asked
        )
        return Translated(
            translations,
            started,
            time.monotonic(),
            engine=translator.engine,
            precision=translator.precision,
            device=translator.device,
            settings=translator.settings(**self.settings).model_dump(),
        )


@contextmanager
def translating(jobs: Sequence[Translating]) -> Iterator[Callable[[Iterable[Block]], Iterator[Translated]]]:
    """A map of blocks to their translations, in order: by a process for each of the jobs, or by this one for only one.

    Processes start when there are blocks for them, and end with the block of code, or when this one does. What they log
    is logged here, once its block's turn has come. DataError where one is killed; their own errors arrive as they are.
    """
    if len(jobs) == 1:
        here = cache(jobs[0].here)
        yield lambda blocks: map(here(), blocks)
        return
    level = logging.getLogger("nmt_cli").getEffectiveLevel()
    with crew([_Apart(job, log_level=level) for job in jobs]) as run:
        told: set[str] = set()

        def run_apart(blocks: Iterable[Block]) -> Iterator[Translated]:
            problems: list[DataError] = []
            for translated, messages in run(_until_problem(blocks, problems)):
                _tell(messages, told)
                yield translated
            if problems:
                raise problems[0]

        yield run_apart


def spread(job: Translating, devices: Sequence[str]) -> list[Translating]:
    """The job for each of the devices; of several, each has its share of the CPUs."""
    if len(devices) == 1:
        return [replace(job, device=devices[0])]
    threads = max(1, (job.threads or num_cpus()) // len(devices))
    return [replace(job, device=device, threads=threads) for device in devices]


def choose_devices(device: str, *, workers: int | None, engine: str, precision: str, is_bulk: bool) -> list[str]:
    """The device of each worker: GPUs in turn where `device` leaves the choice of them.

    Without a number of `workers`, one for each such GPU where much is translated (`is_bulk`), else one in all.
    """
    number_of_gpus = 0
    if device in ("auto", "cuda") and engine != "ctranslate2" and precision != "int8" and workers != 1:
        number_of_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = workers or (max(1, number_of_gpus) if is_bulk else 1)
    if number == 1 or number_of_gpus < 2:
        return [device] * number
    return [f"cuda:{place % number_of_gpus}" for place in range(number)]


@dataclass(frozen=True, slots=True)
class _Message:
    """What a worker logged."""

    logger: str
    level: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Apart:
    """The job in a worker process: with each block come the messages that it caused."""

    job: Translating
    log_level: int

    def start(self) -> Callable[[Block], tuple[Translated, list[_Message]]]:
        """The function for the blocks."""
        console.configure_logging(quiet=False)
        logging.getLogger("nmt_cli").setLevel(self.log_level)
        device = choose_device(self.job.device)
        if device.index is not None:
            torch.cuda.set_device(device)  # else what says no device would take memory of the first one
        with _Kept() as before:
            translate = self.job.here()
        waiting = before.messages

        def work(block: Block) -> tuple[Translated, list[_Message]]:
            with _Kept() as kept:
                translated = translate(block)
            messages = [*waiting, *kept.messages]
            waiting.clear()
            return translated, messages

        return work


class _Kept(logging.Handler):
    """Keeps what `nmt_cli` logs while the block of code runs; after an error it is logged as it would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[_Message] = []
        self._records: list[logging.LogRecord] = []
        self._before: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self._records.append(record)
        self.messages.append(_Message(record.name, record.levelno, str(record.msg), record.getMessage()))

    def __enter__(self) -> _Kept:
        logger = logging.getLogger("nmt_cli")
        self._before, logger.handlers[:] = logger.handlers[:], [self]
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        logger = logging.getLogger("nmt_cli")
        logger.handlers[:] = self._before
        if kind is not None:
            for record in self._records:
                logger.handle(record)


def _tell(messages: Sequence[_Message], told: set[str]) -> None:
    """Log what a worker did; what each of them says once, about all lines or its own start, is said once in all."""
    for message in messages:
        if message.level == logging.INFO and message.kind in told:
            continue
        told.add(message.kind)
        logging.getLogger(message.logger).log(message.level, "%s", message.text)


def _until_problem(blocks: Iterable[Block], problems: list[DataError]) -> Iterator[Block]:
    """The blocks that can be read; what comes instead of the next one waits until they are translated."""
    try:
        yield from blocks
    except DataError as problem:
        problems.append(problem)
