"""The charts show what the kept results say, and can be drawn from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_modules import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def test_every_kept_result_says_its_commit_and_hardware() -> None:
    for file in RESULTS.glob("*.json"):
        for result in json.loads(file.read_text(encoding="utf-8")):
            assert {"commit", "hardware"} <= result.keys(), file.name


def test_the_kept_results_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "charts.py").write_bytes((ROOT / "benchmarks" / "charts.py").read_bytes())
    (tmp_path / "benchmarks" / "results").symlink_to(RESULTS)
    subprocess.run([sys.executable, tmp_path / "benchmarks" / "charts.py"], check=True)
    drawn = {file.name for file in (tmp_path / "docs" / "images").iterdir()}
    of_others = {"attention-functions.svg", "position-lengths.svg", "table3-small.svg"}
    assert drawn == {"speed.svg", "decoding.svg", "serving.svg", "layer-complexity.svg", *of_others}
