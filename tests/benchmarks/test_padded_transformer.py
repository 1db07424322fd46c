"""The eager padded loop that `nmt` is measured beside has the same model: the same weights give the same loss."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nmt_cli.dataset.batches import make_batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.tokenization.tokenizer import BOS, PAD
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.loss import ONE_PASS, smoothed_cross_entropy
from tests.training.tiny import RECIPE, prepare_tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare_tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return load_recipe(tmp_path / "tiny.yaml")


@pytest.fixture
def padded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    yield importlib.import_module("padded_transformer")
    del sys.modules["padded_transformer"]


def test_the_same_weights_give_the_same_loss(padded: ModuleType, recipe: Recipe, data: PreparedData) -> None:
    ours, pairs = build_model(recipe, data).eval(), data.split("train")
    vocab = ours.target_vocab
    theirs = padded.PaddedTransformer(recipe.model, vocab=vocab).eval()
    assert sum(weight.numel() for weight in theirs.parameters()) == ours.num_parameters()
    theirs.load_state_dict(dict(ours.named_parameters()))
    batch = next(padded.batches(pairs, max_tokens=300, longest=128, seed=1))
    packed = make_batch(pairs.rows(batch), pairs, device=torch.device("cpu"), shape=None, pinned=False)
    hidden = ours.decode(packed.target, ours.encode(packed.source), packed.source)
    tokens = packed.target.num_tokens
    expected = smoothed_cross_entropy(
        hidden[:tokens],
        ours.output_weight,
        packed.gold[:tokens],
        output_bias=None,
        vocab=vocab,
        smoothing=0.1,
        function=ONE_PASS,
    )
    source, target = (torch.from_numpy(padded.padded_ids(pairs, batch, side)) for side in ("src", "tgt"))
    logits = theirs(source, F.pad(target[:, :-1], (1, 0), value=BOS))
    found = F.cross_entropy(
        logits.flatten(0, 1)[:, :vocab], target.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(found, expected.smoothed, rtol=1e-4, atol=1e-3)


def test_batches_hold_all_pairs_and_no_more_padded_tokens_than_allowed(padded: ModuleType, data: PreparedData) -> None:
    pairs = data.split("train")
    widest = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    seen: list[int] = []
    for batch in padded.batches(pairs, max_tokens=300, longest=128, seed=1):
        assert len(batch) * widest[batch].max() <= 300
        seen += batch.tolist()
        if len(seen) == len(pairs):
            break
    assert sorted(seen) == list(range(len(pairs)))
