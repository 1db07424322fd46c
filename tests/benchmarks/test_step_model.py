"""The model of a step's time: what each kind of launch costs, and where measured figures stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FACTS: dict[str, Any] = {
    "torch": "2.11.0",
    "size": "base",
    "slots": 25_024,
    "sentences": 978,
    "heads": 8,
    "parameters": 65_073_152,
    "flops": 9.4e12,
    "world_size": 1,
    "waits": 0,
    "milliseconds_of_host": 1.0,
    "sums": [],
}


def launch(kind: int, name: str = "", *, count: int = 1, **values: Any) -> dict[str, Any]:
    """A row of the log; the kinds are kernel, copy, memset, product, Triton and graph."""
    plain = {"grid": [1, 1, 1], "block": [128, 1, 1], "shared_memory": 0, "bytes": 0, "size": [0, 0, 0, 0]}
    return {"kind": kind, "name": name, "is_captured": True, **plain, **values, "count": count}


def modelled(repository: Path, folder: Path, *options: str, **parts: dict[str, Any]) -> Any:
    for name, facts in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(FACTS | facts), encoding="utf-8")
    script = repository / "benchmarks" / "gpu" / "step_model.py"
    command = [sys.executable, str(script), str(folder), *options]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout) if "--json" in options else process.stdout


def of_step(*captured: dict[str, Any]) -> dict[str, Any]:
    return {"captured": list(captured), "launched": [launch(5)]}


def test_a_step_is_reckoned_part_by_part(repository: Path, tmp_path: Path) -> None:
    step = of_step(
        launch(3, "gemmTN", size=[512, 25_024, 512, 1], count=10),
        launch(0, "flash_fwd_kernel", count=18),
        launch(4, "triton_poi_fused", bytes=400_000_000, count=2),
        launch(4, "forward_kernel", module="nmt_cli.model.kernels.attention", bytes=105_000_000),
        launch(4, "backward_kernel", module="nmt_cli.model.kernels.attention", bytes=210_000_000),
        launch(4, "loss_kernel", module="nmt_cli.model.kernels.loss", bytes=2_000_000_000),
        launch(2, "memset", bytes=16),
    )
    (base,) = modelled(repository, tmp_path, "--json", base=step)
    parts = base["modelled_milliseconds"]
    assert parts["products"] == pytest.approx(10 * 2 * 512 * 512 * 25_024 / 590e9, abs=1e-3)
    assert parts["attention forward"] == pytest.approx(18 * 30 * 0.005 + 0.025, rel=1e-3)
    assert parts["attention backward"] == pytest.approx(0.05, rel=1e-3)
    assert parts["Triton kernels"] == pytest.approx(0.2, rel=1e-3)
    assert parts["loss"] == pytest.approx(1.0, rel=1e-3)
    assert parts["other kernels"] == pytest.approx(0.002, rel=1e-3)
    assert parts["gaps"] == pytest.approx(0.0009 * 34, abs=1e-3)
    assert base["modelled_milliseconds_an_update"] == pytest.approx(sum(parts.values()), abs=0.01)
    share = 9.4e12 / (base["modelled_milliseconds_an_update"] / 1000 * 790e12)
    assert base["modelled_share_of_matrix_rate"] == pytest.approx(share, abs=2e-3)
    assert base["bar_milliseconds"] == 25
