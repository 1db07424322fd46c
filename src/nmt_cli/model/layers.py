"""Sub-layers and layers of encoder and decoder (sections 3.1 to 3.3).

Shapes: N packed target (or only) tokens, M packed source tokens, D d_model, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

from typing import assert_never

from torch import Tensor, nn
from torch.nn import functional as F

from nmt_cli.model.attention import attend
from nmt_cli.model.cache import LayerCache
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.packing import Layout, Packed, to_rectangle
from nmt_cli.model.positions import Rotation
from nmt_cli.recipe.schema import ModelConfig


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (3.2.2); queries, keys and values come from one matrix."""

    def __init__(self, config: ModelConfig, *, is_causal: bool, window: int | None) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = config.heads, config.d_k, config.d_v
        self.is_causal, self.window = is_causal, window
        is_rotary = config.positions == "rotary"
        self.rotation = Rotation(num_positions=config.max_positions, width=config.d_k) if is_rotary else None
        self.qkv = nn.Linear(config.d_model, config.heads * (2 * config.d_k + config.d_v), bias=config.attention_bias)
        self.output = nn.Linear(config.heads * config.d_v, config.d_model, bias=config.attention_bias)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """x [N, D] to [N, D], each sentence by itself."""
        q, k, v = self.project(x, layout.positions)
        mixed = attend(q, k, v, queries=layout, keys=layout, is_causal=self.is_causal, window=self.window)
        out: Tensor = self.output(mixed.flatten(1))
        return out

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [N, H, K], turned where positions are rotary, and values [N, H, V] of x [N, D]."""
        widths = [self.heads * self.d_k, self.heads * self.d_k, self.heads * self.d_v]
        q, k, v = self.qkv(x).split(widths, dim=-1)
        q, k = q.unflatten(-1, (self.heads, self.d_k)), k.unflatten(-1, (self.heads, self.d_k))
        if self.rotation is not None:
            q, k = self.rotation(q, positions), self.rotation(k, positions)
        return q, k, v.unflatten(-1, (self.heads, self.d_v))


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the encoder's output (3.2.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = config.heads, config.d_k, config.d_v
        self.q = nn.Linear(config.d_model, config.heads * config.d_k, bias=config.attention_bias)
        self.kv = nn.Linear(config.d_model, config.heads * (config.d_k + config.d_v), bias=config.attention_bias)
        self.output = nn.Linear(config.heads * config.d_v, config.d_model, bias=config.attention_bias)

    def forward(self, x: Tensor, layout: Layout, memory: Tensor, source: Layout) -> Tensor:
        """x [N, D] attending to memory [M, D] of the same sentences."""
        q = self.q(x).unflatten(-1, (self.heads, self.d_k))
        k, v = self.keys_values(memory)
        mixed = attend(q, k, v, queries=layout, keys=source, is_causal=False, window=None)
        out: Tensor = self.output(mixed.flatten(1))
        return out

    def start(self, memory: Tensor, source: Packed, *, slots: int) -> LayerCache:
        """A cache with keys and values of memory [M, D], each sentence's in `slots` places, zeros in those too many."""
        rectangles = (to_rectangle(x, source).transpose(1, 2) for x in self.keys_values(memory))
        k, v = (F.pad(x, (0, 0, 0, slots - source.max_len)).contiguous() for x in rectangles)
        return LayerCache(k, v)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [M, H, K] and values [M, H, V] of memory [M, D]."""
        k, v = self.kv(memory).split([self.heads * self.d_k, self.heads * self.d_v], dim=-1)
        return k.unflatten(-1, (self.heads, self.d_k)), v.unflatten(-1, (self.heads, self.d_v))


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 (equation 2); gated, the first half of x W1 + b1 goes through the activation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        is_gated = config.activation == "swiglu"
        self.inner = nn.Linear(config.d_model, config.d_ff * (2 if is_gated else 1))
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        """x [N, D] to [N, D]."""
        hidden: Tensor = self.inner(x)
        match self.activation:
            case "relu":
                hidden = F.relu(hidden, inplace=True)
            case "gelu":
                hidden = F.gelu(hidden)
            case "silu":
                hidden = F.silu(hidden)
            case "swiglu":
                gate, value = hidden.chunk(2, dim=-1)
                hidden = F.silu(gate) * value
            case other:
                assert_never(other)
        out: Tensor = self.outer(hidden)
        return out


class Residual(nn.Module):
    """The way around a sub-layer: LayerNorm(x + Dropout(sub-layer(x))) (3.1, 5.4), or with the norm before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = norm_of(config)
        self.dropout = Dropout(config.dropout)
        self.is_pre_norm = config.norm == "pre"

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer is given of x [N, D]."""
        return self.norm(x) if self.is_pre_norm else x

    def leave(self, x: Tensor, out: Tensor) -> Tensor:
        """The new x [N, D] from the old one and the sub-layer's output."""
        x = x + self.dropout(out)
        return x if self.is_pre_norm else self.norm(x)


def norm_of(config: ModelConfig) -> nn.Module:
    """A normalisation of d_model components, with a factor for each, and in layer normalisation a bias."""
    match config.norm_type:
        case "layer":
            return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        case "rms":
            return nn.RMSNorm(config.d_model, eps=config.norm_epsilon)
        case other:
            assert_never(other)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual (3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, is_causal=False, window=config.encoder_window)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """x [M, D] to [M, D]."""
        around = self.self_attention_residual
        x = around.leave(x, self.self_attention(around.enter(x), layout))
        around = self.feed_forward_residual
        return around.leave(x, self.feed_forward(around.enter(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward, each with its residual (3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, is_causal=True, window=None)
        self.self_attention_residual = Residual(config)
        self.cross_attention = CrossAttention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, layout: Layout, memory: Tensor, source: Layout) -> Tensor:
        """x [N, D] to [N, D], given memory [M, D]."""
        around = self.self_attention_residual
        x = around.leave(x, self.self_attention(around.enter(x), layout))
        around = self.cross_attention_residual
        x = around.leave(x, self.cross_attention(around.enter(x), layout, memory, source))
        around = self.feed_forward_residual
        return around.leave(x, self.feed_forward(around.enter(x)))
