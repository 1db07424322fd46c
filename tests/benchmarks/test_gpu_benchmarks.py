"""The benchmarks for a GPU, run small on the CPU, each with a stand-in for the peer's script: one JSON object each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forks import run_forked
from tests.preparing.corpus_files import write_prefix
from tests.training.tiny import RECIPE, parallel_text, prepare_tiny

TINY = [
    *("--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1", "--set", "model.d_model=32"),
    *("--set", "model.d_ff=64", "--set", "model.heads=2", "--set", "model.d_k=16", "--set", "model.d_v=16"),
]
PEER_TRAINS = """
import argparse, json, os
assert os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
parser = argparse.ArgumentParser()
for name in "src tgt spm size precision device batch-tokens dropout windows updates minutes save".split():
    parser.add_argument(f"--{name}")
arguments = parser.parse_args()
assert arguments.precision == "bf16" and arguments.device == "cpu"
assert len(open(arguments.src).readlines()) == len(open(arguments.tgt).readlines()) > 0
print(json.dumps({"windows": [100, 300], "tokens_per_second": 200}))
"""
PEER_DECODES = """
import argparse, os
assert os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
parser = argparse.ArgumentParser()
for name in "engine model spm input output device runs beam batch precision".split():
    parser.add_argument(f"--{name}")
