"""The benchmarks of docs/paper-measured.md: their layers are what they say, and their commands run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nmt_cli.model.packing import pack
from tests.training.tiny import parallel_text, prepare_tiny

CPU = torch.device("cpu")


@pytest.fixture
def benchmark(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a benchmark for one test."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    folder = repository / "benchmarks"
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent == folder:
            del sys.modules[name]


def run(repository: Path, command: str, *arguments: str | Path) -> dict[str, Any]:
    script = repository / "benchmarks" / command
    process = subprocess.run(
        [sys.executable, script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    found: dict[str, Any] = json.loads(process.stdout)
    return found


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_functions_are_their_formulas(benchmark: Any, is_causal: bool) -> None:
    functions: ModuleType = benchmark("attention_functions")
    layout = pack([[0] * 5, [0] * 3], device=CPU)
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 8, 2, 4)
    weight = functions.score_weight(2, 4).detach()
    scores = {
        "dot product, scaled": lambda query, key, head: query @ key / 2,
        "dot product, not scaled": lambda query, key, head: query @ key,
        "additive": lambda query, key, head: (query + key).tanh() @ weight[head],
    }
    for function in functions.FUNCTIONS:
        found = functions.mix(function, q, k, v, queries=layout, keys=layout, is_causal=is_causal, score_weight=weight)
        for start, end in ((0, 5), (5, 8)):
            for place in range(start, end):
                seen = range(start, place + 1 if is_causal else end)
                for head in range(2):
                    weights = torch.stack([scores[function](q[place, head], k[key, head], head) for key in seen])
                    expected = weights.softmax(0) @ v[list(seen), head]
                    torch.testing.assert_close(found[place, head], expected, rtol=1e-5, atol=1e-5)


def test_attention_in_blocks_is_nmts_attention_with_a_window(benchmark: Any) -> None:
    layers: ModuleType = benchmark("layer_complexity")
    torch.manual_seed(1)
    for d, n in ((16, 16), (128, 64)):
        x, direction = torch.randn(2, n, d, requires_grad=True), torch.randn(2, n, d)
        outputs = [make(x) for make in (layers.mixing(d, window=layers.WINDOW), layers.mixing_in_blocks(d))]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
        gradients = [torch.autograd.grad(out, x, direction)[0] for out in outputs]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_n_steps_of_the_recurrence_are_the_recurrent_layer(benchmark: Any) -> None:
    layer = benchmark("layer_complexity").Recurrence(8)
    x = torch.randn(2, 6, 8)
    torch.testing.assert_close(layer.steps(x, 6), layer(x))
    assert not torch.allclose(layer.steps(x, 5), layer(x))


def test_layers_have_the_multiplications_chains_and_paths_of_table_1(repository: Path) -> None:
    sizes = ("--lengths", "256", "--widths", "64", "128", "--path-lengths", "32", "64")
    result = run(repository, "layer_complexity.py", "--tokens", "256", *sizes, "--repeats", "1")
    n, d, kernel, window = 256, 128, result["kernel"], result["window"]
    rows = [row for row in result["costs"] if (row["n"], row["d"]) == (n, d)]
    counts = {row["layer"]: row["multiplications"] / row["sentences"] for row in rows}
    assert counts == {
        "self-attention": 2 * n**2 * d,
        "self-attention with its matrices": 2 * n**2 * d + 4 * n * d**2,
        "restricted, nmt's": 2 * n**2 * d,
        "restricted, in blocks": 3 * window * n * d,
        "recurrent": 6 * n * d**2,
        "convolution": kernel * n * d**2,
        "separable convolution": kernel * n * d + n * d**2,
        "recurrent, 16 sentences of any length": 6 * n * d**2,
        "separable convolution, over tokens": kernel * n * d,
        "separable convolution, over channels": n * d**2,
    }
    outputs_and_gradients = [2 * 4 * row["sentences"] * row["n"] * row["d"] for row in result["costs"]]
    assert all(row["peak_bytes"] >= least for row, least in zip(result["costs"], outputs_and_gradients, strict=True))
    for name, chain in result["sequential_operations"].items():
        assert (chain["64"] > 1.9 * chain["32"]) if name == "recurrent" else (chain["64"] == chain["32"])
    assert {name: list(paths.values()) for name, paths in result["path_length"].items()} == {
        "self-attention": [1, 1],
        "self-attention with its matrices": [1, 1],
        "restricted, nmt's": [2, 4],  # of 16 tokens each
        "restricted, in blocks": [2, 4],
        "recurrent": [32, 64],
        "convolution": [11, 21],  # of 3 tokens each
        "separable convolution": [11, 21],
        "convolution, dilated": [2, 3],  # 7^2 = 49
    }


def test_the_softmax_saturates_without_scaling_and_models_train(repository: Path, tmp_path: Path) -> None:
    data = prepare_tiny(tmp_path).directory
    small = ("--updates", "3", "--d-k", "8", "--seeds", "1", "--lengths", "16", "--tokens", "64", "--repeats", "1")
    result = run(repository, "attention_functions.py", "--data", data, *small, "--saturation-d-k", "16", "1024")
    gradients = {(row["function"], row["d_k"]): row["gradient"] for row in result["saturation"]}
    assert gradients["dot product, not scaled", 1024] < gradients["dot product, not scaled", 16] / 10
    for function in ("dot product, scaled", "additive"):
        assert gradients[function, 1024] == pytest.approx(gradients[function, 16], rel=0.2)
    losses = {row["function"]: row["nats_per_token"] for row in result["trainings"]}
    assert len({*map(tuple, losses.values())}) == len(losses), "each function has its own model"


def test_positions_are_scored_by_length(repository: Path, tmp_path: Path) -> None:
    pairs = parallel_text(60, seed=3)
    long = [(" ".join([src] * 3), " ".join([tgt] * 3)) for src, tgt in pairs[:20]]
    data = prepare_tiny(tmp_path, train=pairs, valid=[*pairs[:5], *long]).directory
    result = run(repository, "position_lengths.py", "--data", data, "--updates", "3", "--seeds", "1")
    assert all(result["scored_pairs"].values()), "there are pairs of each range"
    losses = [[*found.values()] for found in result["nats_per_token"].values()]
    assert all(losses.count(found) == 1 for found in losses), "each training has its own model"
