"""The whole model against the float64 loops of tests/reference: what torch.nn.Transformer lacks, and dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nmt_cli.model.dropout import Dropout
from tests.reference.models import logits_of, random_model, random_pairs, tiny_config
from tests.reference.transformer import LoopTransformer

VOCAB = 21
LENGTHS = [(6, 4), (1, 5), (3, 1)]
CONFIGS: dict[str, dict[str, object]] = {
    "paper": {},
    "keys narrower than values": {"d_k": 3, "d_v": 10, "attention_bias": True},
    "keys wider than values, pre-norm": {"d_k": 9, "d_v": 2, "norm": "pre"},
    "heads that do not divide d_model": {"heads": 3, "d_k": 5, "d_v": 7},
    "window of 3": {"encoder_window": 3},
    "window of 1, pre-norm": {"encoder_window": 1, "norm": "pre"},
    "learned positions, silu": {"positions": "learned", "activation": "silu"},
    "sinusoids in halves, gelu": {"positions": "sinusoidal-halves", "activation": "gelu"},
    "target tying": {"tying": "target"},
    "rotary positions": {"positions": "rotary", "d_k": 6, "d_v": 5},
    "RMSNorm, SwiGLU": {"norm_type": "rms", "activation": "swiglu"},
    "all that is newer": {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary"},
    "no tying, depths apart": {"tying": "none", "encoder_layers": 1, "decoder_layers": 2},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_loops_over_tokens_and_heads(name: str) -> None:
    config = tiny_config(**CONFIGS[name])
    model = random_model(config, vocab=VOCAB, seed=3)
    loops = LoopTransformer(config, model.state_dict(), vocab=VOCAB)
    pairs = random_pairs(LENGTHS, vocab=VOCAB, seed=4)
    for ours, pair in zip(logits_of(model, pairs), pairs, strict=True):
        expected = torch.from_numpy(loops.logits(pair.source, pair.target))
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_falls_on_sub_layer_outputs_and_on_embeddings_with_positions(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A factor in place of random masks shows where they fall (5.4): there, and nowhere else.
    def shrink(layer: Dropout, x: Tensor) -> Tensor:
        assert layer.probability == 0.25
        return x * 0.75

    monkeypatch.setattr(Dropout, "forward", shrink)
    config = tiny_config(norm=norm, dropout=0.25)
    model = random_model(config, vocab=VOCAB, seed=3)
    loops = LoopTransformer(config, model.state_dict(), vocab=VOCAB, dropout_factor=0.75)
    (pair,) = random_pairs([(4, 3)], vocab=VOCAB, seed=4)
    expected = torch.from_numpy(loops.logits(pair.source, pair.target))
    torch.testing.assert_close(logits_of(model, [pair])[0], expected, rtol=1e-10, atol=1e-10)
