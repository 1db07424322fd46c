"""The ranks of a training under torchrun, or the one of a plain process; sums and decisions that all of them share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from nmt_cli.devices import choose_device
from nmt_cli.errors import DeviceError

# The others wait for the first rank while it validates and saves.
_PATIENCE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among `size` of them; rank 0 writes and talks."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True for the rank that validates, saves and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks: each divided its losses by the tokens of all of them before."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def any(self, claim: bool) -> bool:
        """True on every rank where the claim holds on one."""
        if self.size == 1:
            return claim
        flag = torch.tensor(int(claim), device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def wait(self) -> None:
        """Return when every rank has come here."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Give up the connection to the other ranks."""
        if self.size > 1:
            dist.destroy_process_group()


def join(device: str) -> Ranks:
    """The place that torchrun's environment gives this process, with its device; a plain process is alone."""
    size, local = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("LOCAL_RANK")
    if size == 1:
        return Ranks(0, 1, choose_device(device))
    if local is None:
        raise DeviceError(
            f"WORLD_SIZE is {size}, but LOCAL_RANK is not set",
            where="environment",
            hint="start the ranks with torchrun -m nmt_cli train ..., or unset WORLD_SIZE",
        )
    chosen = choose_device(device)
    if chosen.type == "cuda":
        chosen = choose_device(f"cuda:{local}")
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_PATIENCE)
    return Ranks(dist.get_rank(), size, chosen)
