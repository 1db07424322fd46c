"""The processes of one training, called ranks: their sums, decisions, signs of life and first failure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented there, and not declared
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from nmt_cli.devices import choose_device
from nmt_cli.errors import DeviceError, TrainingError, first_line

T = TypeVar("T")

LAUNCHED = "NMT_LAUNCHED"
"""Environment variable of the ranks that our own launcher has started."""
CONTINUES = "the same command, without --restart, continues from the newest checkpoint"

# For all ranks to join, on machines that import torch from a slow disk.
_JOIN_TIMEOUT = timedelta(minutes=10)
# In effect no limit: other ranks wait while the first saves, and the watchdog ends a training that hangs.
_COLLECTIVE_TIMEOUT = timedelta(days=7)
_STORE_TIMEOUT = timedelta(seconds=5)
_CAUSE_SECONDS = 3.0
_SMALLEST_INT = -(2**63)


class ConnectionLost(TrainingError):
    """A collective has failed, usually because another rank has ended; the message of that rank says why."""


@dataclass(slots=True)
class Ranks:
    """The place of this process among `size` ranks. Rank 0 writes and reports. A single process has no `board`.

    The first rank on a machine samples the pieces of later epochs for all ranks there. `beats` counts the steps of this
    rank, for the watchdog.
    """

    rank: int
    size: int
    device: torch.device
    board: FailureBoard | None = None
    is_first_on_machine: bool = True
    beats: int = 0

    @property
    def is_first(self) -> bool:
        """True for the rank that saves and reports."""
        return self.rank == 0

    def beat(self) -> None:
        """Count a step."""
        self.beats += 1

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks."""
        if self.size > 1:
            with self.collective():
                dist.all_reduce(tensor)

    def largest(self, value: int) -> int:
        """Return the largest of the ranks' values on every rank."""
        if self.size == 1:
            return value
        with self.collective():
            shared = torch.tensor(value, device=self.device)
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
            return int(shared.item())

    def smallest(self, value: int) -> int:
        """Return the smallest of the ranks' values on every rank."""
        return -self.largest(-value)

    def any(self, claim: bool) -> bool:
        """Return True on every rank if the claim holds on any."""
        return bool(self.largest(int(claim)))

    def broadcast(self, value: int) -> int:
        """Return the value of the first rank on every rank."""
        return self.largest(value if self.is_first else _SMALLEST_INT)

    def gather(self, part: T) -> list[T]:
        """Return the parts of all ranks, in their order, on every rank."""
        if self.size == 1:
            return [part]
        parts = [part] * self.size
        with self.collective():
            dist.all_gather_object(parts, part)
        return parts

    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self.size > 1:
            with self.collective():
                dist.barrier()

    def leave(self) -> None:
        """Close the connection to the other ranks."""
        if self.size > 1:
            dist.destroy_process_group()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Count a collective as progress; raise ConnectionLost if it fails."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
                raise
            raise ConnectionLost(
                f"rank {self.rank} of {self.size} lost the connection to the others",
                where=first_line(error),
                hint=f"look for what ended another process; {CONTINUES}",
            ) from error
        self.beat()


def is_under_torchrun() -> bool:
    """True if torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and LAUNCHED not in os.environ


def join_ranks(device: str) -> Ranks:
    """The place of this process in the training, from the environment that our launcher or torchrun sets.

    A rank takes the GPU with its number on its machine, or the only GPU it sees, as under Slurm's --gpus-per-task=1.
    """
    size, local = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("LOCAL_RANK")
    if size > 1 and local is None:
        raise DeviceError(
            f"WORLD_SIZE is {size}, but LOCAL_RANK is not set",
            where="environment",
            hint="start the ranks with torchrun -m nmt_cli train ..., or unset WORLD_SIZE",
        )
    chosen = choose_device(device)
    if size > 1 and chosen.type == "cuda":
        chosen = choose_device("cuda:0" if torch.cuda.device_count() == 1 else f"cuda:{local}")
    if chosen.index is not None:
        torch.cuda.set_device(chosen)  # streams and events without a device belong to the current one
    if size == 1:
        return Ranks(0, 1, chosen)
    try:
        store, rank, size = next(rendezvous("env://", timeout=_JOIN_TIMEOUT))
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=_COLLECTIVE_TIMEOUT,
            device_id=chosen if chosen.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"the {size} processes of the training did not find each other",
            where=str(error).rpartition("Last error:")[2].strip().partition("\n")[0],  # "Last error:" is NCCL's
            hint="check that all were started, and that MASTER_ADDR and MASTER_PORT can be reached from each machine",
        ) from error
    return Ranks(rank, size, chosen, find_failure_board(), is_first_on_machine=local == "0")


class FailureBoard:
    """The signs of life and the first failure that ranks and launcher share; RuntimeError if it is out of reach."""

    def __init__(self, store: Store) -> None:
        # torchrun counts its attempts, and its store outlives each.
        self._store = PrefixStore(f"nmt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def beat(self, *, is_progress: bool) -> int:
        """Report whether a rank has made progress; return how often ranks have."""
        return self._store.add("beats", int(is_progress))

    def claim(self, exit_code: int) -> int | None:
        """Report a failure. Return None if it is the first, whose message is shown; else return the first's code."""
        if self._store.add("claims", 1) > 1:
            return int(self._store.get("failure"))  # waits for the process that is about to write it
        self._store.set("failure", str(exit_code))
        return None

    def failure(self) -> int | None:
        """The exit code of the first failure; None if there is none."""
        return int(self._store.get("failure")) if self._store.check(["failure"]) else None


def find_failure_board() -> FailureBoard | None:
    """The board of the launcher or the first rank that the environment names; None if it is out of reach."""
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return FailureBoard(TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT))
    except (KeyError, RuntimeError):
        return None


def report_failure(exit_code: int, *, is_consequence: bool) -> int | None:
    """Report this rank's failure. Return the code of an earlier one, whose message is enough; None if there is none.

    A failure that is only a consequence waits a few seconds for its cause to be reported.
    """
    board = find_failure_board()
    if board is None:
        return None
    try:
        deadline = time.monotonic() + (_CAUSE_SECONDS if is_consequence else 0.0)
        while board.failure() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return board.claim(exit_code)
    except RuntimeError:
        return None
