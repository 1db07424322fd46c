"""What the checks on the null GPU say of a part that went wrong, with stand-ins for the parts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PARTS = """
import json, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
facts = json.load(open({facts!r}))
print({errors!r}, file=sys.stderr)
open(options["--output"], "w").write(json.dumps(facts))
sys.exit({code})
"""
GOOD: dict[str, Any] = {
    "size": "base",
    "slots": 25_024,
    "sentences": 978,
    "world_size": 1,
    "reason_not_to_compile": None,
    "graph_breaks": 0,
    "graphs_compiled": 5,
    "graphs_compiled_later": 0,
    "replays": 1,
    "milliseconds_of_host": 0.4,
    "waits": 0,
    "sums": [],
    "captured": [],
    "launched": [],
}
OF_RANKS = {
    "rank": 0,
    "replays": 1,
    "parameters": 1000,
    "elements_summed": 1000,
    "is_sum_right": True,
}


def run(
    repository: Path, folder: Path, part: str, facts: dict[str, Any], *, errors: str = "", code: int = 0
) -> tuple[int, Any]:
    """The exit code and the JSON of the checks, where the part ends like that."""
    scripts = folder / "benchmarks" / "gpu"
    scripts.mkdir(parents=True, exist_ok=True)
    shutil.copy(repository / "benchmarks" / "gpu" / "null_gpu.py", scripts)
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    parts = PARTS.format(facts=str(folder / "facts.json"), errors=errors, code=code)
    (scripts / "null_parts.py").write_text(parts, encoding="utf-8")
    command = [sys.executable, str(scripts / "null_gpu.py"), part, "--json", "--folder", str(folder / "out")]
    process = subprocess.run(command, capture_output=True, text=True)
    result = json.loads(process.stdout)
    assert [f"FAILED {problem}" for problem in result["problems"]] == [
        line for line in process.stderr.splitlines() if line.startswith("FAILED ")
    ]
    return process.returncode, result


def captured(nodes: int) -> str:
    return f"[nullgpu] captured a graph of {nodes} nodes"


def test_a_part_without_problems_passes(repository: Path, tmp_path: Path) -> None:
    code, result = run(repository, tmp_path, "base", GOOD, errors=captured(520))
    assert (code, result["problems"]) == (0, [])
    (part,) = result["parts"]
    assert part["nodes"] == [520]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ("[nullgpu] refused while capturing: cudaMalloc", "base: [nullgpu] refused while capturing: cudaMalloc"),
        ("[nullgpu] NOT CAPTURED while capturing: kind 0\n" * 3, "kind 0 (3 times)"),
        (captured(521), "base: a graph of 521 nodes, and the bound is 520"),
    ],
)
def test_what_a_part_says_is_a_problem(repository: Path, tmp_path: Path, errors: str, told: str) -> None:
    code, result = run(repository, tmp_path, "base", GOOD, errors=errors)
    assert code == 1
    assert any(told in problem for problem in result["problems"]), result["problems"]


@pytest.mark.parametrize(
    ("part", "facts", "told"),
    [
        ("base", GOOD | {"replays": 0}, "base: nothing was replayed"),
        ("base-8", GOOD | {"world_size": 8, "milliseconds_of_host": 2.5}, "2.50 ms of the host an update"),
    ],
)
def test_what_a_part_found_is_a_problem(
    repository: Path, tmp_path: Path, part: str, facts: dict[str, Any], told: str
) -> None:
    code, result = run(repository, tmp_path, part, facts, errors=captured(500))
    assert code == 1
    (problem,) = result["problems"]
    assert told in problem


def test_a_part_that_ends_early_is_a_problem_and_its_last_words_are_told(repository: Path, tmp_path: Path) -> None:
    code, result = run(repository, tmp_path, "search-1", {}, errors="Traceback\nValueError: no such kernel", code=3)
    assert code == 1
    assert "search-1: ended with 3: Traceback | ValueError: no such kernel" in result["problems"]


def test_both_ranks_replay_and_their_sum_is_right(repository: Path, tmp_path: Path) -> None:
    code, result = run(repository, tmp_path, "ranks", OF_RANKS, errors=captured(800))
    assert (code, result["problems"]) == (0, [])
    code, result = run(
        *(repository, tmp_path, "ranks", OF_RANKS | {"is_sum_right": False, "elements_summed": 999}),
        errors=captured(800),
    )
    assert code == 1
    assert "rank-1: the sum over two ranks is not that of their gradients" in result["problems"]
    assert "rank-0: 999 gradients are summed, and there are 1000" in result["problems"]
