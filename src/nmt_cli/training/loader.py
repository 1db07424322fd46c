"""The batches of the next updates, made by a thread while the device computes."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from nmt_cli.dataset.batches import Batch
from nmt_cli.devices import num_cpus
from nmt_cli.training.data_order import DataOrder, PlannedUpdate
from nmt_cli.training.ranks.ranks import Ranks

# On a CPU the thread competes with the training for cores, and an update takes long.
_UPDATES_AHEAD = {"cuda": 3, "cpu": 1}
# Processes that sample the next epoch. One alone would do it in this process. A GPU hardly needs the cores.
_SAMPLING_PROCESSES = {"cuda": max(2, num_cpus() // 2), "cpu": 2}
# How long a thread runs before Python switches. With the default of 5 ms, a GPU could wait for this thread.
_SWITCH_SECONDS = 0.0005
# How often a long wait looks for an interruption.
_POLL_SECONDS = 0.5
# How long a thread may take to end. The process does not wait for one that is computing a long plan.
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LoadedUpdate:
    """A planned update, and this rank's batches of it on its device, each with its index among all micro-batches."""

    planned: PlannedUpdate
    batches: list[tuple[int, Batch]]


class SideStream:
    """A stream that copies batches from pinned memory to the device while it computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def in_thread(self) -> AbstractContextManager[object]:
        """Set the thread's stream and, with it, its device, which is not inherited from the main thread."""
        return torch.cuda.stream(self._stream)

    def end_of_copies(self) -> torch.cuda.Event:
        """In the thread: an event after all copies so far."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def receive(self, batches: list[tuple[int, Batch]], end_of_copies: torch.cuda.Event) -> None:
        """In the main thread: let its stream wait for the event, and keep the batches' memory until it has used them.

        Pinned memory needs no such care, because its allocator sees the copies.
        """
        current = torch.cuda.current_stream(self._device)
        current.wait_event(end_of_copies)
        for _, batch in batches:
            for tensor in batch.tensors():
                tensor.record_stream(current)


class Loader:
    """The updates of a training in turn, from the order's position on; a context that ends its thread.

    From the first `next` on, only the thread uses the order. An update that was loaded but not taken is not lost: the
    position that counts is that of the last update taken.
    """

    def __init__(self, order: DataOrder, ranks: Ranks, *, is_interrupted: Callable[[], bool]) -> None:
        self._order, self._ranks, self._is_interrupted = order, ranks, is_interrupted
        device = ranks.device
        self._side_stream = SideStream(device) if device.type == "cuda" else None  # on a CPU, batches are made in place
        self._updates_ahead = _UPDATES_AHEAD[device.type]
        self._ready: deque[tuple[LoadedUpdate, torch.cuda.Event | None]] = deque()
        self._num_wanted = 0  # how many updates `next` wants to have ready
        self._num_left = 0  # how many updates the training still takes
        self._is_closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.waited_seconds = 0.0
        """The time that `next` has waited for data, in total."""
        self._switch_seconds = 0.0

    def __enter__(self) -> Loader:
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._order.close()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        sys.setswitchinterval(self._switch_seconds)

    def next(self, *, num_left: int) -> LoadedUpdate | None:
        """The next update; at most `num_left` are loaded, including this one. Raises the error of the thread.

        None if a signal interrupts a long wait, for example for an epoch whose pieces are being sampled.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nmt-loader", daemon=True)
            self._thread.start()
        start = time.perf_counter()
        with self._changed:
            self._num_wanted, self._num_left = min(1 + self._updates_ahead, num_left), num_left
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: self._ready or self._error, _POLL_SECONDS):
                if self._is_interrupted():
                    return None
            if not self._ready:
                assert self._error is not None
                raise self._error
            loaded, end_of_copies = self._ready.popleft()
            self._num_wanted -= 1
            self._num_left -= 1
        self.waited_seconds += time.perf_counter() - start
        if self._side_stream is not None and end_of_copies is not None:
            self._side_stream.receive(loaded.batches, end_of_copies)
        return loaded

    def _work(self) -> None:
        try:
            with nullcontext() if self._side_stream is None else self._side_stream.in_thread():
                while self._wait_until_wanted():
                    loaded = self._load()
                    end_of_copies = None if self._side_stream is None else self._side_stream.end_of_copies()
                    with self._changed:
                        self._ready.append((loaded, end_of_copies))
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_until_wanted(self) -> bool:
        """Wait until another update is wanted. Returns False if the loader is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._ready) < self._num_wanted)
            return not self._is_closed

    def _load(self) -> LoadedUpdate:
        update = self._order.next()
        if self._ranks.is_first_on_machine:
            with self._changed:
                num_updates = self._num_left - len(self._ready) - 1
            self._order.sample_ahead(num_updates=num_updates, num_workers=_SAMPLING_PROCESSES[self._ranks.device.type])
        device = self._ranks.device
        batches = [
            (index, self._order.batch(rows, device=device, pinned=device.type == "cuda"))
            for index, rows in enumerate(update.micro_batches)
            if index % self._ranks.size == self._ranks.rank and len(rows)
        ]
        return LoadedUpdate(update, batches)
