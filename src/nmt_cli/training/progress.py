"""What a training tells: metrics.jsonl always, a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from nmt_cli import console, files
from nmt_cli.errors import ModelError
from nmt_cli.training.live import LiveView
from nmt_cli.training.validation import Validation

_log = logging.getLogger(__name__)

Clock = Callable[[], float]


class Stopwatch:
    """Seconds of training alone: it stands still while something else, such as a validation, is done."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None
        self._seconds = 0.0

    def run(self) -> None:
        """Start, or go on."""
        if self._since is None:
            self._since = self._clock()

    def stop(self) -> None:
        """Stand still."""
        self._seconds = self.seconds
        self._since = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds + (0.0 if self._since is None else self._clock() - self._since)


@dataclass(slots=True)
class Window:
    """Sums since the last line of the log: losses in nats, tokens with EOS, seconds of training."""

    smoothed: float = 0.0
    nll: float = 0.0
    source_tokens: int = 0
    target_tokens: int = 0
    started: float = 0.0

    def add(self, smoothed: float, nll: float, source_tokens: int, target_tokens: int) -> None:
        """Count one more update."""
        self.smoothed += smoothed
        self.nll += nll
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens

    def rate(self, seconds: float) -> float:
        """Target tokens a second at `seconds` of the stopwatch."""
        return self.target_tokens / max(seconds - self.started, 1e-9)


class Reporter:
    """Writes the events of a run; only the first rank has one that speaks."""

    def __init__(self, file: Path | None, *, updates: int, clock: Clock = time.perf_counter) -> None:
        """`file` is metrics.jsonl, appended to; None for a rank that keeps silent."""
        self._updates, self._clock = updates, clock
        self._started, self._first_update = clock(), 0
        self._file = file
        self._stream = None if file is None else _open_at_end(file)
        self._view: LiveView | None = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

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

    def advance(
        self, update: int, *, epoch: int, loss: float, target_tokens: int, seconds: float, learning_rate: float
    ) -> None:
        """Move the live view on by an update with a sum of losses over its tokens, 0 of them where it was skipped."""
        if self._view is None:
            return
        if target_tokens:
            self._view.count(loss=loss, tokens=target_tokens, seconds=seconds)
        self._view.move(update, epoch=epoch + 1, learning_rate=learning_rate, time_left=self._time_left(update))

    def note(self, text: str) -> None:
        """Tell on the live view what is done between two updates."""
        if self._view is not None:
            self._view.note(text)

    def train(
        self, *, update: int, epoch: int, window: Window, seconds: float, learning_rate: float, norm: float
    ) -> None:
        """A line about the updates since the last one."""
        tokens = max(window.target_tokens, 1)
        loss, speed = window.smoothed / tokens, window.rate(seconds)
        self.event(
            "train",
            update=update,
            epoch=epoch,
            loss=loss,
            nll=window.nll / tokens,
            learning_rate=learning_rate,
            gradient_norm=norm,
            target_tokens_per_second=speed,
            source_tokens=window.source_tokens,
            target_tokens=window.target_tokens,
            seconds=seconds,
        )
        if self._view is None:
            figures = f"loss {loss:.3f}  learning rate {learning_rate:.2e}  {speed:,.0f} tokens/s"
            self.say(f"{self._at(update)}/{self._updates:,}  epoch {epoch + 1}  {figures}  {self._time_left(update)}")

    def validation(self, update: int, measured: Validation, *, is_best: bool) -> None:
        """What a validation after `update` has measured."""
        self.event("validation", update=update, **asdict(measured))
        score = "" if measured.bleu is None else f"  BLEU {measured.bleu:.2f}"
        self.say(
            f"{self._at(update)}  validation loss {measured.loss:.4f}  perplexity {measured.perplexity:.3f}{score}"
            f"  in {measured.seconds:.1f} s{'  best so far' if is_best else ''}"
        )
        if is_best and self._view is not None:
            self._view.keep_best(f"{score.strip() or f'loss {measured.loss:.4f}'} after {update:,}")

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
