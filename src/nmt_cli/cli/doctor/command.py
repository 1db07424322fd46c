"""`nmt doctor`: the facts as a list, then what is broken or slow, each with its fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from nmt_cli.cli.printing import print_facts, print_json
from nmt_cli.console import size_text
from nmt_cli.errors import DeviceError

_LOW_DISK_BYTES = 5e9
_LOW_MEMORY_BYTES = 2e9
_INSTALL_CUDA_BUILD = "install the build of torch with CUDA that https://pytorch.org/get-started/locally names"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is broken, or slower than it need be, and what to do."""

    kind: Literal["broken", "slow", "low"]
    problem: str
    fix: str


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False) -> None:
    """Show versions, devices, threads and disks, and what is slow here.

    Example: nmt doctor --json
    """
    from nmt_cli.cli.doctor.machine import describe_machine

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
        yield from _unused_cores(machine)
        yield from _slow_cpu(machine)
    yield from _low_resources(machine)


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
        reason = "is a build without CUDA" if torch["cuda"] is None else "sees no GPU: try nvidia-smi"
        yield Finding("slow", f"there is a GPU driver, but torch {torch['version']} {reason}", _INSTALL_CUDA_BUILD)
    for number, gpu in enumerate(torch["gpus"]):
        if not gpu["bf16"]:
            problem = f"GPU {number} ({gpu['name']}) does not multiply bf16: training takes float32"
            yield Finding("slow", problem, "take a GPU of the Ampere generation or newer")
    if torch["gpus"] and (missing := machine["missing_for_triton"]):
        yield Finding("slow", f"layers are not compiled: {missing.problem}", missing.fix)


def _unused_cores(machine: dict[str, Any]) -> Iterator[Finding]:
    cpu, torch, environment = machine["cpu"], machine["torch"], machine["environment"]
    cores = cpu["usable_cores"]
    for name, value in environment.items():
        if value.isdecimal() and int(value) < cores:
            problem = f"{name} is {value}, and {cores} cores may be used"
            yield Finding("slow", problem, f"unset {name}, or leave it if other work takes the other cores")
    if cpu["quota_cores"] is not None and cpu["quota_cores"] < cores and torch["threads"] > cpu["quota_cores"]:
        number = max(1, int(cpu["quota_cores"]))
        share = f"{cpu['quota_cores']:g} of {cores} cores"
        problem = f"this container may use {share}, and torch starts {torch['threads']} threads"
        yield Finding("slow", problem, f"export OMP_NUM_THREADS={number}")
    if cores < cpu["cores"]:
        problem = f"this process may use {cores} of {cpu['cores']} cores (its affinity)"
        yield Finding("slow", problem, "ask the scheduler for more, or start it without taskset")
    if cpu["load"] is not None and cpu["load"] > cores and not torch["gpus"]:
        problem = f"other processes want the cores too: the load is {cpu['load']:.1f} on {cores}"
        yield Finding("slow", problem, "see who with top; measure speed when they have ended")


def _slow_cpu(machine: dict[str, Any]) -> Iterator[Finding]:
    cpu, torch = machine["cpu"], machine["torch"]
    if cpu["architecture"] == "x86_64" and "avx512f" not in cpu["instructions"] and not torch["gpus"]:
        instructions = "AVX2 alone" if "avx2" in cpu["instructions"] else "neither AVX-512 nor AVX2"
        yield Finding("slow", f"the processor has {instructions}", "train on a newer machine, or on a GPU")
    if not torch["onednn"]:
        problem = f"torch has no oneDNN: products are {torch['blas']}'s, and bf16 is slow"
        yield Finding("slow", problem, "pip install --force-reinstall torch")
    paths = machine["openmp"]
    num_runtimes = sum(any(f"/{name}" in path for path in paths) for name in ("libgomp", "libiomp5", "libomp"))
    if num_runtimes > 1:
        problem = f"{num_runtimes} OpenMP runtimes are loaded, whose threads wait for each other: {', '.join(paths)}"
        yield Finding("slow", problem, "install torch and numpy with pip in one environment, not one by conda")
    if not torch["gpus"] and not machine["extras"]["export"]["installed"]:
        install = machine["extras"]["export"]["install"]
        yield Finding("slow", "CTranslate2 is not installed: --engine auto would take it for int8", install)


def _low_resources(machine: dict[str, Any]) -> Iterator[Finding]:
    """Little free memory, or little free disk."""
    free = machine["memory"]["free_bytes"]
    if free < _LOW_MEMORY_BYTES:
        yield Finding(
            "low", f"{size_text(free)} of memory are free", "end other programs, or lower training.batch_tokens"
        )
    fixes = {"folder": "work in a folder on another disk", "cache": "export NMT_CACHE=FOLDER"}
    for name, fix in fixes.items():
        folder = machine[name]
        if folder["free_bytes"] < _LOW_DISK_BYTES:
            yield Finding("low", f"{size_text(folder['free_bytes'])} of disk are free in {folder['path']}", fix)


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
        onednn = "float32 by oneDNN" if torch["float32_by_onednn"] else f"float32 by {torch['blas']}"
        yield "threads", f"{torch['threads']} of torch; BLAS {torch['blas']}, {onednn}"
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
