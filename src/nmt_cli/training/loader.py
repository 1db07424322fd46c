"""The batches of the next updates, made by a thread while the device computes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nmt-loader")
        self._ahead: deque[Future[tuple[LoadedUpdate, torch.cuda.Event | None]]] = deque()
        self.waited_seconds = 0.0
        """The time that `next` has waited for data, in total."""
        self._switch_seconds = 0.0

    def __enter__(self) -> Loader:
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._order.close()
        self._thread.shutdown(cancel_futures=True)
        sys.setswitchinterval(self._switch_seconds)

    def next(self, *, num_left: int) -> LoadedUpdate | None:
        """The next update; at most `num_left` are loaded, including this one. Raises the error of the thread.

        None if a signal interrupts a long wait, for example for an epoch whose pieces are being sampled.
        """
        while len(self._ahead) < min(1 + _UPDATES_AHEAD[self._ranks.device.type], num_left):
            self._ahead.append(self._thread.submit(self._load, num_left=num_left - len(self._ahead) - 1))
        start = time.perf_counter()
        while not wait([self._ahead[0]], _POLL_SECONDS).done:
            if self._is_interrupted():
                return None
        loaded, end_of_copies = self._ahead.popleft().result()
        self.waited_seconds += time.perf_counter() - start
        if self._side_stream is not None and end_of_copies is not None:
            self._side_stream.receive(loaded.batches, end_of_copies)
        return loaded

    def _load(self, *, num_left: int) -> tuple[LoadedUpdate, torch.cuda.Event | None]:
        """An update, after which `num_left` follow, and on a GPU the end of its copies."""
        device, side_stream = self._ranks.device, self._side_stream
        with nullcontext() if side_stream is None else side_stream.in_thread():
            update = self._order.next()
            if self._ranks.is_first_on_machine:
                self._order.sample_ahead(num_updates=num_left, num_workers=_SAMPLING_PROCESSES[device.type])
            batches = [
                (index, self._order.batch(rows, device=device, pinned=device.type == "cuda"))
                for index, rows in enumerate(update.micro_batches)
                if index % self._ranks.size == self._ranks.rank and len(rows)
            ]
            return LoadedUpdate(update, batches), None if side_stream is None else side_stream.end_of_copies()
