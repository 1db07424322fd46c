"""Matrices laid out once for a CPU's products, for a model that only translates from then on.

torch hands a plain matrix to its products as it is: oneDNN lays a bf16 matrix out anew at each product, and float32
goes to MKL, which takes more than twice as long on CPUs of other makers (docs/LOG.md). Sums are in the matrix's own
precision in both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt_cli.model.layers import FeedForward
from nmt_cli.model.quantized_linear import QuantizedLinear, is_worth_quantizing
from nmt_cli.model.transformer import Transformer


class PackedLinear(nn.Module):
    """x W^T + b as `nn.Linear` computes it, with W laid out for oneDNN; with `is_relu` what is positive of it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, is_relu: bool) -> None:
        super().__init__()
        self._activation = "relu" if is_relu else "none"
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """x [N, in] to [N, out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, self._activation, [], "")
        return out


class _PackedFeedForward(nn.Module):
    """A feed-forward layer whose first product has the ReLU in it."""

    def __init__(self, inner: nn.Module, outer: nn.Linear) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer

    def forward(self, x: Tensor) -> Tensor:
        """x [N, D] to what `outer` is given [N, F]."""
        hidden: Tensor = self.inner(x)
        return hidden


def pack_matrices(model: Transformer, *, is_int8: bool) -> bool:
    """Lay out all matrices of a model on a CPU, where this torch can; whether any products are of 8-bit integers.

    With `is_int8` those with large matrices are. The model can then neither be trained nor saved.
    """

    def packed(weight: Tensor, bias: Tensor | None, *, is_relu: bool, out: torch.dtype) -> nn.Module:
        if is_int8 and is_worth_quantizing(weight):
            return QuantizedLinear(weight, bias, is_relu=is_relu, out=out)
        return PackedLinear(weight, bias, is_relu=is_relu)

    dtype = model.output_weight.dtype
    if model.output_weight.device.type != "cpu" or not can_pack(dtype):
        return False
    with torch.inference_mode():
        for parent, name, child in _children(model):
            if isinstance(child, FeedForward) and child.activation == "relu":
                inner = packed(child.inner.weight, child.inner.bias, is_relu=True, out=dtype)
                setattr(parent, name, _PackedFeedForward(inner, child.outer))
        for parent, name, child in _children(model):
            if isinstance(child, nn.Linear):
                setattr(parent, name, packed(child.weight, child.bias, is_relu=False, out=dtype))
        vocab = model.target_vocab
        bias = None if model.output_bias is None else model.output_bias[:vocab]
        # Statistics of its products are float32.
        model.packed_output = packed(model.output_weight[:vocab], bias, is_relu=False, out=torch.float32)
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def _children(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """All modules in a model, with what they are in and their name there."""
    return [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch lays out matrices of `dtype` for oneDNN."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        with torch.inference_mode():
            PackedLinear(torch.zeros(8, 8, dtype=dtype), None, is_relu=True)(torch.zeros(1, 8, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True
