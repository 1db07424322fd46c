"""The memory of a process: how much is free, whether it was exhausted, what glibc keeps, when garbage is collected."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nmt_cli.devices import kernel_text

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # the options of mallopt in malloc.h
# New objects, less freed ones, after which Python collects garbage; Python's default is 700.
_GC_THRESHOLD = 10_000
# Parts of messages: torch also reports exhausted memory as a RuntimeError, and oneDNN gives no reason at all.
_MEMORY_MESSAGES = (
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_ONEDNN_MESSAGES = ("could not create a primitive", "could not execute a primitive")


def free_gpu_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on a GPU, including memory that torch keeps for reuse."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def free_cpu_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate, within the limits of its container or job.

    `root` is the folder that holds proc and sys.
    """
    return min([_free_of_machine(root), *_free_of_cgroups(root)])


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks and use them again; without glibc, nothing changes.

    Otherwise the kernel maps each large tensor on a CPU page by page, and unmaps it again
    (docs/design/cpu-training.md#memory).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # Blocks below the first threshold are kept, up to the second. Some versions of glibc refuse a first threshold above
    # 32 MiB.
    if mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 1 << 25):
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    # Other threads than the first still return memory in steps of 64 MiB, unless they keep more than that in reserve.
    mallopt(_M_TOP_PAD, 1 << 27)


def return_freed_memory() -> None:
    """Return the freed blocks that glibc keeps to the system: batches of new sizes cannot use them."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException, *, counts_vague_errors: bool) -> bool:
    """Whether this error, or an error that caused it, says that the memory of a GPU or of the machine is exhausted.

    oneDNN gives no reason when it cannot start a product; its error is a vague one.
    """
    import torch

    vague_messages = _ONEDNN_MESSAGES if counts_vague_errors else ()
    cause: BaseException | None = error
    while cause is not None:
        message = str(cause)
        names_memory = any(words in message for words in _MEMORY_MESSAGES)
        if isinstance(cause, torch.OutOfMemoryError | MemoryError) or names_memory or message.endswith(vague_messages):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def collect_garbage_rarely() -> None:
    """Let Python collect garbage rarely, and never look at the objects that exist now.

    It is called when the models are loaded. A collection stops every thread, and a search leaves no cycles
    (docs/design/serving.md#garbage).
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _free_of_machine(root: Path) -> int:
    """Memory that Linux reports as available without swapping; elsewhere the whole memory."""
    for line in kernel_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_of_cgroups(root: Path) -> Iterator[int]:
    """The memory that each control group of this process leaves of its limit, without cached files."""
    base = root / "sys/fs/cgroup"
    for line in kernel_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, path = line.split(":", 2)
        if hierarchy == "0":  # version 2
            group = base / path.strip("/")
            for folder in (group, *group.parents[: len(group.relative_to(base).parts)]):
                limit, usage = (kernel_text(folder / name).strip() for name in ("memory.max", "memory.current"))
                if limit.isdecimal() and usage.isdecimal():
                    statistics = dict(line.split(" ", 1) for line in kernel_text(folder / "memory.stat").splitlines())
                    yield max(int(limit) - int(usage) + int(statistics.get("inactive_file", "0")), 0)
