"""`nmt doctor`: the facts of this machine, and what it says of machines with troubles."""

from __future__ import annotations

import copy
import json
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.cli.doctor import Finding, examine
from nmt_cli.devices import MissingTool
from tests.forks import run_forked

Machine = dict[str, Any]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")} | environment
    return run_forked([sys.executable, "-m", "nmt_cli", "doctor", *arguments], env=variables)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The facts of this machine, as programs get them."""
    process = doctor("--json", NMT_CACHE=str(tmp_path_factory.mktemp("cache")))
    assert (process.returncode, process.stderr) == (0, "")
    facts: Machine = json.loads(process.stdout)
    return facts


def test_facts_are_those_of_the_machine(machine: Machine) -> None:
    assert machine["python"] == {"version": platform.python_version(), "program": sys.executable}
    assert machine["packages"].items() >= {name: version(name) for name in ("torch", "pyyaml", "lxml")}.items()
    assert machine["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    total = re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
    assert total is not None
    assert machine["memory"]["total_bytes"] == int(total[1]) * 1024
    assert machine["extras"]["serve"]["install"] == "pip install 'nmt-cli[serve]'"
    assert machine["extras"]["export"]["packages"].keys() == {"ctranslate2"}
    assert machine["folder"]["free_bytes"] > 0


def test_people_see_everything() -> None:
    process = doctor()
    assert process.returncode == 0
    lines = process.stdout.splitlines()
    for label in ("nmt", "packages", "processor", "GPUs", "disk", "extras"):
        assert any(line.startswith(f"{label:<13}") for line in lines), label


def test_something_broken_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    process = doctor(NMT_CACHE=str(tmp_path / "file" / "nmt"))
    assert process.returncode == 6
    assert process.stderr.splitlines() == [
        f"error: the cache cannot be written: {tmp_path}/file/nmt",
        "at:    nmt doctor",
        "fix:   export NMT_CACHE=FOLDER, with a folder that you may write",
    ]


def change(machine: Machine, **changes: Any) -> list[Finding]:
    """The findings about a machine like this one, but with other facts under dotted keys."""
    other = copy.deepcopy(machine)
    other["cpu"]["instructions"] = ["avx2", "avx512f"]
    other["gpu_driver"] = False
    for key, value in changes.items():
        *path, last = key.split("__")
        section = other
        for part in path:
            section = section[part]
        section[last] = value
    return list(examine(other))


GPU = {"name": "V100", "memory_bytes": 16 * 10**9, "capability": "7.0", "bf16": False}


@pytest.mark.parametrize(
    ("changes", "kind", "problem", "fix"),
    [
        ({"packages__sacrebleu": None}, "broken", "not installed: sacrebleu", "pip install sacrebleu"),
        ({"gpu_driver": True, "torch__cuda": None}, "slow", "there is a GPU driver, but torch", "install the build"),
        (
            {
                "torch__gpus": [GPU | {"bf16": True}],
                "missing_for_triton": MissingTool("Triton is missing", "pip install triton"),
            },
            "slow",
            "layers are not compiled: Triton is missing",
            "pip install triton",
        ),
        ({"extras__export__installed": False}, "slow", "CTranslate2 is not installed", "pip install 'nmt-cli[export]'"),
    ],
)
def test_each_trouble_is_found_and_answered(
    machine: Machine, changes: dict[str, Any], kind: str, problem: str, fix: str
) -> None:
    assert change(machine) == []
    (found,) = change(machine, **changes)
    assert found.kind == kind
    assert found.problem.startswith(problem)
    assert found.fix.startswith(fix)


@cache
def script_of(shell: str) -> str:
    """What `nmt --show-completion` prints for a shell."""
    variables = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "nmt_cli", "--show-completion", shell]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    assert f"_NMT_COMPLETE=complete_{shell}" in script_of(shell)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("nmt deco", {"decode"}),
        ("nmt decode --length-p", {"--length-penalty", "--length-penalty-form"}),
        ("nmt train mul", {"multi30k", "multi30k-gpu", "multi30k-tiny"}),
        ("nmt prepare iws", {"iwslt14-de-en"}),
        ("nmt decode --format j", {"jsonl"}),
        ("nmt decode -i READ", set()),  # the shell itself completes names of files
    ],
)
def test_bash_completes_commands_options_and_packaged_names(tmp_path: Path, typed: str, expected: set[str]) -> None:
    program = tmp_path / "nmt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nmt_cli "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = (
        f"{script_of('bash')}\nCOMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _nmt_completion nmt; "
        'printf "%s\\n" "${COMPREPLY[@]}"; complete -p nmt'
    )
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "-c", script]
    process = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    *found, registered = process.stdout.splitlines()
    assert set(filter(None, found)) == expected
    assert "-o default" in registered, "without an answer of ours, bash completes files"
    assert process.stderr == ""
