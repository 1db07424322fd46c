"""Where the work of writing tensors is done: at once, or in a thread while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

TensorsByFile = Mapping[str, Mapping[str, Tensor]]
"""Tensors by the name of their file and their own."""


class Writer(Protocol):
    """Does one piece of work at a time."""

    def keep(self, tensors: TensorsByFile) -> TensorsByFile:
        """The tensors with the values of this moment, until the work that begins next is done."""

    def begin(self, work: Callable[[], None]) -> None:
        """Do the work, which reads what `keep` returned, or begin it; raises what the work raises, if it is done."""

    @property
    def is_done(self) -> bool:
        """Whether no work is under way."""

    def join(self) -> None:
        """Return when the work is done; raises what the work raised."""


class DirectWriter:
    """Does the work at once. On a CPU a thread would take cores from the training, and copies would take memory."""

    is_done = True

    def keep(self, tensors: TensorsByFile) -> TensorsByFile:
        """The tensors themselves."""
        return tensors

    def begin(self, work: Callable[[], None]) -> None:
        """Do the work."""
        work()

    def join(self) -> None:
        """All work is done."""


class BackgroundWriter:
    """Copies tensors into the memory of the host, and does the work in a thread.

    The copies of a GPU's tensors are pinned: the training stream makes them, and the host does not wait. Later copies
    of tensors of the same names reuse the memory.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._copied: torch.cuda.Event | None = None
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    def keep(self, tensors: TensorsByFile) -> TensorsByFile:
        """Copies of the tensors; on a GPU they are complete when the work begins."""
        assert self.is_done, "a thread is reading the copies"
        kept = {
            file: {name: self._copy((file, name), tensor) for name, tensor in named.items()}
            for file, named in tensors.items()
        }
        device = next(
            (tensor.device for named in tensors.values() for tensor in named.values() if tensor.is_cuda), None
        )
        if device is not None:
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record(torch.cuda.current_stream(device))
        return kept

    def begin(self, work: Callable[[], None]) -> None:
        """Begin the work in a thread. The end of the process does not wait for the thread: `join` does."""
        self._thread = threading.Thread(target=self._do, args=(work,), name="nmt-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether no thread is at work."""
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _copy(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        if key not in self._copies:
            self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return self._copies[key].copy_(tensor.detach(), non_blocking=True)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            if self._copied is not None:
                self._copied.synchronize()
            work()
        except BaseException as problem:
            self._problem = problem
