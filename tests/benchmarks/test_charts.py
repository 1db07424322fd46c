"""The charts show what the kept results say, and can be drawn from them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_modules import ROOT

RESULTS = ROOT / "benchmarks" / "results"


CHARTS = runpy.run_path(str(ROOT / "benchmarks" / "charts.py"))


def test_every_kept_result_says_its_commit_and_hardware() -> None:
    for file in RESULTS.glob("*.json"):
        for result in json.loads(file.read_text(encoding="utf-8")):
            assert {"commit", "hardware"} <= result.keys(), file.name


def test_a_chart_shows_the_newest_result_that_has_all_systems() -> None:
    def result(rates: dict[str, float], model: str = "small") -> dict[str, object]:
        systems = {f"{name} batch 64": {"sentences_per_second": rate} for name, rate in rates.items()}
        return {"model": model, "input": "test_2016_flickr", "systems": systems}

    both = {"ours beam 4": 2.0, "ours beam 1": 4.0, "theirs beam 4": 1.0, "theirs beam 1": 3.0}
    newer = {name: rate + 10 for name, rate in both.items()}
    results = [result(both), result(newer), result({"ours beam 4": 99.0}), result(both, model="base")]
    found = CHARTS["decoding"](results, "small", {"a": "ours", "b": "theirs"})
    assert found == {"a": [12.0, 14.0], "b": [11.0, 13.0]}


def test_serving_is_shown_in_batches_and_alone() -> None:
    def clients(rates: dict[int, float]) -> dict[str, object]:
        return {f"{number} clients": {"answers a second": {"median": rate}} for number, rate in rates.items()}

    whole = {"engines": {"torch": {"on": clients({1: 5.0, 8: 9.0}) | {"mixed": {}}, "off": clients({1: 4.0})}}}
    found = CHARTS["serving"]([whole, {"engines": {"torch": {"on": clients({1: 7.0})}}}], "torch")
    assert found == {"in batches": {1: 5.0, 8: 9.0}, "each sentence alone": {1: 4.0}}


def test_the_kept_results_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "charts.py").write_bytes((ROOT / "benchmarks" / "charts.py").read_bytes())
    (tmp_path / "benchmarks" / "results").symlink_to(RESULTS)
    subprocess.run([sys.executable, tmp_path / "benchmarks" / "charts.py"], check=True)
    drawn = {file.name for file in (tmp_path / "docs" / "images").iterdir()}
    assert drawn == {"speed.svg", "decoding.svg", "serving.svg"}
