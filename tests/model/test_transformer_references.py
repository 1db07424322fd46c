"""The whole model against torch.nn.Transformer, and against float64 loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from nmt_cli.model.dropout import Dropout
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from tests.reference.models import Pair, logits_of, random_model, random_pairs, tiny_config
from tests.reference.transformer import LoopTransformer

# About a fast path, which these tests switch off.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

VOCAB = 37
LENGTHS = [(5, 4), (1, 7), (8, 1), (3, 3)]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
CONFIGS: dict[str, dict[str, object]] = {
    "paper": {},
    "biases": {"attention_bias": True},
    "pre-norm": {"norm": "pre"},
    "pre-norm, biases, gelu": {"norm": "pre", "attention_bias": True, "activation": "gelu"},
    "silu, four heads": {"activation": "silu", "heads": 4, "d_k": 4, "d_v": 4},
    "depths apart": {"encoder_layers": 3, "decoder_layers": 1},
    "untied, larger epsilon": {"tying": "none", "norm_epsilon": 1e-3},
}
LOOP_VOCAB = 21
LOOP_LENGTHS = [(6, 4), (1, 5), (3, 1)]
# tests/test_variants.py has each setting alone.
LOOP_CONFIGS: dict[str, dict[str, object]] = {
    "keys narrower than values": {"d_k": 3, "d_v": 10, "attention_bias": True},
    "keys wider than values, pre-norm": {"d_k": 9, "d_v": 2, "norm": "pre"},
    "heads that do not divide d_model": {"heads": 3, "d_k": 5, "d_v": 7},
    "window of 1, pre-norm": {"encoder_window": 1, "norm": "pre"},
    "learned positions, silu": {"positions": "learned", "activation": "silu"},
    "sinusoids in halves, gelu": {"positions": "sinusoidal-halves", "activation": "gelu"},
    "rotary positions": {"positions": "rotary", "d_k": 6, "d_v": 5},
    "RMSNorm, SwiGLU": {"norm_type": "rms", "activation": "swiglu"},
    "all that is newer": {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary"},
    "no tying, depths apart": {"tying": "none", "encoder_layers": 1, "decoder_layers": 2},
}


@pytest.fixture(autouse=True)
def _plain_torch() -> Iterator[None]:
    # The fast path of torch.nn.Transformer leaves out gradients, and needs another layout of ragged batches.
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def torch_transformer(model: Transformer, config: ModelConfig) -> nn.Transformer:
    """torch's layers with the model's weights; strict loading shows that none is left over on either side."""
    twin = nn.Transformer(
        d_model=config.d_model,
        nhead=config.heads,
        num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        dim_feedforward=config.d_ff,
        dropout=0.0,
        activation=ACTIVATIONS[config.activation],
        layer_norm_eps=config.norm_epsilon,
        norm_first=config.norm == "pre",
        batch_first=True,
    ).to(model.output_weight.dtype)
    if config.norm == "post":
        twin.encoder.norm = twin.decoder.norm = None
    weights = mapped_weights({name: weight.detach() for name, weight in model.state_dict().items()}, config)
    twin.load_state_dict(weights, strict=True)
    return twin.eval()


def mapped_weights(ours: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The model's weights by torch's names, embeddings and output matrix apart; attention without biases has zeros."""
    theirs: dict[str, Tensor] = {}

    def copy(name: str, *sources: str) -> None:
        weights = [ours[f"{source}.weight"] for source in sources]
        biases = [ours.get(f"{source}.bias", w.new_zeros(len(w))) for source, w in zip(sources, weights, strict=True)]
        theirs[f"{name}weight"], theirs[f"{name}bias"] = torch.cat(weights), torch.cat(biases)

    for stack, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in (f"{stack}.layers.{index}" for index in range(depth)):
            own = layer.replace(".layers", "")
            copy(f"{layer}.self_attn.in_proj_", f"{own}.self_attention.qkv")
            copy(f"{layer}.self_attn.out_proj.", f"{own}.self_attention.output")
            copy(f"{layer}.linear1.", f"{own}.feed_forward.inner")
            copy(f"{layer}.linear2.", f"{own}.feed_forward.outer")
            copy(f"{layer}.norm1.", f"{own}.self_attention_residual.norm")
            if stack == "decoder":
                copy(f"{layer}.multihead_attn.in_proj_", f"{own}.cross_attention.q", f"{own}.cross_attention.kv")
                copy(f"{layer}.multihead_attn.out_proj.", f"{own}.cross_attention.output")
                copy(f"{layer}.norm2.", f"{own}.cross_attention_residual.norm")
            copy(f"{layer}.norm{2 if stack == 'encoder' else 3}.", f"{own}.feed_forward_residual.norm")
        if config.norm == "pre":
            copy(f"{stack}.norm.", f"{stack}_norm")
    return theirs


