"""The benchmark of training data at scale, run small: that it works, and that memory does not grow with the data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def test_the_benchmark_runs_small_and_within_its_bounds(repository: Path, tmp_path: Path) -> None:
    script, sizes = repository / "benchmarks" / "data_at_scale.py", ["--pairs", "20000", "--seconds", "0.1"]
    command = [sys.executable, str(script), "--folder", str(tmp_path), *sizes]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    assert result["pairs"] == 20_000
    # About 30 tokens a side, so 800 pairs an update.
    assert 20 < result["updates"] < 30
    assert result["first_batch_seconds"] > 0
    assert result["pairs_per_second"]["median"] > 0
    # Modules and buffers, and a small plan.
    assert result["private_mb"] < 150
    assert len(list((tmp_path / "20000").glob("train.*"))) == 4
