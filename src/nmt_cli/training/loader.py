"""The batches of the next updates, made by a thread while the device computes."""

from __future__ import annotations

import os
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
# Processes that build the next plan. On a CPU the training needs the cores; on a GPU it hardly does.
_PLANNING_PROCESSES = {"cuda": max(1, num_cpus() // 2), "cpu": 1}
# How long a thread runs before Python switches. With the default of 5 ms, a GPU could wait for this thread.
_SWITCH_SECONDS = 0.0005
# How often a long wait looks for an interruption.
_POLL_SECONDS = 0.5
# How long a thread may take to end. The process does not wait for one that is building a long plan.
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LoadedUpdate:
    """A planned update, and this rank's batches of it on its device, each with its index among all micro-batches."""

    planned: PlannedUpdate
    batches: list[tuple[int, Batch]]


class HostToDevice:
    """The way of batches to the device while it computes. On a CPU they are made in place."""

    is_pinned = False

    def in_thread(self) -> AbstractContextManager[object]:
        """A context for the whole life of the loader's thread."""
        return nullcontext()

    def end_of_copies(self) -> torch.cuda.Event | None:
        """In the thread: an event after all copies so far."""
        return None

    def receive(self, batches: list[tuple[int, Batch]], end_of_copies: torch.cuda.Event | None) -> None:
        """In the main thread: let all later computation come after the copies, and keep the batches until then."""


class SideStream(HostToDevice):
    """A separate stream copies batches from pinned memory."""

    is_pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def in_thread(self) -> AbstractContextManager[object]:
        """Set the thread's stream and, with it, its device, which is not inherited from the main thread."""
        return torch.cuda.stream(self._stream)

    def end_of_copies(self) -> torch.cuda.Event:
        """An event on the stream."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def receive(self, batches: list[tuple[int, Batch]], end_of_copies: torch.cuda.Event | None) -> None:
        """Let the current stream wait for the event, and keep the batches' memory until the stream has used it.

        Pinned memory needs no such care, because its allocator sees the copies.
        """
        assert end_of_copies is not None
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

    def __init__(
        self,
        order: DataOrder,
        ranks: Ranks,
        *,
        is_interrupted: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._order, self._ranks, self._is_interrupted, self._clock = order, ranks, is_interrupted, clock
        device = ranks.device
        self._to_device = SideStream(device) if device.type == "cuda" else HostToDevice()
        self._updates_ahead = _UPDATES_AHEAD[device.type]
        self._ready: deque[tuple[LoadedUpdate, torch.cuda.Event | None]] = deque()
        self._wanted, self._num_left, self._is_closed = 0, 0, False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.waited = 0.0
        """Seconds in total that `next` has waited for data."""
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

        None if the training is interrupted while it waits long, as for an epoch that is being sampled.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nmt-loader", daemon=True)
            self._thread.start()
        start = self._clock()
        with self._changed:
            self._wanted, self._num_left = min(1 + self._updates_ahead, num_left), num_left
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: self._ready or self._error, _POLL_SECONDS):
                if self._is_interrupted():
                    return None
            if not self._ready:
                assert self._error is not None
                raise self._error
            loaded, end_of_copies = self._ready.popleft()
            self._wanted -= 1
            self._num_left -= 1
        self.waited += self._clock() - start
        self._to_device.receive(loaded.batches, end_of_copies)
        return loaded

    def _work(self) -> None:
        try:
            with self._to_device.in_thread():
                while self._is_wanted():
                    loaded = self._load()
                    end_of_copies = self._to_device.end_of_copies()
                    with self._changed:
                        self._ready.append((loaded, end_of_copies))
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _is_wanted(self) -> bool:
        """Wait until another update is wanted, and return True; False if none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._ready) < self._wanted)
            return not self._is_closed

    def _load(self) -> LoadedUpdate:
        update = self._order.next()
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one of the ranks on this machine
            with self._changed:
                num_updates = self._num_left - len(self._ready) - 1
            self._order.plan_ahead(num_updates=num_updates, num_workers=_PLANNING_PROCESSES[self._ranks.device.type])
        batches = [
            (index, self._order.batch(rows, device=self._ranks.device, pinned=self._to_device.is_pinned))
            for index, rows in enumerate(update.micro_batches)
            if index % self._ranks.size == self._ranks.rank and len(rows)
        ]
        return LoadedUpdate(update, batches)
