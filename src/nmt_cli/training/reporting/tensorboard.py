"""The events of a training for TensorBoard: each number of metrics.jsonl as a scalar over the updates."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nmt_cli import files
from nmt_cli.errors import ModelError, UsageError

FOLDER = "tensorboard"
"""In the run; each start of a training adds a file."""


def require_tensorboard() -> None:
    """UsageError if the package is not installed."""
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs the package tensorboard, which is not installed",
            setting="tensorboard",
            hint="pip install 'nmt-cli[tensorboard]'",
        )


class EventFile:
    """Writes the scalars of events into a new file of a folder; ModelError on a full disk.

    Each event is on the disk when `write` returns. The writers of tensorboard and torch use a thread and a queue, and
    wait forever if the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._file = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        with files.disk_errors(self._file, ModelError):
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = self._file.open("xb", buffering=0)
            self._records = RecordWriter(self._stream)
            self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """The numbers among the values of an event, as EVENT/KEY at its update."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in values.items() if _is_number(value) and name != "update"}
        if not numbers:
            return
        scalars = [Summary.Value(tag=f"{event}/{name}", simple_value=value) for name, value in numbers.items()]
        record = Event(wall_time=time.time(), step=values["update"], summary=Summary(value=scalars))
        with files.disk_errors(self._file, ModelError):
            self._records.write(record.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
