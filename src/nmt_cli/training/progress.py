"""What a training tells: metrics.jsonl always, a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from nmt_cli import console, files
from nmt_cli.errors import ModelError
from nmt_cli.training.figures import Clock, Figures, Standing, Sums
from nmt_cli.training.live import LiveView
from nmt_cli.training.tensorboard import EventFile
from nmt_cli.training.validation import Validation

_log = logging.getLogger(__name__)


class Reporter:
    """Writes the events of a run; only the first rank has one that speaks."""

    def __init__(
        self, file: Path | None, *, updates: int, board: EventFile | None = None, clock: Clock = time.perf_counter
    ) -> None:
        """`file` is metrics.jsonl, appended to; None for a rank that keeps silent. `board` is told of events too."""
        self._updates, self._clock = updates, clock
        self._started, self._first_update = clock(), 0
        self._file = file
        self._stream = None if file is None else _open_at_end(file)
        self._board = board
        self._view: LiveView | None = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._board is not None:
            self._board.close()

    @contextmanager
    def counting_from(self, update: int) -> Iterator[None]:
        """Show the progress while the block runs, from `update`, the last one of earlier starts."""
        self._started, self._first_update = self._clock(), update
        if self._file is None or not (console.is_interactive() and _log.isEnabledFor(logging.INFO)):
            yield
            return
        with LiveView(self._file.absolute().parent.name, updates=self._updates) as self._view:
            try:
                yield
            finally:
                self._view = None

    @property
    def is_live(self) -> bool:
        """True while the live view is shown, which `advance` moves on."""
        return self._view is not None

    def advance(self, standing: Standing, figures: Figures) -> None:
        """Move the live view on by an update, with the figures of the last ones."""
        if self._view is not None:
            self._view.move(standing, figures, time_left=self._time_left(standing.update))

    def note(self, text: str) -> None:
        """Tell on the live view what is done between two updates."""
        if self._view is not None:
            self._view.note(text)

    def train(self, standing: Standing, sums: Sums, figures: Figures) -> None:
        """A line about the updates since the last one."""
        self.event(
            "train",
            update=standing.update,
            epoch=standing.epoch,
            loss=figures.loss,
            nll=figures.nll,
            learning_rate=standing.learning_rate,
            gradient_norm=standing.gradient_norm,
            target_tokens_per_second=figures.target_tokens_per_second,
            matrix_rate_share=figures.matrix_rate_share,
            padding=figures.padding,
            waiting=figures.waiting,
            memory_gb=standing.memory_gb,
            source_tokens=sums.source_tokens,
            target_tokens=sums.target_tokens,
            seconds=standing.seconds,
        )
        if self._view is None:
            at, left = self._at(standing.update), self._time_left(standing.update)
            speed = f"{figures.target_tokens_per_second:,.0f} tokens/s"
            told = f"loss {figures.loss:.3f}  learning rate {standing.learning_rate:.2e}  {speed}"
            self.say(f"{at}/{self._updates:,}  epoch {standing.epoch + 1}  {told}  {left}")

    def validation(self, update: int, measured: Validation, *, is_best: bool) -> None:
        """What a validation after `update` has measured."""
        self.event("validation", update=update, **asdict(measured))
        score = "" if measured.bleu is None else f"  BLEU {measured.bleu:.2f}"
        self.say(
            f"{self._at(update)}  validation loss {measured.loss:.4f}  perplexity {measured.perplexity:.3f}{score}"
            f"  in {measured.seconds:.1f} s{'  best so far' if is_best else ''}"
        )
        if is_best and self._view is not None:
            self._view.keep_best(score.strip() or f"loss {measured.loss:.4f}", update=update)

    def event(self, event: str, **values: Any) -> None:
        """Append a line to metrics.jsonl, where a value that is not finite is null; ModelError on a full disk."""
        if self._stream is None or self._file is None:
            return
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"event": event, **finite}).encode() + b"\n"
        with files.disk_errors(self._file, ModelError):
            while line:
                line = line[self._stream.write(line) :]
        if self._board is not None:
            self._board.write(event, finite)

    def say(self, text: str) -> None:
        """A line for the reader."""
        if self._view is not None:
            self._view.console.print(text, highlight=False, markup=False)
        elif self._stream is not None:
            _log.info("%s", text)

    def _at(self, update: int) -> str:
        """The update, as wide as the last one."""
        return f"update {update:>{len(f'{self._updates:,}')},}"

    def _time_left(self, update: int) -> str:
        done = update - self._first_update
        if done <= 0:
            return ""
        left = int((self._clock() - self._started) / done * (self._updates - update))
        return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"


def _open_at_end(file: Path) -> FileIO:
    """The file to append to, without a buffer; what a crash has left of a last line is cut off."""
    with files.disk_errors(file, ModelError):
        if file.is_file() and (size := file.stat().st_size):
            whole = file.read_bytes().rfind(b"\n") + 1
            if whole < size:
                os.truncate(file, whole)
        return file.open("ab", buffering=0)
