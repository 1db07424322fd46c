"""The kernels of the recorded search, against its operators in PyTorch and against sums in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt_cli.decoding.search.beam import cannot_improve, finish, keep_open
from nmt_cli.decoding.search.cuda import CudaSearch
from nmt_cli.decoding.search.static_state import (
    NUM_SPECIAL,
    StaticSizes,
    StaticState,
    advance_hypotheses,
    choose_candidates,
)
from nmt_cli.decoding.search.topk import topk_continuations
from nmt_cli.model import static_cache
from nmt_cli.model.layers import DecoderLayer
from nmt_cli.model.packing import pack
from nmt_cli.model.static_cache import StaticCache, StepInputs
from nmt_cli.model.transformer import Transformer
from tests.decoding.reference import CPU, EOS, random_model
from tests.decoding.test_cuda import Tape
from tests.interpreted import DEVICE, MARKS  # isort: split

from nmt_cli.model.kernels.residual_norm import add_norm
from tests.reference import models
from tests.reference.models import each_variant, tiny_config

pytestmark = MARKS


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """The device of all tensors."""
    with DEVICE:
        yield


WIDTHS = [{"d_k": 8, "d_v": 6}, {"d_k": 16, "d_v": 32, "heads": 1}, {"d_k": 12, "d_v": 12, "positions": "rotary"}]


@each_variant
def test_a_step_of_the_decoder_is_its_forward_pass_whatever_the_settings(key: str, value: object) -> None:
    config = tiny_config(**{key: value})
    model = models.random_model(config, vocab=20, seed=5, dtype=torch.float32)
    source, target = pack([[5, 6, 7, EOS]], device=DEVICE), pack([[2, 8, 9]], device=DEVICE)
    layers, width = range(config.decoder_layers), static_cache.cache_width(model)
    cache = StaticCache([torch.zeros(1, 8, width) for _ in layers], [torch.zeros(1, 4, width) for _ in layers])
    ancestors, lengths = torch.zeros(1, 1, 8, dtype=torch.int32), torch.tensor([4], dtype=torch.int32)
    with torch.inference_mode():
        memory = model.encode(source)
        static_cache.write_source(model, cache, memory, source)
        for place, expected in enumerate(model.decode(target, memory, source)):
            seen = StepInputs(ancestors, lengths, torch.tensor([place, 0, 0]))
            out = static_cache.static_step(model, target.ids[place : place + 1], cache, seen)
            torch.testing.assert_close(out[0], expected, atol=1e-5, rtol=1e-5)


def layer_of(model: Transformer) -> DecoderLayer:
    layer = model.decoder[0]
    assert isinstance(layer, DecoderLayer)
    return layer


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The attention of one query [H, K] to keys [N, H, K] and values [N, H, V], [H * V]."""
    weights = (torch.einsum("hk,nhk->hn", q, keys) * q.size(-1) ** -0.5).softmax(-1)
    return torch.einsum("hn,nhv->hv", weights, values).flatten()


