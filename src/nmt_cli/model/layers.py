"""Sub-layers and layers of encoder and decoder (sections 3.1 to 3.3).

A sub-layer ends before its last matrix, `output` or `outer`: `Residual` multiplies by it, and can then use one kernel.

Shapes: N packed target (or only) tokens, M packed source tokens, D d_model, F = d_ff, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt_cli.model.attention import attend
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.packing import Layout, Projections
from nmt_cli.recipe.schema import ModelConfig

Norm = nn.LayerNorm | nn.RMSNorm


def position_angles(num_positions: int, width: int) -> Tensor:
    """pos / 10000^(2i / width), float64 [positions, width / 2]; on the CPU, also under another default device."""
    position = torch.arange(num_positions, dtype=torch.float64, device="cpu")[:, None]
    return position * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)


class RotaryEmbedding(nn.Module):
    """Rotates components i and i + K/2 of each head by an angle of position * 10000^(-2i / K).

    Su et al. 2021, arXiv:2104.09864, equation 15: the product of a query and a key depends on their distance alone.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, *, num_positions: int, width: int) -> None:
        super().__init__()
        angles = position_angles(num_positions, width)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [N, H, K] of tokens at `positions` [N], rotated."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (3.2.2); queries, keys and values come from one matrix."""

    def __init__(self, config: ModelConfig, *, is_causal: bool, window: int | None) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = config.heads, config.d_k, config.d_v
        self.is_causal, self.window = is_causal, window
        self.rotary: RotaryEmbedding | None = None
        if config.is_rotary:
            self.rotary = RotaryEmbedding(num_positions=config.max_positions, width=config.d_k)
        self.qkv = nn.Linear(config.d_model, config.heads * (2 * config.d_k + config.d_v), bias=config.attention_bias)
        self.output = nn.Linear(config.heads * config.d_v, config.d_model, bias=config.attention_bias)
        self.dropout = Dropout(config.attention_dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """The attention output [N, H * V] for x [N, D]."""
        if self.rotary is None:
            matrices = [self.qkv(x)]
        else:
            matrices = [vectors.flatten(1) for vectors in self.project(x, layout.positions)]
        projections = Projections(matrices, self.heads, self.d_k, self.d_v)
        mixed = attend(
            projections,
            queries=layout,
            keys=layout,
            is_causal=self.is_causal,
            window=self.window,
            dropout=self.dropout,
        )
        return mixed.flatten(1)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [N, H, K], rotated if positions are rotary, and values [N, H, V] of x [N, D]."""
        q, k, v = Projections([self.qkv(x)], self.heads, self.d_k, self.d_v).by_head()
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the encoder's output (3.2.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = config.heads, config.d_k, config.d_v
        self.q = nn.Linear(config.d_model, config.heads * config.d_k, bias=config.attention_bias)
        self.kv = nn.Linear(config.d_model, config.heads * (config.d_k + config.d_v), bias=config.attention_bias)
        self.output = nn.Linear(config.heads * config.d_v, config.d_model, bias=config.attention_bias)
        self.dropout = Dropout(config.attention_dropout)

    def forward(self, x: Tensor, layout: Layout, memory: Tensor, source: Layout) -> Tensor:
        """The attention output [N, H * V] for x [N, D] and memory [M, D]."""
        projections = Projections([self.q(x), self.kv(memory)], self.heads, self.d_k, self.d_v)
        mixed = attend(projections, queries=layout, keys=source, is_causal=False, window=None, dropout=self.dropout)
        return mixed.flatten(1)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [M, H, K] and values [M, H, V] of memory [M, D]."""
        k, v = self.kv(memory).split([self.heads * self.d_k, self.heads * self.d_v], dim=-1)
        return k.unflatten(-1, (self.heads, self.d_k)), v.unflatten(-1, (self.heads, self.d_v))


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 (equation 2); gated, the first half of x W1 + b1 goes through the activation.

    The hidden layer has dropout, after the gate.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff * (2 if config.is_gated else 1))
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.activation = config.activation
        self.dropout = Dropout(config.ffn_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The hidden layer [N, F] for x [N, D]."""
        is_compiled = self.training and torch.compiler.is_compiling()
        hidden = self.hidden_on_gpu(x) if is_compiled else self._activate(self.inner(x))
        return self.dropout.forward(hidden)

    def hidden_on_gpu(self, x: Tensor) -> Tensor:
        """The hidden layer without dropout: if it has a ReLU, a product with the ReLU in it."""
        if self.activation == "relu":
            return linear_relu(x, self.inner.weight, self.inner.bias)
        return self._activate(self.inner(x))

    def _activate(self, hidden: Tensor) -> Tensor:
        match self.activation:
            case "relu":
                return F.relu(hidden, inplace=True)
            case "gelu":
                return F.gelu(hidden)
            case "silu":
                return F.silu(hidden)
            case "swiglu":
                gate, value = hidden.chunk(2, dim=-1)
                return F.silu(gate) * value
            case other:
                assert_never(other)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, x W^T + b) [N, F] of x [N, D], weight [F, D] and bias [F]: on CUDA one kernel of cuBLASLt."""
    hidden: Tensor = _LinearReLU.apply(x, weight, bias)  # type: ignore[no-untyped-call]  # not annotated
    return hidden


class _LinearReLU(torch.autograd.Function):
    """`torch._addmm_activation` with the backward pass that it lacks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = torch._addmm_activation(bias, x, weight.mT)
        ctx.save_for_backward(x, weight, hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, hidden = ctx.saved_tensors
        from nmt_cli.model.kernels.residual_norm import relu_backward

        gradient, bias_gradient = relu_backward(gradients[0].contiguous(), hidden)
        return gradient @ weight, gradient.t() @ x, bias_gradient


class Residual(nn.Module):
    """The residual connection around a sub-layer, with dropout and a norm (3.1, 5.4).

    Post-norm, as in the paper: norm(x + Dropout(sublayer(x))). Pre-norm: x + Dropout(sublayer(norm(x))).
    In compiled training, one kernel of ours does everything after the last product of a post-norm sub-layer.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = norm_of(config)
        self.dropout = Dropout(config.dropout)
        self.is_pre_norm = config.is_pre_norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], output: nn.Linear) -> Tensor:
        """The new x [N, D]; `output` is the last layer of the sub-layer, and `sublayer` is everything before it."""
        # `forward` itself: calls of modules take a tenth of a step for a single sentence on a CPU.
        hidden = sublayer(self.norm.forward(x) if self.is_pre_norm else x)
        is_compiled = self.training and torch.compiler.is_compiling()
        if is_compiled and not self.is_pre_norm and isinstance(self.norm, nn.LayerNorm):
            return self._add_and_norm_by_kernel(x, F.linear(hidden, output.weight), output.bias, self.norm)
        out = output.forward(hidden)
        x = x + (self.dropout(out) if self.training else out)
        return x if self.is_pre_norm else self.norm.forward(x)

    def _add_and_norm_by_kernel(self, x: Tensor, out: Tensor, bias: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        from nmt_cli.model.kernels.residual_norm import residual_norm

        seed, probability = self.dropout.kernel_arguments(x.device)
        y: Tensor = residual_norm(x, out, bias, norm.weight, norm.bias, seed, probability, norm.eps)[0]
        return y


def norm_of(config: ModelConfig) -> Norm:
    """A normalisation of d_model components, with a factor for each, and in layer normalisation a bias."""
    match config.norm_type:
        case "layer":
            return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        case "rms":
            return nn.RMSNorm(config.d_model, eps=config.norm_epsilon)
        case other:
            assert_never(other)


SelfAttend = Callable[[SelfAttention, Tensor], Tensor]
"""Self-attention of x [N, D]: the attention output [N, H * V]."""
CrossAttend = Callable[[CrossAttention, Tensor], Tensor]
"""Attention of x [N, D] to the source: the attention output [N, H * V]."""


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual (3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, is_causal=False, window=config.encoder_window)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, *, self_attend: SelfAttend) -> Tensor:
        """x [M, D] to [M, D]; `self_attend` computes the self-attention."""
        attention = self.self_attention
        x = self.self_attention_residual.forward(x, partial(self_attend, attention), attention.output)
        return self.feed_forward_residual.forward(x, self.feed_forward, self.feed_forward.outer)


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

    def forward(self, x: Tensor, *, self_attend: SelfAttend, cross_attend: CrossAttend) -> Tensor:
        """x [N, D] to [N, D]; `self_attend` and `cross_attend` compute the attention.

        Training attends to whole sentences, and a search to cached keys and values. Everything else is the same.
        """
        attention = self.self_attention
        x = self.self_attention_residual.forward(x, partial(self_attend, attention), attention.output)
        cross = self.cross_attention
        x = self.cross_attention_residual.forward(x, partial(cross_attend, cross), cross.output)
        return self.feed_forward_residual.forward(x, self.feed_forward, self.feed_forward.outer)
