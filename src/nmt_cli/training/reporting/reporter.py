"""The reports of a training: metrics.jsonl, event files for TensorBoard, and a live view or plain lines."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from nmt_cli import __version__, console, files
from nmt_cli.dataset.micro_batches import accumulation_steps
from nmt_cli.devices import cpu_name
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.objective import attention_kernel
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.training_metrics import Clock, TrainingStatus, UpdateMetrics, UpdateSums
from nmt_cli.training.update import Updater
from nmt_cli.training.validation import Validation

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TENSORBOARD_FOLDER = "tensorboard"
"""In the run; each start of a training adds an event file."""

logger = logging.getLogger(__name__)
_MAX_SILENT_SECONDS = 30.0  # in a log
_MAX_NAMED_PAIRS = 5
_MAX_NAMED_DIRECTIONS = 6


class Reporter:
    """Writes the events of a run; only the first rank's reporter says anything."""

    def __init__(
        self, file: Path | None, *, updates: int, tensorboard: Path | None = None, clock: Clock = time.perf_counter
    ) -> None:
        """`file` is metrics.jsonl; None for a silent rank. `tensorboard` is a folder for event files."""
        self._updates, self._clock = updates, clock
        self._started, self._first_update = clock(), 0
        self._file, self._tensorboard_folder = file, tensorboard
        self._stream: FileIO | None = None
        self._tensorboard: SummaryWriter | None = None
        self._view: LiveView | None = None
        self._last_line = self._started

    def __enter__(self) -> Reporter:
        if self._file is not None:
            self._stream = _open_at_end(self._file)
            if self._tensorboard_folder is not None:
                from torch.utils.tensorboard import SummaryWriter

                with files.disk_errors(self._tensorboard_folder, ModelError):
                    self._tensorboard = SummaryWriter(str(self._tensorboard_folder))
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._tensorboard is not None:
            with suppress(OSError):  # which the last event has raised
                self._tensorboard.close()

    @contextmanager
    def showing_progress(self, update: int) -> Iterator[None]:
        """Show the progress while the block runs; earlier starts ended at `update`."""
        self._started, self._first_update = self._clock(), update
        self._last_line = self._started
        if self._file is None or not console.shows_live_views():
            yield
            return
        view = LiveView(self._file.absolute().parent.name, updates=self._updates)
        with view, console.log_to_console(view.console):
            self._view = view
            try:
                yield
            finally:
                self._view = None

    @property
    def wants_update(self) -> bool:
        """True while the live view is shown, or if a log has been silent for half a minute."""
        is_silent = self._stream is not None and self._clock() - self._last_line >= _MAX_SILENT_SECONDS
        return self._view is not None or is_silent

    def show_update(self, status: TrainingStatus, metrics: UpdateMetrics) -> None:
        """Show an update, with the metrics of the last few: in the live view, or in a log that has been silent."""
        if self._view is not None:
            self._view.show_status(status, metrics, time_left=self._time_left(status.update))
        elif self.wants_update:
            self._print_update(status, metrics)

    def show_note(self, text: str) -> None:
        """Show in the live view what is done between two updates."""
        if self._view is not None:
            self._view.show_note(text)

    def report_updates(self, status: TrainingStatus, sums: UpdateSums, metrics: UpdateMetrics) -> None:
        """Report the updates since the last report: as an event, and in a log as a line."""
        tokens = {"source_tokens": sums.source_tokens, "target_tokens": sums.target_tokens}
        measured = {name: value for name, value in asdict(metrics).items() if value is not None}
        self.write_event("train", **asdict(status), **measured, **tokens)
        if self._view is None:
            self._print_update(status, metrics)

    def report_skipped(self, update: int, *, pairs: Sequence[int], in_row: int) -> None:
        """Report an update that was skipped, one of `in_row`; the prepared training data has the pairs by index."""
        reason = "gradients are not finite"
        self.write_event("skipped", update=update, reason=reason, in_row=in_row, pairs=pairs)
        named = [*map(str, pairs[:_MAX_NAMED_PAIRS]), *(["..."] if len(pairs) > _MAX_NAMED_PAIRS else [])]
        logger.warning(
            "update %d is skipped: its %s (%s pairs: %s)", update, reason, f"{len(pairs):,}", ", ".join(named)
        )

    def report_validation(self, update: int, measured: Validation, *, is_best: bool) -> None:
        """Report a validation after `update`."""
        values = asdict(measured)
        values["by_direction"] = {name: result.model_dump() for name, result in measured.by_direction.items()}
        if not measured.by_direction:  # there is one direction
            del values["by_direction"]
            for sample in values["samples"]:
                del sample["direction"]
        self.write_event("validation", update=update, **values)
        score = "" if measured.bleu is None else f"  BLEU {measured.bleu:.2f}"
        perplexity = format(measured.perplexity, ".3f" if measured.perplexity < 1e6 else ".3g")
        self.print_line(
            f"{self._name_of(update)}  validation loss {measured.loss:.4f}  perplexity {perplexity}{score}"
            f"{_directions_text(measured)}  in {measured.seconds:.1f} s{'  best so far' if is_best else ''}"
        )
        if is_best and self._view is not None:
            self._view.keep_best(score.strip() or f"loss {measured.loss:.4f}")

    def write_event(self, event: str, **values: Any) -> None:
        """Append a line to metrics.jsonl; values that are not finite become null. ModelError on a full disk."""
        if self._stream is None or self._file is None:
            return
        # NaN and the infinities are what Python's JSON calls constants.
        finite = json.loads(json.dumps(values), parse_constant=lambda constant: None)
        line = json.dumps({"event": event, **finite}).encode() + b"\n"
        with files.disk_errors(self._file, ModelError):
            while line:
                line = line[self._stream.write(line) :]
            if self._tensorboard is not None:
                for name, value in finite.items():
                    if type(value) in (int, float) and name != "update":
                        self._tensorboard.add_scalar(f"{event}/{name}", value, finite["update"])
                self._tensorboard.flush()

    def print_line(self, text: str) -> None:
        """Log a line; a live view stays below it."""
        if self._stream is not None:
            logger.info("%s", text)

    def _print_update(self, status: TrainingStatus, metrics: UpdateMetrics) -> None:
        self._last_line = self._clock()
        self.print_line(
            f"{self._name_of(status.update)}/{self._updates:,}  epoch {status.epoch + 1}  loss {metrics.loss:.3f}"
            f"  learning rate {status.learning_rate:.2e}  {metrics.target_tokens_per_second:,.0f} tokens/s"
            f"  {self._time_left(status.update)}"
        )

    def _name_of(self, update: int) -> str:
        """For example, "update    20": the number is padded to the width of the last update's number."""
        return f"update {update:>{len(f'{self._updates:,}')},}"

    def _time_left(self, update: int) -> str:
        done = update - self._first_update
        if done <= 0:
            return ""
        seconds = (self._clock() - self._started) / done * (self._updates - update)
        return f"{console.duration_text(seconds)} left"