arguments = parser.parse_args()
open(arguments.output, "w").write(open(arguments.input).read())
"""


def run(repository: Path, folder: Path, *command: str) -> Any:
    script, *options = command
    file = str(repository / "benchmarks" / script)
    process = run_forked([sys.executable, file, *options, "--device", "cpu", "--commit", "abc"], cwd=folder)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    folder = tmp_path / "peer"
    folder.mkdir()
    (folder / "train.py").write_text(PEER_TRAINS, encoding="utf-8")
    (folder / "decode.py").write_text(PEER_DECODES, encoding="utf-8")
    return folder


def test_step_rate_tells_rates_shares_ratios_and_costs(repository: Path, tmp_path: Path, peer: Path) -> None:
    prepare_tiny(tmp_path)
    result = run(
        *(repository, tmp_path, "step_rate.py", "--data", "data/tiny", "--size", "base", "--batch-tokens", "300"),
        *("--source", "tiny-train.en", "--target", "tiny-train.de", "--peer", str(peer / "train.py"), *TINY),
        *("--rounds", "2", "--windows", "2", "--updates", "2", "--warm-up", "1", "--profile", "profile"),
        *("--profiled-updates", "2"),
    )
    assert result["commit"] == "abc"
    assert result["torch"]
    assert result["command"].startswith("python ")
    assert len(result["nmt"]["windows"]) == len(result["eager"]["windows"]) == 4
    assert result["peer"] == {"median": 200, "quartiles": [100, 300], "windows": [100, 300, 100, 300]}
    assert result["ratios"]["times_peer"] == pytest.approx(result["nmt"]["median"] / 200, rel=0.01)
    assert {name: bar["bar"] for name, bar in result["bars"].items()} == {
        "share_of_matrix_rate": 0.42,
        "times_eager": 1.6,
        "times_peer": 2.5,
    }
    assert result["facts"]["nmt"]["padding"] < 0.2
    assert result["own_products"]["milliseconds_a_step"] > 0
    assert result["facts"]["nmt"]["not_compiled"]
    assert "2 updates on cpu" in result["profile"][0]
    assert (tmp_path / "profile" / "trace.json.gz").exists()


def write_metrics(run: Path, nlls: list[float], *, seconds: float, bleus: list[float] | None = None) -> None:
    """The log of a run that was validated every 100 updates, each of so many seconds and 50 tokens."""
    run.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for update, nll, bleu in zip(range(100, 10_000, 100), nlls, bleus or [0.0] * len(nlls), strict=False):
        lines.append({"event": "train", "update": update, "target_tokens": 5000, "seconds": seconds * update})
        lines.append({"event": "validation", "update": update, "nll": nll, "bleu": bleu})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def test_records_tells_when_one_recipe_reaches_the_quality_of_another(repository: Path, tmp_path: Path) -> None:
    for seed, last in ((1, 2.0), (2, 2.5)):
        write_metrics(tmp_path / f"runs/base-{seed}", [4.0, 3.0, last, 3.5], seconds=0.1)
        write_metrics(tmp_path / f"runs/against-{seed}", [3.0, 1.0, 0.5], seconds=0.2)
    result = run(
        *(repository, tmp_path, "records.py", "--data", "data/mix", "--updates", "400", "--train", "neither"),
        *("--folder", "runs", "--seeds", "1,2"),
    )
    first, second = result["runs"]
    assert (first["target_nll"], second["target_nll"]) == (2.0, 2.5)
    assert first["base"]["to_target"] == {"updates": 300, "tokens": 15_000, "seconds": 30.0}
    assert first["against"]["to_target"] == {"updates": 150, "tokens": 7500, "seconds": 30.0}
    assert second["against"]["to_target"] == {"updates": 125, "tokens": 6250, "seconds": 25.0}
    assert (first["ratio_of_seconds"], first["ratio_of_updates"]) == (1.0, 0.5)
    assert result["ratio_of_seconds"] == pytest.approx((1 + 25 / 30) / 2, abs=1e-3)
    assert "| modern | base: 2.250 nats a piece | mix | " in result["row"]
    assert result["row"].endswith(" | 0.50 | 0.46 | 0.92 | 1,2 | abc |")


@pytest.mark.slow
def test_regularisers_are_compared_for_the_same_updates_and_the_same_time(repository: Path, tmp_path: Path) -> None:
    prepare_tiny(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    options = ["--data", "data/tiny", "--recipe", "tiny.yaml", "--updates", "6", "--validations", "2", "--seeds", "1"]
    options += ["--rows", "R-Drop", "--folder", "runs", "--set", "training.precision=fp32"]
    result = run(repository, tmp_path, "regularisers.py", *options)
    (compared,) = result["results"]
    assert list(compared["rows"]) == ["none", "R-Drop"]
    for figures in compared["rows"].values():
        assert len(figures["same_updates"]) == len(figures["same_time"]) == 1
    none = compared["rows"]["none"]
    assert none["same_time"] == none["same_updates"]
    assert [line.split(" | ")[:2] for line in result["table"][2:]] == [["| tiny", "none"], ["| tiny", "R-Drop"]]

    # A run that took twice the time per update had half of the updates in the same time.
    for row, seconds, bleus in (("none", 1.0, [10.0, 20.0]), ("R-Drop", 2.0, [12.5, 24.0])):
        write_metrics(tmp_path / f"runs/tiny-{row}-1", [3.0, 2.0], seconds=seconds, bleus=bleus)
    again = run(repository, tmp_path, "regularisers.py", *options)
    assert again["table"][2:] == [
        "| tiny | none | 20.00 (20.00 to 20.00) | 20.00 (20.00 to 20.00) |",
        "| tiny | R-Drop | 24.00 (24.00 to 24.00) | 12.50 (12.50 to 12.50) |",
    ]


@pytest.mark.slow
def test_the_race_scores_all_sides(repository: Path, tmp_path: Path, peer: Path) -> None:
    pairs = parallel_text(420, seed=3)
    train, valid = write_prefix(tmp_path / "train", pairs[20:]), write_prefix(tmp_path / "valid", pairs[:20])
    small = [part.replace("--set", "--small-set") for part in TINY]
    result = run(
        *(repository, tmp_path, "quality_race.py", "--train", train, "--valid", valid, "--test", f"one={valid}"),
        *("--small-train", train, "--small-valid", valid, "--peer", str(peer), "--minutes", "0.02", "--beam", "2"),
        *("--vocab-size", "400", "--small-pieces", "400", "--batch-tokens", "300", "--checkpoint-every", "20"),
        *(*TINY, *small, "--small-set", "training.updates=20", "--small-set", "training.schedule.warmup_updates=5"),
        *("--small-set", "training.checkpoint_every=5", "--set", "training.max_tokens_per_device=400"),
    )
    assert result["ours"]["seconds"] >= 1.2
    assert set(result["ours"]["bleu"]) == set(result["peer"]["bleu"]) == {"one"}
    assert result["peer"]["tokens_per_second"] == 200
    (small_run,) = result["small"]
    assert small_run["updates"] == 20
    assert small_run["lower_cased_tokenised_bleu"] >= 0
