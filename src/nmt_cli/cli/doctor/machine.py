"""The installation and the machine as facts: versions, extras, processor, threads, GPUs, memory and disks."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import nmt_cli
from nmt_cli.cache import cache_folder
from nmt_cli.devices import cpu_multiplies_bf16, cpu_name, has_gpu_driver, kernel_text, missing_for_triton, num_cpus
from nmt_cli.files import free_bytes, nearest_existing
from nmt_cli.memory import free_cpu_bytes

# Packages by their names on PyPI: REQUIRED is always needed. By extra, EXTRAS has its purpose and the packages it adds.
REQUIRED = (
    *("torch", "numpy", "sentencepiece", "sacrebleu", "sacremoses", "datasets", "pyarrow", "safetensors"),
    *("huggingface-hub", "schedulefree", "pydantic", "pyyaml", "jinja2", "rich", "typer", "zstandard", "lxml", "polib"),
    *("langcodes", "language-data", "regex"),
)
EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "serve": ("nmt serve", ("starlette", "uvicorn", "httptools", "prometheus-client", "python-multipart")),
    "export": ("CTranslate2: nmt export, and --engine ctranslate2 of nmt decode and nmt serve", ("ctranslate2",)),
    "huggingface": ("nmt export --to huggingface, and the comparison in nmt import", ("transformers",)),
    "langid": ("the check of languages in nmt prepare and nmt serve", ("py3langid",)),
    "tensorboard": ("nmt train --tensorboard", ("tensorboard",)),
}
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def describe_machine() -> dict[str, Any]:
    """All facts, ready for JSON. `torch` has `error` instead of its facts if it cannot be imported."""
    cache, here = cache_folder(), Path.cwd()
    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "nmt": {"version": nmt_cli.__version__, "folder": str(Path(__file__).resolve().parents[2])},
        "python": {"version": platform.python_version(), "program": sys.executable},
        "system": platform.platform(),
        "packages": {name: _installed_version(name) for name in REQUIRED},
        "extras": {name: _describe_extra(name) for name in EXTRAS},
        "torch": _describe_torch(),
        "cpu": _describe_cpu(),
        "memory": {"total_bytes": total_memory, "free_bytes": free_cpu_bytes()},
        "environment": {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        "gpu_driver": has_gpu_driver(),
        "missing_for_triton": missing_for_triton(),
        "openmp": _openmp_libraries(),
        "folder": {"path": str(here), "free_bytes": free_bytes(here), "writable": _is_writable(here)},
        "cache": {"path": str(cache), "free_bytes": free_bytes(cache), "writable": _is_writable(cache)},
    }


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _describe_extra(name: str) -> dict[str, Any]:
    purpose, packages = EXTRAS[name]
    versions = {package: _installed_version(package) for package in packages}
    is_installed = all(version is not None for version in versions.values())
    install = f"pip install 'nmt-cli[{name}]'"
    return {"installed": is_installed, "for": purpose, "packages": versions, "install": install}


def _describe_torch() -> dict[str, Any]:
    """The build of torch, its threads, its BLAS and its GPUs."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": str(error).partition("\n")[0] or type(error).__name__}
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "blas": "none" if blas is None else blas[1],
        "onednn": torch.backends.mkldnn.is_available(),
        "float32_by_onednn": _multiplies_float32_by_onednn(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpus": [
            {
                "name": gpu.name,
                "memory_bytes": gpu.total_memory,
                "capability": f"{gpu.major}.{gpu.minor}",
                "bf16": gpu.major >= 8,
            }
            for gpu in gpus
        ],
    }


def _multiplies_float32_by_onednn() -> bool:
    import torch

    from nmt_cli.devices import multiply_float32_fast

    return multiply_float32_fast(torch.device("cpu"))


def _describe_cpu() -> dict[str, Any]:
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)", kernel_text("/proc/cpuinfo"), flags=re.MULTILINE)
    flags = set(" ".join(lines).split())
    return {
        "name": cpu_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable_cores": num_cpus(),
        "quota_cores": _cpu_quota(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "instructions": [name for name in _INSTRUCTIONS if name in flags],
        "bf16": cpu_multiplies_bf16(),
        "int8": _int8_text(flags),
    }


def _int8_text(instructions: set[str]) -> str:
    """How this processor multiplies int8."""
    if instructions & {"avx512_vnni", "avx_vnni", "amx_int8"}:
        return "by its own instructions"
    return "without instructions of its own"


def _cpu_quota() -> float | None:
    """The cores' worth of time that a container may use; None if there is no limit."""
    limit, _, period = kernel_text("/sys/fs/cgroup/cpu.max").strip().partition(" ")
    return None if limit in ("", "max") else int(limit) / int(period)


def _openmp_libraries() -> list[str]:
    """The OpenMP runtimes that this process has loaded with torch and numpy."""
    return sorted(set(re.findall(r"/\S*/lib(?:i|g)?omp5?[-.][\w.-]*so[\w.]*", kernel_text("/proc/self/maps"))))


def _is_writable(path: Path) -> bool:
    folder = nearest_existing(path)
    return folder.is_dir() and os.access(folder, os.W_OK)
