"""The ranks of a training, or the one of a plain process; sums and decisions that all of them share."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from nmt_cli.devices import choose_device
from nmt_cli.errors import DeviceError, TrainingError
from nmt_cli.training.bulletin import Bulletin, find_bulletin

# For all to have come, on machines that import torch from a slow disk.
_START = timedelta(minutes=10)
# No limit to speak of: the others wait while the first rank validates, and a rank that hangs is the watchdog's affair.
_PATIENCE = timedelta(days=7)


class ConnectionLost(TrainingError):
    """A collective has failed, as a rule since another rank is no more: that one's own message says why."""


class Pulse:
    """Counts the steps that this rank has made, for the watchdog."""

    def __init__(self) -> None:
        self.beats = 0

    def beat(self) -> None:
        """One more."""
        self.beats += 1


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among `size` of them; rank 0 writes and talks. `bulletin` is None where a process is alone."""

    rank: int
    size: int
    device: torch.device
    bulletin: Bulletin | None = None
    pulse: Pulse = field(default_factory=Pulse)

    @property
    def is_first(self) -> bool:
        """True for the rank that validates, saves and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks: each divided its losses by the tokens of all of them before."""
        if self.size > 1:
            with self.together():
                dist.all_reduce(tensor)

    def begin_sum(self, tensor: Tensor) -> dist.Work:
        """Begin to replace a tensor by its sum over the ranks, in the background; `finish_sum` waits for it.

        All ranks begin such sums in the same order. On a GPU both follow what the present stream has been given.
        """
        with self._told_when_lost():
            work: dist.Work | None = dist.all_reduce(tensor, async_op=True)
        assert work is not None, "of several ranks, each is one of the group"
        return work

    def finish_sum(self, work: dist.Work) -> None:
        """Return when a sum is there; on a GPU, when the present stream is to wait for it."""
        with self.together():
            work.wait()

    def largest(self, value: int) -> int:
        """The largest of the ranks' values, on every rank."""
        if self.size == 1:
            return value
        with self.together():
            shared = torch.tensor(value, device=self.device)
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
            return int(shared.item())

    def smallest(self, value: int) -> int:
        """The smallest of the ranks' values, on every rank."""
        return -self.largest(-value)

    def any(self, claim: bool) -> bool:
        """True on every rank where the claim holds on one."""
        return bool(self.largest(int(claim)))

    def of_first(self, value: float) -> float:
        """The value of the first rank, on every rank, so that all decide alike by it."""
        if self.size == 1:
            return value
        with self.together():
            shared = torch.tensor(value, dtype=torch.float64, device=self.device)
            dist.broadcast(shared, src=0)
            return float(shared.item())

    def wait(self) -> None:
        """Return when every rank has come here."""
        if self.size > 1:
            with self.together():
                dist.barrier()

    def leave(self) -> None:
        """Give up the connection to the other ranks."""
        if self.size > 1:
            dist.destroy_process_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Count what all ranks do as progress; ConnectionLost where it fails."""
        with self._told_when_lost():
            yield
        self.pulse.beat()

    @contextmanager
    def _told_when_lost(self) -> Iterator[None]:
        """ConnectionLost where a collective fails, which torch tells by a RuntimeError."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            raise ConnectionLost(
                f"rank {self.rank} of {self.size} lost the connection to the others",
                where=str(problem).strip().partition("\n")[0],
                hint="look for what ended another process; the same command continues from the newest checkpoint",
            ) from problem


def is_under_torchrun() -> bool:
    """True where torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def join(device: str) -> Ranks:
    """The place that the launcher's environment, ours or torchrun's, gives this process; a plain process is alone.

    A rank takes the GPU of its number on its machine, or the only one that it sees, as under Slurm's --gpus-per-task=1.
    """
    size, local = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("LOCAL_RANK")
    if size == 1:
        chosen = choose_device(device)
        if chosen.index is not None:
            torch.cuda.set_device(chosen)  # streams and events without a device are those of the current one
        return Ranks(0, 1, chosen)
    if local is None:
        raise DeviceError(
            f"WORLD_SIZE is {size}, but LOCAL_RANK is not set",
            where="environment",
            hint="start the ranks with torchrun -m nmt_cli train ..., or unset WORLD_SIZE",
        )
    chosen = choose_device(device)
    if chosen.type == "cuda":
        chosen = choose_device("cuda:0" if torch.cuda.device_count() == 1 else f"cuda:{local}")
        torch.cuda.set_device(chosen)
    try:
        store, rank, size = next(rendezvous("env://", timeout=_START))
        if chosen.type == "cuda" and torch.cuda.device_count() == 1:
            _claim_gpu(chosen, store)
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=_PATIENCE,
            device_id=chosen if chosen.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as problem:
        raise DeviceError(
            f"the {size} processes of the training did not find each other",
            where=str(problem).strip().partition("\n")[0],
            hint="check that all were started, and that MASTER_ADDR and MASTER_PORT can be reached from each machine",
        ) from problem
    return Ranks(rank, size, chosen, find_bulletin())


def _claim_gpu(device: torch.device, store: Store) -> None:
    """Note in the ranks' store that this rank has a GPU; DeviceError if another rank has the same."""
    if store.add(f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}", 1) > 1:
        raise DeviceError(
            "two processes of the training see the same GPU, and no other",
            where="CUDA_VISIBLE_DEVICES",
            hint="let every process see a GPU of its own, or start as many processes as there are GPUs",
        )
