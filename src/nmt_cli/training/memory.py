"""How much memory is free for tensors: of a GPU, or of the machine and the control groups that this process is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_ROOT = Path("/")


def free_on_gpu(device: torch.device) -> int:
    """Bytes that this process can still allocate on a GPU, what torch keeps for reuse among them."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def free_on_cpu(root: Path = _ROOT) -> int:
    """Bytes that this process can still allocate: what the machine has, or less where a container or a job may not.

    `root` is the folder in which proc and sys lie.
    """
    return min([_of_machine(root), *_of_groups(root)])


def _of_machine(root: Path) -> int:
    """What Linux takes for available without swapping; elsewhere all that there is."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_groups(root: Path) -> Iterator[int]:
    """What each control group, of version 2 or 1, that this process is in leaves of its limit."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            yield from _of_group(folder, *names)
            if folder == base:
                break


def _of_group(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """What a group leaves of its limit, files that it merely caches not counted; nothing where it has no limit."""
    most, used = ("".join(_lines(folder / name)) for name in (limit, usage))
    if not (most.isdecimal() and used.isdecimal()):
        return
    cached = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat")).get(reclaimable, "0")
    yield max(int(most) - int(used) + int(cached), 0)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