def _directions_text(measured: Validation) -> str:
    """The figure of each direction, or of the worst ones: BLEU or, if it was not measured, the loss."""
    scores = measured.by_direction.items()
    if measured.bleu is None:
        texts = [f"{name} {score.loss:.4f}" for name, score in sorted(scores, key=lambda item: -item[1].loss)]
    else:
        texts = [f"{name} {score.bleu:.2f}" for name, score in sorted(scores, key=lambda item: item[1].bleu or 0.0)]
    more = ", ..." if len(texts) > _MAX_NAMED_DIRECTIONS else ""
    return f"  ({', '.join(texts[:_MAX_NAMED_DIRECTIONS])}{more})" if texts else ""


def check_tensorboard() -> None:
    """UsageError if the package is not installed."""
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs the package tensorboard, which is not installed",
            setting="tensorboard",
            hint="pip install 'nmt-cli[tensorboard]'",
        )


class LiveView(Progress):
    """Three lines that are redrawn several times per second; other lines go above them."""

    def __init__(self, title: str, *, updates: int) -> None:
        self._lines: list[str] = []  # before super(), which asks for the renderables
        self._best = ""
        super().__init__(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f}"),
            TaskProgressColumn(),
            TextColumn("{task.fields[time_left]}"),
            console=console.stderr_console(),
            expand=True,
            transient=True,
        )
        self._task = self.add_task(title, total=updates, time_left="")

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, and the metrics or a note."""
        yield from super().get_renderables()
        for line in self._lines:
            yield Text(f"  {line}", no_wrap=True, overflow="ellipsis")

    def show_status(self, status: TrainingStatus, metrics: UpdateMetrics, *, time_left: str) -> None:
        """Show the status of the training, with the metrics of its last updates, in lines for 80 columns."""
        self.update(self._task, completed=status.update, time_left=time_left)
        self._lines = [
            f"loss {metrics.loss:.3f}  perplexity {metrics.perplexity:.4g}{self._best}"
            f"  rate {status.learning_rate:.1e}  norm {status.gradient_norm:.3g}",
            f"{metrics.target_tokens_per_second:,.0f} tokens/s  matrix rate {metrics.matrix_rate_share:.0%}"
            f"  padding {metrics.padding:.1%}  waiting {metrics.waiting:.1%}  memory {status.memory_gb:.1f} GB",
        ]

    def show_note(self, text: str) -> None:
        """Show instead of the metrics what is done between two updates."""
        self._lines = [text]

    def keep_best(self, value: str) -> None:
        """Show the best validation beside the metrics."""
        self._best = f"  best {value}"


def describe_training(recipe: Recipe, updater: Updater, ranks: Ranks, *, max_tokens: int) -> str:
    """The first line of a training: the model, its devices, and the micro-batches of an update."""
    training, model = recipe.training, updater.model
    kernel = attention_kernel(recipe.model, device=ranks.device, dtype=model.output_weight.dtype)
    reason = updater.reason_not_to_compile
    compiled = "" if ranks.device.type == "cpu" else ", compiled" if reason is None else f", not compiled ({reason})"
    rounds = accumulation_steps(batch_tokens=training.batch_tokens, max_tokens=max_tokens, world_size=ranks.size)
    return (
        f"{model.num_parameters() / 1e6:.1f} million parameters on {ranks.device} in {updater.precision}"
        f" with {kernel} attention{compiled}; an update of {training.batch_tokens:,} tokens is"
        f" {ranks.size} device(s) x {rounds} micro-batch(es) of at most {max_tokens:,}"
        f"{' (auto)' if training.max_tokens_per_device == 'auto' else ''}"
    )


def describe_start(updater: Updater, ranks: Ranks) -> dict[str, Any]:
    """The values of the event `start`: the time, the hardware, and the versions of the programs."""
    is_gpu = ranks.device.type == "cuda"
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {
            "device": torch.cuda.get_device_name(ranks.device) if is_gpu else cpu_name(),
            "devices": ranks.size,
            "threads": torch.get_num_threads(),
            "precision": updater.precision,
            "is_compiled": updater.reason_not_to_compile is None,
        },
        "versions": {"nmt": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }


def _open_at_end(file: Path) -> FileIO:
    """Open the file to append without a buffer; cut off a last line that a crash left incomplete."""
    with files.disk_errors(file, ModelError):
        if file.is_file() and (size := file.stat().st_size):
            whole = file.read_bytes().rfind(b"\n") + 1
            if whole < size:
                os.truncate(file, whole)
        return file.open("ab", buffering=0)
