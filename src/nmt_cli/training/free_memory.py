"""The memory that this process can still allocate, on a GPU or on a CPU, within the limits of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch


def free_on_gpu(device: torch.device) -> int:
    """Bytes that this process can still allocate on a GPU, including memory that torch keeps for reuse."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def free_on_cpu(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate, within the limits of its container or job.

    `root` is the folder that holds proc and sys.
    """
    return min([_free_of_machine(root), *_free_of_groups(root)])


def _free_of_machine(root: Path) -> int:
    """Memory that Linux reports as available without swapping; elsewhere the whole memory."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_of_groups(root: Path) -> Iterator[int]:
    """The memory that each control group of this process, version 2 or 1, leaves of its limit."""
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
            yield from _free_of_group(folder, *names)
            if folder == base:
                break


def _free_of_group(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """The memory that a group leaves of its limit, without cached files; nothing if the group has no limit."""
    most, used = ("".join(_lines(folder / name)) for name in (limit, usage))
    if not (most.isdecimal() and used.isdecimal()):
        return
    cached = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat")).get(reclaimable, "0")
    yield max(int(most) - int(used) + int(cached), 0)


def _lines(file: Path) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
