"""What a training tells: metrics.jsonl always, a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from nmt_cli import console
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
        self._stream: IO[str] | None = None if file is None else file.open("a", encoding="utf-8")
        is_live = file is not None and console.is_interactive() and _log.isEnabledFor(logging.INFO)
        self._progress = _live_view() if is_live else None
        self._task: TaskID | None = None

    def __enter__(self) -> Reporter:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._stream is not None:
            self._stream.close()

    def begin(self, update: int) -> None:
        """Start counting from `update`, those of earlier runs of the command."""
        self._started, self._first_update = self._clock(), update
        if self._progress is not None:
            self._task = self._progress.add_task("training", total=self._updates, completed=update, text="")

    def advance(self, update: int) -> None:
        """Move the live view to `update`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=update)

    def train(self, *, update: int, epoch: int, window: Window, seconds: float, rate: float, norm: float) -> None:
        """A line about the updates since the last one."""
        tokens = max(window.target_tokens, 1)
        speed = window.rate(seconds)
        self.event(
            "train",
            update=update,
            epoch=epoch,
            loss=window.smoothed / tokens,
            nll=window.nll / tokens,
            learning_rate=rate,
            gradient_norm=norm,
            target_tokens_per_second=speed,
            source_tokens=window.source_tokens,
            target_tokens=window.target_tokens,
            seconds=seconds,
        )
        text = f"loss {window.smoothed / tokens:.3f}  rate {rate:.2e}  {speed:,.0f} tokens/s  {self._time_left(update)}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=update, text=text)
        else:
            self.say(f"update {update:,}/{self._updates:,}  epoch {epoch + 1}  {text}")

    def validation(self, update: int, measured: Validation, *, is_best: bool) -> None:
        """What a validation after `update` has measured."""
        self.event("validation", update=update, **asdict(measured))
        score = "" if measured.bleu is None else f"  BLEU {measured.bleu:.2f}"
        self.say(
            f"update {update:,}  validation loss {measured.loss:.4f}  perplexity {measured.perplexity:.3f}{score}"
            f"  in {measured.seconds:.0f} s{'  (best so far)' if is_best else ''}"
        )

    def event(self, event: str, **values: Any) -> None:
        """Append a line to metrics.jsonl."""
        if self._stream is not None:
            self._stream.write(json.dumps({"event": event, **values}) + "\n")
            self._stream.flush()

    def say(self, text: str) -> None:
        """A line for the reader."""
        if self._stream is None:
            return
        if self._progress is not None:
            self._progress.console.print(text, highlight=False, markup=False)
        else:
            _log.info("%s", text)

    def _time_left(self, update: int) -> str:
        done = update - self._first_update
        if done <= 0:
            return ""
        left = int((self._clock() - self._started) / done * (self._updates - update))
        return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"


def _live_view() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=console.stderr_console(),
        expand=True,
    )
