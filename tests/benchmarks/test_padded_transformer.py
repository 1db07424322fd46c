"""The eager padded loop that `nmt` is measured beside has the same model: the same weights give the same loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from nmt_cli.dataset.batch import make_batch
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.tokenization.tokenizer import BOS, PAD
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.loss import smoothed_cross_entropy
from tests.training.tiny import RECIPE, prepare_tiny


def test_the_same_weights_give_the_same_loss(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    from padded_transformer import PaddedTransformer, batches, padded_ids  # type: ignore[import-not-found]

    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    data = prepare_tiny(tmp_path)
    recipe = load_recipe(str(tmp_path / "tiny.yaml"))
    ours, pairs = build_model(recipe, data).eval(), data.split("train")
    vocab = ours.target_vocab
    theirs = PaddedTransformer(recipe.model, vocab=vocab).eval()
    assert sum(weight.numel() for weight in theirs.parameters()) == ours.num_parameters()
    theirs.load_state_dict(dict(ours.named_parameters()))
    batch = next(batches(pairs, max_tokens=300, longest=128, seed=1))
    packed = make_batch(pairs.rows(batch), pairs, device=torch.device("cpu"), shape=None, pinned=False)
    hidden = ours.decode(packed.target, ours.encode(packed.source), packed.source)
    tokens = packed.target.num_tokens
    expected = smoothed_cross_entropy(
        hidden[:tokens], ours.output_weight, packed.gold[:tokens], output_bias=None, vocab=vocab, smoothing=0.1
    )
    source, target = (torch.from_numpy(padded_ids(pairs, batch, side)) for side in ("src", "tgt"))
    logits = theirs(source, F.pad(target[:, :-1], (1, 0), value=BOS))
    found = F.cross_entropy(
        logits.flatten(0, 1)[:, :vocab], target.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(found, expected.smoothed, rtol=1e-4, atol=1e-3)
    sys.modules.pop("padded_transformer")


def test_the_loop_leaves_attention_to_no_kernel_that_plans_for_each_shape(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    from padded_transformer import PaddedLoop

    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    data, recipe = prepare_tiny(tmp_path), load_recipe(str(tmp_path / "tiny.yaml"))
    allowed: list[set[SDPBackend]] = []
    mix = F.scaled_dot_product_attention

    def noted(*arguments: Any, **options: Any) -> Tensor:
        allowed.append(set(_cur_sdpa_kernel_backends()))
        return mix(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    PaddedLoop(recipe, data.split("train"), vocab=408, device="cpu").update()
    kernels = {SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH}
    assert allowed == [kernels] * (recipe.model.encoder_layers + 2 * recipe.model.decoder_layers)
    sys.modules.pop("padded_transformer")


def test_batches_hold_all_pairs_and_no_more_padded_tokens_than_allowed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    from padded_transformer import batches

    pairs = prepare_tiny(tmp_path).split("train")
    widest = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    seen: list[int] = []
    for batch in batches(pairs, max_tokens=300, longest=128, seed=1):
        assert len(batch) * widest[batch].max() <= 300
        seen += batch.tolist()
        if len(seen) == len(pairs):
            break
    assert sorted(seen) == list(range(len(pairs)))
    sys.modules.pop("padded_transformer")
