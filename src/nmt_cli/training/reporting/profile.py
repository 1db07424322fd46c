"""Where the time of an update goes: torch's profiler watches some updates, and its table and trace are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

PROFILE_FOLDER = "profile"
"""In the run."""

_WARM_UP_UPDATES = 3
_SILENT = "99"  # torch's profiler would tell on stderr when it begins and ends
_ROWS, _NAME_WIDTH = 25, 60
_SPAN = "nmt: update"


class Profiler:
    """Watches `num_updates` of a training, if any, after a few that warm up, and writes what it saw into a folder.

    `print_line` is given the table and the names of the files. Leaving the context reports the updates watched until
    then.
    """

    def __init__(
        self, folder: Path, *, num_updates: int, device: torch.device, print_line: Callable[[str], None]
    ) -> None:
        self._folder, self._num_updates, self._device, self._print = folder, num_updates, device, print_line
        self._num_seen = 0
        self._profile: profile | None = None

    def __enter__(self) -> Profiler:
        if self._num_updates:
            os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
            watching = schedule(skip_first=_WARM_UP_UPDATES - 1, wait=0, warmup=1, active=self._num_updates, repeat=1)
            self._profile = profile(activities=activities, schedule=watching, on_trace_ready=self._report)
            self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.stop()
        if self._num_updates and self._num_seen <= _WARM_UP_UPDATES:
            self._print(f"--profile: the training ended before {_WARM_UP_UPDATES + 1} updates, and none was watched")

    @contextmanager
    def update(self) -> Iterator[None]:
        """A context for an update."""
        if self._profile is None:
            yield
            return
        with record_function(_SPAN):
            yield
        self._num_seen += 1
        self._profile.step()

    def _report(self, found: profile) -> None:
        """Write the time per update and torch's table of the slowest operations, and print them.

        torch calls this once: after the last watched update, or from `stop`.
        """
        self._profile = None
        if self._num_seen <= _WARM_UP_UPDATES:
            return
        averages = found.key_averages()
        update = next(row for row in averages if row.key == _SPAN and row.device_type.name == "CPU")
        milliseconds = update.cpu_time_total / 1000 / update.count
        order = f"self_{'cuda' if self._device.type == 'cuda' else 'cpu'}_time_total"
        slowest = averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=_NAME_WIDTH)
        summary = f"{update.count} updates on {self._device}, {milliseconds:.2f} ms each\n\n{slowest}"
        trace, table = self._folder / "trace.json.gz", self._folder / "summary.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            table.write_text(summary, encoding="utf-8")
            found.export_chrome_trace(str(trace))
        except OSError as error:  # no reason to end a training
            self._print(f"{summary}not written to {self._folder}: {error.strerror}")
        else:
            self._print(f"{summary}written to {table}; {trace} is for https://ui.perfetto.dev")
