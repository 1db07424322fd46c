"""The benchmarks of docs/paper-measured.md: their layers are what they say, and their commands run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nmt_cli.model.packing import pack


@pytest.fixture
def functions(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    yield importlib.import_module("attention_functions")
    for name in ("attention_functions", "small_trainings", "padded_transformer", "measuring"):
        del sys.modules[name]


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_functions_are_their_formulas(functions: ModuleType, is_causal: bool) -> None:
    layout = pack([[0] * 5, [0] * 3], device=torch.device("cpu"))
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
