"""The choice of device and precision, and what this machine has for them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

from nmt_cli.errors import DeviceError, UsageError

if TYPE_CHECKING:
    import torch

Precision = Literal["bf16", "fp32"]
PrecisionChoice = Literal["auto", "bf16", "fp32"]
Quantization = Literal[  # of the weights of a model in CTranslate2's format
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]

_PYTHON_HEADER = Path(sysconfig.get_path("include")) / "Python.h"
# How often a waiting OpenMP thread looks for the others before it sleeps. Few spins suit a busy machine
# (docs/design/cpu-search.md#threads), and many suit training on an idle one (docs/design/cpu-training.md#waiting).
DECODING_SPINS, TRAINING_SPINS = 1_000, 50_000
# The most tokens of a short sentence. Nearly all updates have only short sentences, and attention has kernels for them.
SHORT_SENTENCE_TOKENS = 128
_FLOAT32_ERROR = 1e-5  # of the largest of sums of 512 products: float32 is near 1e-6, bf16 near 2e-3


def num_cpus() -> int:
    """The CPUs that this process may use; a scheduler may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_text(path: str | Path) -> str:
    """The text of a file of the Linux kernel, such as /proc/cpuinfo; empty if it cannot be read."""
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def cpu_name() -> str:
    """The name of the processor, such as `AMD EPYC 9554`, or else its architecture."""
    lines = kernel_text("/proc/cpuinfo").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), platform.processor() or platform.machine())


def bound_spinning(spins: int) -> None:
    """Let a waiting OpenMP thread look for the others `spins` times, and then sleep, unless the environment decides.

    The default of 300,000 is slow if other programs use the CPUs. torch's OpenMP reads the variable when torch is
    imported, so call this earlier.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(spins))


def has_gpu_driver() -> bool:
    """Whether a GPU driver is present, found out without torch, which takes a second and much memory to load."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


class MissingTool(NamedTuple):
    """A tool that is not installed or cannot be used, in words, and how to mend it."""

    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.problem} ({self.fix})"


def missing_for_triton() -> MissingTool | None:
    """The first tool that Triton lacks here; None if nothing is missing.

    Triton compiles its driver against Python's headers with the program that CC names, or else with gcc or clang
    (`triton/runtime/build.py`). It keeps the result in a folder of the user's.
    """
    if find_spec("triton") is None:
        return MissingTool("Triton is not installed", "pip install triton")
    chosen = os.environ.get("CC")
    if chosen is not None and shutil.which(chosen) is None:
        return MissingTool(f"CC is {chosen!r}, and no such program is found", "unset CC")
    if chosen is None and not (shutil.which("gcc") or shutil.which("clang")):
        return MissingTool("no C compiler is found", "apt-get install gcc libc6-dev")
    if not _PYTHON_HEADER.is_file():
        return MissingTool("Python.h is not found", "apt-get install python3-dev")
    home = Path(os.environ.get("TRITON_HOME") or os.path.expanduser("~"))  # Path.home() may raise
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    nearest = next(folder for folder in (cache, *cache.parents, Path()) if os.path.exists(folder))  # never raises
    if not os.access(nearest, os.W_OK):
        return MissingTool(f"{cache} cannot be written", "set TRITON_CACHE_DIR to a folder that can")
    return None


def choose_device(name: str) -> torch.device:
    """The torch device for `auto` (the first GPU, or else the CPU), `cpu`, `cuda` or `cuda:N`.

    Raises DeviceError if there is no such GPU.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    chosen = re.fullmatch(r"cuda(?::(0|[1-9][0-9]*))?", name)
    if chosen is None:
        raise DeviceError(
            f"there is no device called {name!r}", setting="device", hint="take auto, cpu, cuda or cuda:N"
        )
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {name!r} was asked for, but torch {torch.__version__} sees no GPU here",
            setting="device",
            hint="give `device: cpu`, or install a torch build with CUDA and check nvidia-smi",
        )
    if int(chosen[1] or 0) >= (count := torch.cuda.device_count()):
        raise DeviceError(
            f"device {name!r} was asked for, but torch sees only {count} GPU{'s' * (count > 1)} here",
            setting="device",
            hint="take cuda:0" if count == 1 else f"take cuda:0 to cuda:{count - 1}",
        )
    return torch.device(name)


def parse_precision(precision: str) -> PrecisionChoice:
    """The precision of that name; UsageError if there is none."""
    if precision not in get_args(PrecisionChoice):
        hint = f"take one of: {', '.join(get_args(PrecisionChoice))}"
        raise UsageError(f"there is no precision called {precision!r}", setting="precision", hint=hint)
    return cast(PrecisionChoice, precision)


def choose_precision(choice: PrecisionChoice, *, device: torch.device, training: bool) -> Precision:
    """The precision of matrix products; `auto` is bf16 if the hardware multiplies it natively, else float32.

    DeviceError for bf16 on a GPU without it. On a CPU, `auto` is bf16 for training only; decoding stays in float32.
    """
    if device.type == "cuda" and choice != "fp32":
        import torch

        if torch.cuda.get_device_capability(device) >= (8, 0):
            return "bf16"
        if choice == "auto":
            return "fp32"
        raise DeviceError(
            "this GPU does not multiply bf16", setting="precision", hint="give `precision: fp32`, or take a newer GPU"
        )
    if choice != "auto":
        return choice
    return "bf16" if training and cpu_multiplies_bf16() else "fp32"


def cpu_multiplies_bf16() -> bool:
    """True if the CPU has AVX512-BF16 or AMX-BF16 instructions; without them bf16 is slower than float32."""
    flags = kernel_text("/proc/cpuinfo")
    return "avx512_bf16" in flags or "amx_bf16" in flags


def multiply_float32_fast(device: torch.device) -> bool:
    """Use oneDNN for float32 products on a CPU if they stay exact; True if it is used.

    MKL, torch's default, reaches half of oneDNN's rate on AMD (docs/design/cpu-training.md#precision). torch uses
    oneDNN only at the precision "medium". On a CPU with AMX, "medium" multiplies in bf16. So a test product decides.
    The precision "high" stays: only the user sets it. A process that uses a GPU keeps its precision too, because the
    setting would hold there.
    """
    import torch

    if device.type != "cpu" or torch.cuda.is_initialized():
        return False
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's newer names
        return False
    if before not in ("medium", "highest"):  # an earlier call of ours has set "medium"
        return False
    torch.set_float32_matmul_precision("medium")
    is_exact = _multiplies_exactly()
    if not is_exact:
        torch.set_float32_matmul_precision(before)
    return is_exact


def _multiplies_exactly() -> bool:
    """Whether products of a few shapes have float32's accuracy."""
    import torch

    wave = torch.arange(256 * 512).sin().view(256, 512)
    for left, right in ((wave, wave.t()), (wave.t(), wave), (wave[:8], wave.t())):
        exact = left.double() @ right.double()
        if float((left @ right - exact).abs().max() / exact.abs().max()) > _FLOAT32_ERROR:
            return False
    return True
