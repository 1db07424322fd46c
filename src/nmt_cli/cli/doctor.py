"""`nmt doctor`: the facts of the installation and the machine, then what is broken or slow, each with its fix."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import nmt_cli
from nmt_cli.cache import cache_folder
from nmt_cli.cli.arguments import DebugOption, JsonOption, QuietOption
from nmt_cli.cli.printing import print_facts, print_json
from nmt_cli.console import size_text
from nmt_cli.devices import cpu_multiplies_bf16, cpu_name, has_gpu_driver, kernel_text, missing_for_triton, num_cpus
from nmt_cli.errors import DeviceError
from nmt_cli.files import free_bytes, nearest_existing
from nmt_cli.memory import free_cpu_bytes

# What the extras are for.
_EXTRAS = {
    "serve": "nmt serve",
    "export": "CTranslate2: nmt export, and --engine ctranslate2 of nmt decode and nmt serve",
    "huggingface": "nmt export --to huggingface, and the comparison in nmt import",
    "langid": "the check of languages in nmt prepare and nmt serve",
    "tensorboard": "nmt train --tensorboard",
}
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
_INT8_INSTRUCTIONS = {"avx512_vnni", "avx_vnni", "amx_int8"}
_INSTALL_CUDA_BUILD = "install the build of torch with CUDA that https://pytorch.org/get-started/locally names"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is broken, or slower than it need be, and what to do."""

    kind: Literal["broken", "slow"]
    problem: str
    fix: str


