"""Which device and which precision a run takes, decided in one place, and how its process treats memory."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from nmt_cli.errors import DeviceError, UsageError

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["bf16", "fp32"]
PrecisionChoice = Literal["auto", "bf16", "fp32"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_UNFREED_OBJECTS = 10_000  # made and not yet freed between looks for garbage; 700 in Python 3.11
# What torch says where memory does not suffice, beside the errors that are of that kind; and what oneDNN says.
_MEMORY_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_ONEDNN_SIGNS = ("could not create a primitive", "could not execute a primitive")
_PYTHON_HEADER = Path(sysconfig.get_path("include")) / "Python.h"
_FLOAT32_ERROR = 1e-5  # of the largest of sums of 512 products: float32 is near 1e-6, bf16 near 2e-3


def num_cpus() -> int:
    """The CPUs that this process may use, which a scheduler may have made fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu_driver() -> bool:
    """Whether there can be a GPU at all; torch, which knows, takes a second and much memory to load."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def missing_for_triton() -> str | None:
    """What Triton lacks here, with the command that installs it; None if it lacks nothing.

    Triton compiles its driver with the program that CC names, or else with gcc or clang, against Python's headers
    (`triton/runtime/build.py`), and keeps the result in a folder of the user's.
    """
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    chosen = os.environ.get("CC")
    if chosen is not None and shutil.which(chosen) is None:
        return f"CC is {chosen!r}, and no such program is found (unset CC)"
    if chosen is None and not (shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler is found (apt-get install gcc libc6-dev)"
    if not _PYTHON_HEADER.is_file():
        return "Python.h is not found (apt-get install python3-dev)"
    home = Path(os.environ.get("TRITON_HOME") or os.path.expanduser("~"))  # Path.home() may raise
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    folder = next(each for each in (cache, *cache.parents, Path()) if each.exists())
    if not os.access(folder, os.W_OK):
        return f"{cache} cannot be written (set TRITON_CACHE_DIR to a folder that can)"
    return None


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """A context in which Triton launches kernels on this device: it takes the current one."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def choose_device(name: str) -> torch.device:
    """The torch device for `auto` (the first GPU, else the CPU), `cpu`, `cuda` or `cuda:N`.

    Raises DeviceError where a GPU is asked for that is not there.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise DeviceError(
            f"there is no device called {name!r}", where="--device", hint="take auto, cpu, cuda or cuda:N"
        )
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {name!r} was asked for, but torch {torch.__version__} sees no GPU here",
            where="--device",
            hint="give --device cpu, or install a torch build with CUDA and check nvidia-smi",
        )
    if index and int(index) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r} was asked for, but there are only {torch.cuda.device_count()} GPUs",
            where="--device",
            hint=f"take cuda:0 to cuda:{torch.cuda.device_count() - 1}",
        )
    return torch.device(name)


def parse_precision(precision: str) -> PrecisionChoice:
    """The choice of that name; UsageError where there is none."""
    choices: tuple[PrecisionChoice, ...] = get_args(PrecisionChoice)
    for choice in choices:
        if precision == choice:
            return choice
    raise UsageError(
        f"there is no precision called {precision!r}", where="--precision", hint=f"take one of: {', '.join(choices)}"
    )


def choose_precision(choice: PrecisionChoice, *, device: torch.device, training: bool) -> Precision:
    """The precision of matrix products for `auto`: bf16 where the hardware multiplies it natively, else float32.

    On a CPU `auto` means bf16 for training only: decoding stays in float32 there.
    """
    if choice != "auto":
        return choice
    if device.type == "cuda":
        import torch

        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    return "bf16" if training and cpu_multiplies_bf16() else "fp32"


def cpu_multiplies_bf16() -> bool:
    """True where the CPU has AVX512-BF16 or AMX-BF16 instructions; elsewhere bf16 is slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for the next ones of their size, where glibc is what allocates.

    Else each large tensor on a CPU is mapped, faulted in page by page, and unmapped again (docs/LOG.md).
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
    """Give the system what glibc keeps of freed blocks, which are of ever new sizes where batches are."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return


def is_out_of_memory(problem: BaseException, *, is_told: bool = False) -> bool:
    """Whether a GPU's memory, or the machine's, did not suffice, or that is what led to the problem.

    oneDNN does not say why it cannot begin a product; that counts unless it `is_told` otherwise: the least work too.
    """
    import torch

    signs = () if is_told else _ONEDNN_SIGNS
    seen: BaseException | None = problem
    while seen is not None:
        message = str(seen)
        is_known = isinstance(seen, torch.OutOfMemoryError | MemoryError)
        if is_known or any(sign in message for sign in _MEMORY_SIGNS) or message.endswith(signs):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def collect_garbage_rarely() -> None:
    """Let Python look for garbage rarely, and at nothing that is there by now: once all is loaded.

    A look holds up every thread, and searches leave nothing that needs one (docs/LOG.md). Loading leaves a few objects,
    which stay.
    """
    gc.freeze()
    gc.set_threshold(_UNFREED_OBJECTS)


def multiply_float32_fast(device: torch.device) -> bool:
    """Let float32 products on a CPU go through oneDNN where that is as exact, and say whether they do now.

    torch takes MKL for them, which on AMD reaches half of oneDNN's rate (docs/LOG.md), and oneDNN only at the precision
    "medium", which allows it to multiply in bf16. With AMX it does; without, it stays in float32. A product tells. What
    has been set already is left alone, and so is a process that uses a GPU, as the setting would hold there too.
    """
    import torch

    if device.type != "cpu" or torch.cuda.is_initialized():
        return False
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's newer names
        return False
    if before == "medium":
        return _multiplies_exactly()
    if before != "highest":
        return False
    torch.set_float32_matmul_precision("medium")
    if _multiplies_exactly():
        return True
    torch.set_float32_matmul_precision(before)
    return False


def _multiplies_exactly() -> bool:
    """Whether products of a few shapes have float32's accuracy."""
    import torch

    wave = torch.arange(256 * 512).sin().view(256, 512)
    for left, right in ((wave, wave.t()), (wave.t(), wave), (wave[:8], wave.t())):
        exact = left.double() @ right.double()
        if float((left @ right - exact).abs().max() / exact.abs().max()) > _FLOAT32_ERROR:
            return False
    return True
