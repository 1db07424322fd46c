"""The memory of a process: what glibc keeps, when Python collects garbage, and whether memory was exhausted."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_UNFREED_OBJECTS = 10_000  # made and not yet freed between looks for garbage; 700 in Python 3.11
# What torch says of exhausted memory in errors of other classes, and what oneDNN says.
_MEMORY_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_ONEDNN_SIGNS = ("could not create a primitive", "could not execute a primitive")


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for later blocks of the same size, if glibc allocates the memory.

    Otherwise each large tensor on a CPU is mapped, faulted in page by page, and unmapped again
    (docs/design/cpu-training.md#memory).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # Some versions of glibc take no more than 32 MiB; a refusal would leave the threshold at its smallest.
    if mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 1 << 25):
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    # What threads other than the first have goes back by 64 MiB all the same, unless more is kept spare.
    mallopt(_M_TOP_PAD, 1 << 27)


def return_freed_memory() -> None:
    """Return to the system the freed blocks that glibc keeps; batches always need new sizes."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(problem: BaseException, *, must_name_memory: bool = False) -> bool:
    """Whether the memory of a GPU or of the machine was exhausted, or caused this problem.

    oneDNN gives no reason when it cannot start a product. If `must_name_memory`, an error of oneDNN without a reason
    does not count.
    """
    import torch

    signs = () if must_name_memory else _ONEDNN_SIGNS
    seen: BaseException | None = problem
    while seen is not None:
        message = str(seen)
        is_known = isinstance(seen, torch.OutOfMemoryError | MemoryError)
        if is_known or any(sign in message for sign in _MEMORY_SIGNS) or message.endswith(signs):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def collect_garbage_rarely() -> None:
    """Let Python collect garbage rarely, and never look at the objects that exist now; to be called after loading.

    A collection stops every thread, and searches leave no cycles (docs/design/serving.md#garbage). Loading leaves a
    few objects, which stay.
    """
    gc.freeze()
    gc.set_threshold(_UNFREED_OBJECTS)