def doctor(
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show versions, devices, threads and disks, and what is slow here.

    Example: nmt doctor --json
    """
    machine = describe_machine()
    findings = list(examine(machine))
    if as_json:
        missing = machine["missing_for_triton"]
        machine["missing_for_triton"] = None if missing is None else str(missing)
        print_json(machine | {"findings": [asdict(finding) for finding in findings]})
    else:
        print_facts(_machine_facts(machine))
        print_facts((finding.kind, f"{finding.problem}\nfix: {finding.fix}") for finding in findings)
        if not findings:
            print_facts([("verdict", "nothing is broken, and nothing is slower than it need be")])
    broken = [finding for finding in findings if finding.kind == "broken"]
    if broken:
        raise DeviceError(broken[0].problem, where="nmt doctor", hint=broken[0].fix)


def examine(machine: dict[str, Any]) -> Iterator[Finding]:
    """The findings about a machine, the worst first."""
    yield from _broken_parts(machine)
    if "error" not in machine["torch"]:
        yield from _slow_gpu(machine)
        yield from _slow_cpu(machine)


def _broken_parts(machine: dict[str, Any]) -> Iterator[Finding]:
    """Missing packages, a torch that cannot be imported, a cache that cannot be written."""
    missing = [name for name, version in machine["packages"].items() if version is None]
    if missing:
        yield Finding("broken", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    if error := machine["torch"].get("error"):
        yield Finding("broken", f"torch cannot be imported: {error}", "pip install --force-reinstall torch")
    if not machine["cache"]["writable"]:
        problem = f"the cache cannot be written: {machine['cache']['path']}"
        yield Finding("broken", problem, "export NMT_CACHE=FOLDER, with a folder that you may write")


def _slow_gpu(machine: dict[str, Any]) -> Iterator[Finding]:
    torch = machine["torch"]
    if machine["gpu_driver"] and not torch["gpus"]:
        reason, fix = "sees no GPU", "look what the driver says: nvidia-smi"
        if torch["cuda"] is None:
            reason, fix = "is a build without CUDA", _INSTALL_CUDA_BUILD
        yield Finding("slow", f"there is a GPU driver, but torch {torch['version']} {reason}", fix)
    for number, gpu in enumerate(torch["gpus"]):
        if not gpu["bf16"]:
            problem = f"GPU {number} ({gpu['name']}) does not multiply bf16: training takes float32"
            yield Finding("slow", problem, "take a GPU of the Ampere generation or newer")
    if torch["gpus"] and (missing := machine["missing_for_triton"]):
        yield Finding("slow", f"layers are not compiled: {missing.problem}", missing.fix)


def _slow_cpu(machine: dict[str, Any]) -> Iterator[Finding]:
    if not machine["torch"]["gpus"] and not machine["extras"]["export"]["installed"]:
        install = machine["extras"]["export"]["install"]
        yield Finding("slow", "CTranslate2 is not installed: it is mostly the faster engine for int8", install)


def _machine_facts(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    torch, cpu, memory, packages = (machine[key] for key in ("torch", "cpu", "memory", "packages"))
    yield "nmt", f"{machine['nmt']['version']}, {machine['nmt']['folder']}"
    yield "Python", f"{machine['python']['version']}, {machine['python']['program']}"
    yield "system", machine["system"]
    yield "packages", ", ".join(f"{name} {version or 'missing'}" for name, version in packages.items())
    yield "processor", f"{cpu['name']}, {cpu['usable_cores']} of {cpu['cores']} cores"
    yield "instructions", ", ".join(cpu["instructions"]) or "unknown"
    yield "bf16", "native: training takes it" if cpu["bf16"] else "not native on this CPU: training takes float32"
    yield "int8", cpu["int8"]
    if "error" not in torch:
        yield "threads", f"{torch['threads']} of torch"
        yield "GPUs", "\n".join(_gpu_text(gpu) for gpu in torch["gpus"]) or "none"
    yield "memory", f"{size_text(memory['free_bytes'])} free of {size_text(memory['total_bytes'])}"
    yield "disk", f"{size_text(machine['folder']['free_bytes'])} free in {machine['folder']['path']}"
    yield "cache", f"{machine['cache']['path']}, {size_text(machine['cache']['free_bytes'])} free"
    yield "extras", "\n".join(_extra_text(name, extra) for name, extra in machine["extras"].items())


def _extra_text(name: str, extra: dict[str, Any]) -> str:
    if not extra["installed"]:
        return f"{name}: not installed; {extra['install']}; for {extra['for']}"
    return f"{name}: {', '.join(f'{package} {version}' for package, version in extra['packages'].items())}"


def _gpu_text(gpu: dict[str, Any]) -> str:
    precision = "bf16" if gpu["bf16"] else "float32 only"
    return f"{gpu['name']}, {size_text(gpu['memory_bytes'])}, capability {gpu['capability']}, {precision}"


def describe_machine() -> dict[str, Any]:
    """All facts, ready for JSON. `torch` has `error` instead of its facts if it cannot be imported."""
    cache, here = cache_folder(), Path.cwd()
    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "nmt": {"version": nmt_cli.__version__, "folder": str(Path(__file__).resolve().parents[1])},
        "python": {"version": platform.python_version(), "program": sys.executable},
        "system": platform.platform(),
        "packages": _installed_versions(extra=None),
        "extras": {name: _describe_extra(name, purpose) for name, purpose in _EXTRAS.items()},
        "torch": _describe_torch(),
        "cpu": _describe_cpu(),
        "memory": {"total_bytes": total_memory, "free_bytes": free_cpu_bytes()},
        "gpu_driver": has_gpu_driver(),
        "missing_for_triton": missing_for_triton(),
        "folder": {"path": str(here), "free_bytes": free_bytes(here), "writable": _is_writable(here)},
        "cache": {"path": str(cache), "free_bytes": free_bytes(cache), "writable": _is_writable(cache)},
    }


def _installed_versions(*, extra: str | None) -> dict[str, str | None]:
    """The packages that nmt always needs, or that an extra adds, with their versions; None if one is not installed."""
    versions: dict[str, str | None] = {}
    for requirement in metadata.requires("nmt-cli") or []:
        of_extra = re.search(r"extra == ['\"](\w+)", requirement)
        if (of_extra and of_extra[1]) == extra:
            package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                versions[package] = None
    return versions


def _describe_extra(name: str, purpose: str) -> dict[str, Any]:
    versions = _installed_versions(extra=name)
    is_installed = None not in versions.values()
    install = f"pip install 'nmt-cli[{name}]'"
    return {"installed": is_installed, "for": purpose, "packages": versions, "install": install}


def _describe_torch() -> dict[str, Any]:
    """The build of torch, its threads and its GPUs."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": str(error).partition("\n")[0] or type(error).__name__}
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
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


def _describe_cpu() -> dict[str, Any]:
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)", kernel_text("/proc/cpuinfo"), flags=re.MULTILINE)
    flags = set(" ".join(lines).split())
    return {
        "name": cpu_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable_cores": num_cpus(),
        "instructions": [name for name in _INSTRUCTIONS if name in flags],
        "bf16": cpu_multiplies_bf16(),
        "int8": f"{'by its own' if flags & _INT8_INSTRUCTIONS else 'without'} instructions",
    }


def _is_writable(path: Path) -> bool:
    folder = nearest_existing(path)
    return folder.is_dir() and os.access(folder, os.W_OK)
