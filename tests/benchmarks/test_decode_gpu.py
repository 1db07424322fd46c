"""The benchmark of decoding on a GPU, run small on the CPU, in this process."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts.builders import save_tiny, tiny_recipe

PEER = """
import argparse, json, os
assert os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
parser = argparse.ArgumentParser()
for name in "engine model spm input beam batch precision device runs max-tokens".split():
    parser.add_argument(f"--{name}", required=True)
arguments = parser.parse_args()
assert arguments.engine == "hf" and arguments.precision == "bfloat16" and arguments.device == "cpu"
lines = open(arguments.input).read().split("\\n")[:-1]
assert len(lines) == 20 and all(lines)
print(json.dumps({"sentences_per_second": 1.0 if arguments.batch == "4" else 2.0}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small random model, and a text of 22 lines with two blank ones among them."""
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=tiny_recipe(decoding={"max_extra_tokens": 1}))
    words = ["a", "small", "house", "stands", "by", "the", "old", "sea"]
    lines = ["" if number in (3, 9) else " ".join(words[: number % 8 + 1]) for number in range(22)]
    for name in ("text", "reference"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def measured(folder: Path, *options: str) -> Any:
    """What the benchmark prints."""
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    command = ["decode_gpu.py", "--model", f"{folder}/model", "--input", f"{folder}/text", "--device", "cpu"]
    command += ["--reference", f"{folder}/reference", "--commit", "abc", "--runs", "2", "--single", "3", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        patch.syspath_prepend(str(benchmarks))
        patch.setattr("decode_floor._LARGE_BYTES", {"cpu": 1 << 20})
        patch.setattr("nmt_cli.training.reporting.training_metrics._NUM_PRODUCTS", 1)
        runpy.run_path(str(benchmarks / "decode_gpu.py"), run_name="__main__")


def test_it_tells_rates_shares_of_the_floor_latency_and_agreement(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(folder, "--batch", "4", "--batches", "8", "--large", "8", "--cpu-lines", "10")
    result = json.loads(capsys.readouterr().out)
    assert (result["commit"], result["lines"], result["beam"]) == ("abc", 20, 4)
    assert list(result["ours"]) == ["4", "8"]
    for found in result["ours"].values():
        assert len(found["sentences_per_second"]["windows"]) == 2
        assert found["tokens_per_second"] > found["sentences_per_second"]["median"]
        assert 0 < found["floor_milliseconds_a_step"] < found["milliseconds_a_step"]
    assert result["bars"]["share_of_floor"]["measured"] == pytest.approx(
        result["ours"]["8"]["share_of_floor"], abs=1e-3
    )
    assert result["peer_sentences_per_second"] == {}
    assert result["single_sentences"]["percentiles"]["p50"] <= result["single_sentences"]["percentiles"]["p99"]
    assert result["identical_lines"]["fp32_and_cpu"] == result["bars"]["fp32_identical_to_cpu"]["measured"] == 1.0
    assert set(result["bleu"]) == {"bf16", "fp32"}
    assert set(result["bars"]) == {
        "share_of_floor",
        "milliseconds_a_step_of_one_sentence",
        "fp32_identical_to_cpu",
        "bleu_of_bf16_from_fp32",
    }


@pytest.mark.slow
def test_beside_a_peer_it_tells_both_ratios(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "decode.py").write_text(PEER, encoding="utf-8")
    options = ["--batch", "4", "--batches", "8", "--peer-batches", "6", "--peer", f"{folder}/decode.py"]
    measured(folder, "--parts", "speed", *options)
    result = json.loads(capsys.readouterr().out)
    assert result["peer_sentences_per_second"] == {"4": 1.0, "6": 2.0}
    rates = {batch: found["sentences_per_second"]["median"] for batch, found in result["ours"].items()}
    ratios = {name: bar["measured"] for name, bar in result["bars"].items()}
    assert ratios == {
        "times_peer_at_batch_4": pytest.approx(rates["4"]),
        "times_peer_at_best": pytest.approx(max(rates.values()) / 2, rel=1e-3),
    }


def test_a_floor_is_bytes_over_bandwidth_or_products_over_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from nmt_cli.model.transformer import Transformer
    from nmt_cli.recipe.schema import ModelConfig

    floor_seconds = importlib.import_module("decode_floor").floor_seconds
    model = Transformer(ModelConfig(), source_vocab=37000, target_vocab=37000)
    device = {"bytes_a_second": 4.3e12, "flops_a_second": 0.8e15}
    tokens = {"source_tokens": 29, "target_tokens": 30}
    # The base model: 41 million parameters are read, and 1.1 MB of keys and values for each sentence.
    for sentences, microseconds in ((32, 32), (128, 69), (1024, 425)):
        floor = floor_seconds(model, sentences=sentences, beam=4, **tokens, **device)
        assert 1e6 * floor == pytest.approx(microseconds, rel=0.03)