def torch_logits(twin: nn.Transformer, model: Transformer, pairs: Sequence[Pair]) -> list[Tensor]:
    """The logits [T, V] of each pair from a padded batch."""
    sources, targets = [torch.tensor(pair.source) for pair in pairs], [torch.tensor(pair.target) for pair in pairs]
    is_padding = pad_sequence([torch.zeros(len(row)) for row in sources], batch_first=True, padding_value=1.0).bool()
    src = embedded(sources, model.source_embedding.weight, model.source_embedding.positions.table)
    tgt = embedded(targets, model.target_embedding.weight, model.target_embedding.positions.table)
    later = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
    hidden = twin(src, tgt, tgt_mask=later, src_key_padding_mask=is_padding, memory_key_padding_mask=is_padding)
    logits = hidden @ model.output_weight[:VOCAB].T
    return [logits[row, : len(target)] for row, target in enumerate(targets)]


def embedded(rows: Sequence[Tensor], weight: Tensor, table: Tensor) -> Tensor:
    """Section 3.4 and 3.5: rows of the matrix times sqrt(d_model), plus positions; [B, T, D] with zeros as padding."""
    scale = weight.size(1) ** 0.5
    return pad_sequence([weight[row] * scale + table[: len(row)] for row in rows], batch_first=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_are_torch_s_in_float64(name: str) -> None:
    config = tiny_config(**CONFIGS[name])
    model = random_model(config, vocab=VOCAB, seed=1)
    twin = torch_transformer(model, config)
    pairs = random_pairs(LENGTHS, vocab=VOCAB, seed=2)
    ours, theirs = torch.cat(logits_of(model, pairs)), torch.cat(torch_logits(twin, model, pairs))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)

    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view(ours.shape)
    (ours * weights).sum().backward()
    expected = torch.autograd.grad((theirs * weights).sum(), [*twin.parameters(), model.source_embedding.weight])
    by_name = dict(zip([name for name, _ in twin.named_parameters()], expected, strict=False))
    own = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for name, gradient in mapped_weights(own, config).items():
        if config.attention_bias or "attn" not in name or name.endswith("weight"):
            torch.testing.assert_close(gradient, by_name[name], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.source_embedding.weight.grad, expected[-1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CONFIGS)
def test_bf16_logits_are_near_those_of_the_same_weights_in_float64(name: str) -> None:
    config = tiny_config(**CONFIGS[name])
    rounded = random_model(config, vocab=VOCAB, seed=1, dtype=torch.bfloat16)
    pairs = random_pairs(LENGTHS, vocab=VOCAB, seed=2)
    with torch.no_grad():
        rough, exact = torch.cat(logits_of(rounded, pairs)), torch.cat(logits_of(rounded.double(), pairs))
    # bf16 keeps 8 bits, 2e-3 of a value on average, and a value is rounded some ten times on its way.
    assert float((rough - exact).std() / exact.std()) < 2e-2


@pytest.mark.parametrize("name", LOOP_CONFIGS)
def test_logits_are_those_of_loops_over_tokens_and_heads(name: str) -> None:
    config = tiny_config(**LOOP_CONFIGS[name])
    model = random_model(config, vocab=LOOP_VOCAB, seed=3)
    loops = LoopTransformer(config, model.state_dict(), vocab=LOOP_VOCAB)
    pairs = random_pairs(LOOP_LENGTHS, vocab=LOOP_VOCAB, seed=4)
    for ours, pair in zip(logits_of(model, pairs), pairs, strict=True):
        expected = torch.from_numpy(loops.logits(pair.source, pair.target))
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre"}, {"ffn_dropout": 0.5}, {"activation": "swiglu", "ffn_dropout": 0.5}]
)
def test_dropout_falls_on_sub_layer_outputs_and_on_embeddings_with_positions(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A factor in place of random masks shows where they fall (5.4): there, on the hidden layer of the feed-forward
    # sub-layer if the recipe says so, and nowhere else.
    def shrink(layer: Dropout, x: Tensor) -> Tensor:
        assert layer.probability == (config.ffn_dropout if x.size(1) == config.d_ff else 0.25)
        return x * (1 - layer.probability)

    monkeypatch.setattr(Dropout, "forward", shrink)
    config = tiny_config(dropout=0.25, **changes)
    model = random_model(config, vocab=LOOP_VOCAB, seed=3).train()
    loops = LoopTransformer(
        config, model.state_dict(), vocab=LOOP_VOCAB, dropout_factor=0.75, ffn_factor=1 - config.ffn_dropout
    )
    (pair,) = random_pairs([(4, 3)], vocab=LOOP_VOCAB, seed=4)
    expected = torch.from_numpy(loops.logits(pair.source, pair.target))
    torch.testing.assert_close(logits_of(model, [pair])[0], expected, rtol=1e-10, atol=1e-10)
