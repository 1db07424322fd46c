"""A decoder layer one token at a time, over cached keys and values (sections 3.1 and 3.2.3).

Shapes: B sentences, W hypotheses a sentence, R = B * W rows, S source tokens, N slots of the cache, D d_model, H heads,
K = d_k, V = d_v.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from nmt_cli.model.cache import LayerCache, Slots, sums_of
from nmt_cli.model.layers import DecoderLayer, Residual


class LayerStep:
    """What a decoder layer in evaluation mode does with one new token a row, whose keys and values go into `cache`.

    It calls what the layer's modules compute without the modules: with few rows, looking them up and calling them takes
    a tenth of a search on a CPU (docs/LOG.md).
    """

    def __init__(self, layer: DecoderLayer, cache: LayerCache) -> None:
        own, cross = layer.self_attention, layer.cross_attention
        self._cache = cache
        self._own = own
        # Queries, keys and values are alike, and one view of the product shows all three.
        self._is_even = own.rotation is None and own.d_k == own.d_v
        self._heads, self._d_k = own.heads, own.d_k
        self._qkv, self._own_output = own.qkv.forward, own.output.forward
        self._q, self._cross_output = cross.q.forward, cross.output.forward
        self._feed_forward, self._feed_forward_output = layer.feed_forward.forward, layer.feed_forward.outer.forward
        self._around_own = _Around(layer.self_attention_residual)
        self._around_cross = _Around(layer.cross_attention_residual)
        self._around_feed_forward = _Around(layer.feed_forward_residual)

    def __call__(
        self, x: Tensor, positions: Tensor, slots: Slots, past: Tensor | None, source_bias: Tensor | None
    ) -> Tensor:
        """x [R, D] of tokens at `positions` [R] to [R, D]; their keys and values go into `slots`.

        `past` [B, 1, W, N] and `source_bias` [B, 1, 1, S] are added to the scores of attention: 0, or -inf at what a
        hypothesis does not see.
        """
        cache = self._cache
        around = self._around_own
        q, k, v = self._project(around.enter(x), positions)
        keys_BHNK, values_BHNV = cache.append(k, v, slots)
        x = around.leave(x, self._own_output(_mix(q, keys_BHNK, values_BHNV, bias=past)))
        around = self._around_cross
        q = self._q(around.enter(x)).view(len(cache.cross_keys), -1, self._heads, self._d_k).transpose(1, 2)
        x = around.leave(x, self._cross_output(_mix(q, cache.cross_keys, cache.cross_values, bias=source_bias)))
        around = self._around_feed_forward
        return around.leave(x, self._feed_forward_output(self._feed_forward(around.enter(x))))

    def _project(self, x: Tensor, positions: Tensor) -> Iterable[Tensor]:
        """Queries, keys and values of the tokens, [B, H, W, .]."""
        num_sentences = len(self._cache.cross_keys)
        if self._is_even:
            each = self._qkv(x).view(num_sentences, -1, 3, self._heads, self._d_k)
            return each.permute(2, 0, 3, 1, 4).unbind()
        rows = self._own.project(x, positions)
        return [one.view(num_sentences, -1, *one.shape[1:]).transpose(1, 2) for one in rows]


class _Around:
    """The way around a sub-layer, as `Residual` has it in evaluation mode."""

    def __init__(self, residual: Residual) -> None:
        self._norm = residual.norm.forward
        self._is_pre_norm = residual.is_pre_norm

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer is given of x [R, D]."""
        return self._norm(x) if self._is_pre_norm else x

    def leave(self, x: Tensor, out: Tensor) -> Tensor:
        """The new x [R, D] from the old one and the sub-layer's output."""
        x = x + out
        return x if self._is_pre_norm else self._norm(x)


def _mix(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias) V for q [B, H, W, K], by rows: [R, H * V].

    Plain products: with few queries a sentence, torch's fused kernels take longer, and do not all take a mask. The
    softmax is in the bias's precision, float32: of short rows in bf16 torch's takes three times as long.
    """
    scores_BHWN = q @ k.mT
    if bias is None:
        scores_BHWN = scores_BHWN.to(sums_of(q)) * q.size(-1) ** -0.5
    else:
        scores_BHWN = torch.add(bias, scores_BHWN, alpha=q.size(-1) ** -0.5)
    mixed_BHWV: Tensor = scores_BHWN.softmax(-1).to(q.dtype) @ v
    num_rows = q.size(0) * q.size(2)
    return mixed_BHWV.transpose(1, 2).reshape(num_rows, -1)
