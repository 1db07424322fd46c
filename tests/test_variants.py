"""Every value of every setting of a model is computed as by the reference, counted, estimated, and exported or refused.

`tests/decoding/test_cuda_kernels.py` has the search on a GPU with each value.

A new value needs a case in the reference, and a line in REFUSED for each export that refuses it. Exports refuse all
values of a new setting but its default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.errors import ModelError
from nmt_cli.interchange.exporting import Target, export
from nmt_cli.recipe.schema import Recipe, num_parameters
from nmt_cli.training.micro_batch_size import estimate_device_needs
from nmt_cli.training.objective import plain_loss
from tests.interchange.builders import recipe_with, save_sharp
from tests.reference.models import each_variant, logits_of, packed, random_model, random_pairs, tiny_config
from tests.reference.transformer import COMPUTED, LoopTransformer

VOCAB = 21
REFUSED: dict[Target, set[tuple[str, object]]] = {
    "ctranslate2": {("encoder_window", 3)},
    "huggingface": {
        ("norm", "pre"),
        ("norm_type", "rms"),
        ("activation", "swiglu"),
        ("positions", "sinusoidal-fairseq"),
        ("positions", "rotary"),
        ("encoder_window", 3),
    },
}


@each_variant
def test_a_value_is_computed_as_by_the_reference_and_its_parameters_are_counted(key: str, value: object) -> None:
    assert value in COMPUTED.get(key, ()), "the reference lacks it"
    config = tiny_config(**{key: value})
    model = random_model(config, vocab=VOCAB, seed=3)
    assert num_parameters(config, source_vocab=VOCAB, target_vocab=VOCAB) == model.num_parameters()
    loops = LoopTransformer(config, model.state_dict(), vocab=VOCAB)
    pairs = random_pairs([(6, 4), (1, 5), (3, 1)], vocab=VOCAB, seed=4)
    for ours, pair in zip(logits_of(model, pairs), pairs, strict=True):
        expected = torch.from_numpy(loops.logits(pair.source, pair.target))
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@each_variant
def test_the_estimate_of_memory_follows_what_a_value_keeps_for_the_backward_pass(key: str, value: object) -> None:
    # On a CPU, torch keeps half as much again as is estimated. An estimate without the gates would be wrong by 29 %.
    assert kept_by_estimated(**{key: value}) == pytest.approx(kept_by_estimated(), rel=0.12)


def kept_by_estimated(**changes: object) -> float:
    """The bytes that torch keeps for the backward pass of a batch, divided by their estimate."""
    config = tiny_config(d_ff=64, dropout=0.1, **changes)
    model = random_model(config, vocab=VOCAB, seed=3, dtype=torch.float32).train()
    source, target = packed(random_pairs([(4, 4)] * 50, vocab=VOCAB, seed=4))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = plain_loss(model, 0.1, Batch(source, target, gold=target.ids))
    assert loss.smoothed.requires_grad
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    recipe = Recipe(name="x", model=config)
    needs = estimate_device_needs(recipe, source_vocab=VOCAB, target_vocab=VOCAB, precision="fp32", world_size=1)
    return sum(kept.values()) / len(target.ids) / needs.bytes_per_token


@each_variant
@pytest.mark.parametrize("to", REFUSED)
def test_a_value_is_exported_and_computes_the_same_or_is_refused(
    to: Target, key: str, value: Any, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2" if to == "ctranslate2" else "transformers")
    model = save_sharp(tmp_path / "m", recipe_with({key: value}))
    options: dict[str, Any] = {"to": to, "quantization": "float32", "lines": None, "overwrite": False}
    if (key, value) not in REFUSED[to]:
        assert export(model, tmp_path / "exported", **options) is not None
        return
    with pytest.raises(ModelError, match=f"has no place for a model with {key}: {value}\n") as caught:
        export(model, tmp_path / "exported", **options)
    assert caught.value.where == f"model.{key}"
    assert "nmt decode" in caught.value.hint
    assert not (tmp_path / "exported").exists()
