"""Every row of the paper's Table 3 trains: a forward and a backward pass of its recipe."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import load_recipe, packaged_names
from nmt_cli.training.loss import smoothed_cross_entropy
from tests.reference.models import packed, random_pairs

ROWS = [name for name in packaged_names(kind="recipe") if name.startswith("table3/")]
VOCAB = 50


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_a_finite_loss_and_a_gradient_for_every_parameter(name: str) -> None:
    # The rows about depth keep it and are narrow, the others keep their widths and are one layer deep.
    is_about_depth = name.startswith("table3/c-n")
    smaller = ["d_model=64", "d_ff=128"] if is_about_depth else ["encoder_layers=1", "decoder_layers=1"]
    overrides = [f"model.{change}" for change in (*smaller, "embedding_multiple=8")]
    recipe = load_recipe(name, overrides=overrides)
    torch.manual_seed(1)
    model = Transformer(recipe.model, source_vocab=VOCAB, target_vocab=VOCAB).train()
    source, target = packed(random_pairs([(9, 7), (3, 5), (6, 8)], vocab=VOCAB, seed=2))
    gold = target.ids.roll(-1)
    loss = smoothed_cross_entropy(
        model.decode(target, model.encode(source), source),
        model.output_weight,
        gold,
        output_bias=model.output_bias,
        vocab=VOCAB,
        smoothing=recipe.training.label_smoothing,
    )
    assert bool(loss.smoothed.isfinite())
    assert (loss.smoothed.item() == loss.nll.item()) == (recipe.training.label_smoothing == 0)
    loss.smoothed.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert bool(parameter.grad.isfinite().all()), parameter_name
        assert bool(parameter.grad.any()), parameter_name


def test_all_of_table_3_is_here() -> None:
    assert len(ROWS) == 20  # PAPER.md: base, 4 of A, 2 of B, 7 of C, 4 of D, E, big
