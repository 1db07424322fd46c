"""Float32 master weights beside the model that computes with them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nmt_cli.devices import Precision
from nmt_cli.model.transformer import Transformer
from nmt_cli.training.master_weights import MasterWeights
from tests.reference.models import logits_of, random_model, random_pairs, tiny_config

PRECISIONS: list[Precision] = ["fp32", "bf16"]
VOCAB = 21


def small_model() -> Transformer:
    """Always the same: tied embeddings, two layers a side."""
    return random_model(tiny_config(), vocab=VOCAB, seed=1, dtype=torch.float32).train()


def backward(model: Transformer) -> None:
    """The backward pass of a micro-batch, always the same."""
    logits = torch.cat(logits_of(model, random_pairs([(4, 3), (2, 5)], vocab=VOCAB, seed=2)))
    logits.float().log_softmax(-1)[:, 5].sum().backward()


class TwoParts(nn.Module):
    """A vector declared before a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.matrix = nn.Parameter(torch.tensor([[4.0, 5.0], [6.0, 7.0]]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_parameter_lies_in_the_vector_once_under_its_name_and_tied_matrices_stay_tied(
    precision: Precision,
) -> None:
    model = small_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights = MasterWeights(model, precision=precision)
    assert weights.values.numel() == model.num_parameters()
    named = weights.named(weights.values)
    assert named.keys() == before.keys()
    for name, tensor in named.items():
        assert torch.equal(tensor, before[name])
    assert model.source_embedding.weight is model.target_embedding.weight is model.output_weight


def test_float32_gradients_add_up_over_backward_passes_and_match_those_without_master_weights() -> None:
    plain, model = small_model(), small_model()
    weights = MasterWeights(model, precision="fp32")
    for _ in range(2):
        backward(plain)
        with weights.collecting(begins_sum=False):
            backward(model)
    named = weights.named(weights.gradients)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(named[name], parameter.grad)


def test_the_bf16_copy_is_the_rounded_master_before_and_after_an_update() -> None:
    model = small_model()
    weights = MasterWeights(model, precision="bf16")

    def assert_rounded() -> None:
        named = weights.named(weights.values)
        for name, parameter in model.named_parameters():
            assert parameter.dtype == torch.bfloat16
            assert torch.equal(parameter, named[name].bfloat16())

    assert_rounded()
    seen = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights.values.add_(torch.randn_like(weights.values))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, seen[name])  # not yet published
    weights.copy_to_model()
    assert_rounded()


def test_bf16_updates_too_small_for_bf16_are_not_lost() -> None:
    model = TwoParts()
    weights = MasterWeights(model, precision="bf16")
    for _ in range(100):
        weights.values.add_(1e-3)
        weights.copy_to_model()
    # bf16 steps near 7 are 1/32: a hundred steps of 1/1000 on bf16 alone would change nothing.
    assert model.matrix[1, 1].item() == 7.09375
    assert weights.values[3].item() == pytest.approx(7.1, abs=1e-5)


def test_bf16_gradients_are_collected_in_float32() -> None:
    model = TwoParts()
    weights = MasterWeights(model, precision="bf16")
    # A sum in bf16 would stay at 1: 2^-9 is half a step there.
    for factor in (1.0, *[2.0**-9] * 256):
        with weights.collecting(begins_sum=False):
            ((model.vector * factor).sum() + (model.matrix * factor).sum()).backward()
    assert weights.gradients.tolist() == [1.5] * 7


def test_few_operators_collect_the_same_bits() -> None:
    """On a GPU, gradients are collected by other operators than on a CPU."""
    models = [small_model(), small_model()]
    several, few = (MasterWeights(model, precision="bf16") for model in models)
    few._is_on_gpu = True
    for begins_sum in (True, False, False):
        for model, weights in zip(models, (several, few), strict=True):
            with weights.collecting(begins_sum=begins_sum):
                backward(model)
        assert torch.equal(several.gradients, few.gradients)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_first_backward_pass_of_an_update_begins_the_sum_anew(precision: Precision) -> None:
    model, other = small_model(), small_model()
    weights, fresh = (MasterWeights(one, precision=precision) for one in (model, other))
    weights.gradients.fill_(torch.nan)
    for begins_sum in (True, False):
        with weights.collecting(begins_sum=begins_sum):
            backward(model)
        with fresh.collecting(begins_sum=False):
            backward(other)
    assert torch.equal(weights.gradients, fresh.gradients)