@pytest.mark.parametrize("place", [0, 1, 64, 69])
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_hypothesis_attends_to_its_own_past(widths: dict[str, Any], place: int) -> None:
    beam, length, sentences = 2, 96, 2
    model = random_model(1, vocab=20, attention_bias=True, max_positions=length, **widths)
    module = layer_of(model).self_attention
    d_k, d_v, heads = module.d_k, module.d_v, module.heads
    cache = torch.randn(sentences, length * beam, heads * (d_k + d_v))
    ancestors = torch.randint(beam, (sentences, beam, length), dtype=torch.int32)
    seen = StepInputs(ancestors, torch.ones(sentences, dtype=torch.int32), torch.tensor([place, 3, 5]))
    x = torch.randn(sentences * beam, model.config.d_model)
    before = cache.clone()
    with torch.inference_mode():
        out = static_cache._self_attend(module, x, cache=cache, inputs=seen)
        q, k, v = (one.double() for one in module.double().project(x.double(), torch.full((len(x),), place)))
        for row in range(len(x)):
            sentence, number = divmod(row, beam)
            past = [position * beam + int(ancestors[sentence, number, position]) for position in range(place)]
            keys, values = before[sentence, past].double().split([heads * d_k, heads * d_v], dim=-1)
            keys = torch.cat([keys.unflatten(-1, (heads, d_k)), k[row : row + 1]])
            values = torch.cat([values.unflatten(-1, (heads, d_v)), v[row : row + 1]])
            torch.testing.assert_close(out[row].double(), attended(q[row], keys, values), atol=1e-5, rtol=1e-5)
            before[sentence, place * beam + number] = torch.cat([k[row].flatten(), v[row].flatten()])
    torch.testing.assert_close(cache, before)


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_hypothesis_attends_to_its_source_and_nothing_behind_it(widths: dict[str, Any]) -> None:
    beam, lengths = 2, [1, 64, 65, 96]
    model = random_model(1, vocab=20, **widths)
    module = layer_of(model).cross_attention
    cross = torch.randn(len(lengths), 96, module.heads * (module.d_k + module.d_v))
    for number, length in enumerate(lengths):
        cross[number, length:] = torch.nan
    seen = StepInputs(torch.zeros(4, beam, 32, dtype=torch.int32), torch.tensor(lengths).int(), torch.tensor([0, 0, 0]))
    x = torch.randn(len(lengths) * beam, model.config.d_model)
    with torch.inference_mode():
        out = static_cache._cross_attend(module, x, cache=cross, inputs=seen)
        q = module.double().q(x.double()).unflatten(-1, (module.heads, module.d_k))
    for row in range(len(x)):
        own = cross[row // beam, : lengths[row // beam]].double()
        keys, values = own.split([module.heads * module.d_k, module.heads * module.d_v], dim=-1)
        mixed = attended(q[row], *(one.unflatten(-1, (module.heads, -1)) for one in (keys, values)))
        torch.testing.assert_close(out[row].double(), mixed, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_pre_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_type", [nn.LayerNorm, nn.RMSNorm])
def test_the_norm_is_of_the_sum_with_the_bias(
    norm_type: type[nn.LayerNorm | nn.RMSNorm], dtype: torch.dtype, is_pre_norm: bool
) -> None:
    norm = norm_type(24, eps=1e-3)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x, out, bias = torch.randn(3, 24).to(dtype), torch.randn(3, 24).to(dtype), torch.randn(24).to(dtype)
    total = x.double() + out.double() + bias.double()
    expected = norm.double()(total)
    with torch.inference_mode():
        normed = add_norm(x, out, bias, norm.to(dtype), updates_x=is_pre_norm)
    tolerance = 5e-6 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(normed.double(), expected, atol=tolerance, rtol=tolerance)
    if is_pre_norm:
        torch.testing.assert_close(x.double(), total, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_embeddings_are_scaled_and_have_their_position(positions: str) -> None:
    model = random_model(1, vocab=20, positions=positions, d_model=24)
    ids, counters = torch.tensor([3, 19, 4]), torch.tensor([7, 0, 0])
    with torch.inference_mode():
        ours = static_cache._embed(model.target_embedding, ids, counters)
        torch.testing.assert_close(ours, model.target_embedding.step_input(ids, counters[:1]))


def random_state(seed: int, *, beam: int, nbest: int, step: int, is_first: bool) -> StaticState:
    """A state of four sentences: one at its limit, one done, and one with endings; the same on every device."""
    model = random_model(1, vocab=53)
    state = CudaSearch([model], device=DEVICE, recorder=Tape()).state_for(StaticSizes(4, 32, 32, beam, nbest))
    torch.manual_seed(seed)
    with CPU:
        state.counters.copy_(torch.tensor([step, 2, 100]))
        state.masks_and_penalties.copy_(torch.randn(state.masks_and_penalties.shape))
        state.log_probs.copy_(torch.randn(4, beam).sort(descending=True).values - 3.0)
        state.nodes.copy_(torch.randint(100, (4, beam)))
        state.ancestors.copy_(torch.randint(beam, state.ancestors.shape))
        state.finished.scores.copy_(torch.randn(4, nbest).sort(descending=True).values - 2.0)
        state.finished.log_probs.copy_(torch.randn(4, nbest))
        state.finished.nodes.copy_(torch.randint(100, (4, nbest)))
        state.limits.copy_(torch.tensor([step + 1, step + 1, step + 5, step + 5]))
    state.masks_and_penalties[:, :3], state.masks_and_penalties[:, 4] = -torch.inf, 1.7
    state.penalties_at_limit.fill_(2.0)
    if is_first:
        state.log_probs[:, 1:] = -torch.inf
    state.finished.scores[::2] = -torch.inf
    state.is_done[1] = True
    return state


def written(state: StaticState) -> list[Tensor]:
    """All that a choice writes; of the table of ancestors what is not left to chance."""
    ancestors = state.ancestors[..., : int(state.counters[0]) + 1]
    tree = [state.tree_log_probs, state.tree_tokens, state.tree_parents]
    open_ones = [state.ids, state.log_probs, state.nodes, ancestors, state.is_done]
    return [*tree, *open_ones, state.finished.scores, state.finished.log_probs, state.finished.nodes]


def step_by_operators(state: StaticState, logits: Tensor) -> None:
    """Choose candidates by logits [R, V] and advance the hypotheses, by torch's operators."""
    position, row, first_new_node = state.counters.tolist()
    log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    log_probs[:, :NUM_SPECIAL] += state.masks_and_penalties[position, :NUM_SPECIAL]
    best = topk_continuations(log_probs, state.log_probs, count=state.sizes.candidates)
    state.tree_log_probs[row], state.tree_tokens[row] = best.log_probs, best.tokens
    state.tree_parents[row] = state.nodes.gather(1, best.hypotheses)
    nodes = torch.arange(best.tokens.numel()).view_as(best.tokens) + first_new_node
    is_end, is_at_limit = best.tokens == EOS, state.limits <= position + 1
    state.log_probs, order = keep_open(best.log_probs, is_end, width=state.sizes.beam)
    state.ids, state.nodes = best.tokens.gather(1, order), nodes.gather(1, order)
    state.finished = finish(
        state.finished,
        torch.cat([best.log_probs, state.log_probs], dim=1),
        torch.cat([nodes, state.nodes], dim=1),
        penalties=state.masks_and_penalties[position, NUM_SPECIAL:],
        has_ended=torch.cat([is_end, is_at_limit[:, None].expand_as(state.ids)], dim=1) & ~state.is_done[:, None],
    )
    state.is_done |= is_at_limit | cannot_improve(state.finished, state.log_probs, state.penalties_at_limit)
    continued = best.hypotheses.gather(1, order)
    state.ancestors = state.ancestors.gather(1, continued[:, :, None].expand_as(state.ancestors))
    state.ancestors[..., position] = continued.to(state.ancestors.dtype)


@pytest.mark.parametrize(
    ("beam", "nbest", "vocab", "dtype", "step", "is_first"),
    [
        (4, 4, 53, torch.float32, 3, False),
        (4, 2, 53, torch.float32, 0, True),
        (1, 1, 53, torch.float32, 5, False),
        (3, 1, 8200, torch.float32, 5, False),
        (5, 5, 700, torch.bfloat16, 31, False),
        (2, 1, 7, torch.float32, 0, True),
    ],
)
def test_the_kernels_choose_and_sort_as_the_operators_do(
    beam: int, nbest: int, vocab: int, dtype: torch.dtype, step: int, is_first: bool
) -> None:
    settings: dict[str, Any] = {"beam": beam, "nbest": nbest, "step": step, "is_first": is_first}
    by_kernels, plain = (random_state(3, **settings) for _ in range(2))
    # Many logits in bf16 are equal, and columns behind the vocabulary are of the padding.
    logits = torch.randn(4 * beam, vocab + 11, device=CPU).to(DEVICE, dtype)
    logits[:, vocab:] = torch.nan
    logits[:, 3] += 3.0
    logits = logits[:, :vocab]
    with torch.inference_mode():
        advance_hypotheses(by_kernels, choose_candidates(by_kernels, logits))
        step_by_operators(plain, logits)
    assert (by_kernels.tree_tokens[2] == 3).any()
    # Equal sums in float32 hang on the order of additions: those of the seed differ.
    for ours, expected in zip(written(by_kernels), written(plain), strict=True):
        torch.testing.assert_close(ours, expected, atol=3e-6, rtol=1e-6)
