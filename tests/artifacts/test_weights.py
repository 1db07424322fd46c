"""Weights by name: shared tensors once, strict loading, and files that safetensors itself reads and writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmt_cli.artifacts import weights
from nmt_cli.errors import ModelError
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe.schema import Recipe
from tests.artifacts.builders import tiny_model, tiny_recipe

EMBEDDINGS = {"source_embedding.weight", "target_embedding.weight", "output_weight"}


def recipe_tied(tying: str) -> Recipe:
    return tiny_recipe(model={"tying": tying})


@pytest.mark.parametrize(("tying", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_a_shared_matrix_is_named_once(tying: str, matrices: int) -> None:
    model = tiny_model(recipe_tied(tying))
    named = weights.weights_of(model)
    assert len(EMBEDDINGS & named.keys()) == matrices
    assert sum(tensor.numel() for tensor in named.values()) == model.num_parameters()
    assert set(named) | EMBEDDINGS == set(model.state_dict())


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_loading_copies_every_tensor_and_keeps_sharing(tying: str) -> None:
    old, new = tiny_model(recipe_tied(tying), seed=1), tiny_model(recipe_tied(tying), seed=2)
    weights.load_weights(new, weights.weights_of(old), where="f", hint="h")
    for name, tensor in old.state_dict().items():
        assert torch.equal(new.state_dict()[name], tensor), name
    assert (new.output_weight is new.target_embedding.weight) == (tying != "none")
    with torch.no_grad():
        old.output_weight.add_(1)
    assert not torch.equal(new.output_weight, old.output_weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.0.feed_forward.inner.bias": None}, "the tensor encoder.0.feed_forward.inner.bias is missing"),
        ({"encoder.9.bias": torch.zeros(1)}, "the tensor encoder.9.bias has no place in this model"),
        (
            {"encoder.0.feed_forward.inner.bias": torch.zeros(7)},
            "the tensor encoder.0.feed_forward.inner.bias has shape [7], but should have [24]",
        ),
    ],
)
def test_strict_loading_names_the_first_tensor(change: dict[str, Tensor | None], message: str) -> None:
    model = tiny_model(tiny_recipe())
    changed = {**weights.weights_of(model), **change}
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    before = {name: tensor.clone() for name, tensor in weights.weights_of(model).items()}
    with pytest.raises(ModelError) as caught:
        weights.load_weights(model, kept, where="model.safetensors", hint="copy it again")
    assert caught.value.message == message
    assert (caught.value.where, caught.value.hint) == ("model.safetensors", "copy it again")
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.weights_of(model).items())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("biases", [True, False])
def test_a_bare_model_is_complete_and_draws_nothing(positions: str, biases: bool) -> None:
    recipe = tiny_recipe(model={"positions": positions, "attention_bias": biases})
    state = torch.get_rng_state()
    bare = weights.uninitialized_model(recipe.model, source_vocab=300, target_vocab=300)
    assert torch.equal(torch.get_rng_state(), state)
    full = tiny_model(recipe)
    weights.load_weights(bare, weights.weights_of(full), where="f", hint="h")
    for name, tensor in full.state_dict().items():
        assert torch.equal(bare.state_dict()[name], tensor), name
    if positions == "sinusoidal":
        assert torch.equal(bare.source_embedding.positions.table, sinusoids(64, 16))


def test_tensors_that_are_not_contiguous_keep_their_order(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).view(3, 4).mT
    weights.write_tensors(tmp_path / "t.safetensors", {"t": tensor})
    assert torch.equal(weights.read_tensors(tmp_path / "t.safetensors", hint="h")["t"], tensor)


def test_a_file_in_a_folder_whose_name_is_not_utf8_is_read(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"m\xfcller") / "t.safetensors"
    file.parent.mkdir()
    weights.write_tensors(file, {"t": torch.ones(2)})
    assert torch.equal(weights.read_tensors(file, hint="h")["t"], torch.ones(2))


def test_the_file_is_readable_by_those_the_umask_allows(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        weights.write_tensors(tmp_path / "t.safetensors", {"t": torch.zeros(2)})
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "t.safetensors").stat().st_mode) == 0o644


@pytest.mark.parametrize("part", [0.0, 0.01, 0.999])
def test_a_shortened_file_is_damaged(tmp_path: Path, part: float) -> None:
    file = tmp_path / "t.safetensors"
    weights.write_tensors(file, weights.weights_of(tiny_model(tiny_recipe())))
    content = file.read_bytes()
    file.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ModelError, match=r"t\.safetensors is damaged") as caught:
        weights.read_tensors(file, hint="copy it again")
    assert (caught.value.where, caught.value.hint) == (str(file), "copy it again")


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"t\.safetensors is missing"):
        weights.read_tensors(tmp_path / "t.safetensors", hint="copy it again")
