"""Free memory: what the machine has, or less where a control group sets a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.training.memory import free_on_cpu

GB = 10**9


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 8 GB available."""
    return write(tmp_path, {"proc/meminfo": f"MemTotal: {16 * GB // 1024} kB\nMemAvailable:   {8 * GB // 1024} kB\n"})


def group(limit: str, usage: int, *, cached: int) -> dict[str, str]:
    return {"memory.max": f"{limit}\n", "memory.current": f"{usage}\n", "memory.stat": f"inactive_file {cached}\n"}


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_without_groups_it_is_what_the_machine_has(machine: Path) -> None:
    assert free_on_cpu(machine) == 8 * GB // 1024 * 1024


def test_a_group_leaves_its_limit_less_what_is_used_but_for_cached_files(machine: Path) -> None:
    write(machine, {"proc/self/cgroup": "0::/job/step\n"})
    write(machine, under("sys/fs/cgroup/job/step", group(str(4 * GB), 3 * GB, cached=GB)))
    assert free_on_cpu(machine) == 2 * GB


def test_the_narrowest_of_the_groups_above_counts(machine: Path) -> None:
    write(machine, {"proc/self/cgroup": "0::/job/step\n"})
    write(machine, under("sys/fs/cgroup/job/step", group("max", 3 * GB, cached=0)))
    write(machine, under("sys/fs/cgroup/job", group(str(5 * GB), 4 * GB, cached=0)))
    assert free_on_cpu(machine) == GB


def test_groups_of_the_first_version_count_too(machine: Path) -> None:
    write(machine, {"proc/self/cgroup": "5:cpu,cpuacct:/box\n3:memory:/box\n"})
    names = {"memory.limit_in_bytes": f"{3 * GB}", "memory.usage_in_bytes": f"{GB}", "memory.stat": "cache 1\n"}
    write(machine, under("sys/fs/cgroup/memory/box", names))
    assert free_on_cpu(machine) == 2 * GB


def test_this_machine_has_some() -> None:
    assert 0 < free_on_cpu() < 2**50
