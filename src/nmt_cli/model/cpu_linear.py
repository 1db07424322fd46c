"""Linear layers for decoding on a CPU: matrices laid out for oneDNN, in 32, 16 or 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt_cli.model.layers import FeedForward
from nmt_cli.model.transformer import Transformer

# The largest 8-bit integer that is used; its negative is the smallest, so that 0 stays 0.
_MOST = 127
# oneDNN multiplies unsigned by signed integers: this is added to the former.
_SHIFT = 128
_SMALLEST = 1e-30
# Matrices of so few numbers gain nothing: what it costs to round their inputs is as much.
_FEW_NUMBERS = 1 << 18
_ERROR = 1e-3


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


def pack_linear_layers(model: Transformer, *, is_int8: bool) -> bool:
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


class QuantizedLinear(nn.Module):
    """x W^T + b with W and x in 8 bits, the result in the precision `out`; with `is_relu` what is positive of it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, is_relu: bool, out: torch.dtype) -> None:
        super().__init__()
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min_(_SMALLEST) / _MOST
        rounded = (weight / scales[:, None]).round_().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        # The products are of integers, and a row's scale is multiplied in afterwards.
        self._scales = scales
        self._zeros = torch.zeros(len(weight), dtype=torch.long)
        self._bias = None if bias is None else bias.detach().float()
        self._is_relu = is_relu
        self._out = out

    def forward(self, x: Tensor) -> Tensor:
        """x [N, in] to [N, out]."""
        x = x.float()
        scales = x.abs().amax(dim=1, keepdim=True).clamp_min_(_SMALLEST).div_(_MOST)
        rounded = (x / scales).round_().to(torch.int8).view(torch.uint8).add_(_SHIFT)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, _SHIFT, self._weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        out.mul_(scales)
        if self._bias is not None:
            out += self._bias
        if self._is_relu:
            out.relu_()
        return out.to(self._out)


def is_worth_quantizing(weight: Tensor) -> bool:
    """Whether products with this matrix gain from integers."""
    return weight.numel() > _FEW_NUMBERS


def can_quantize() -> bool:
    """Whether this torch multiplies integers here, and exactly: CPUs without VNNI clip sums of large ones."""
    if not torch.backends.mkldnn.is_available():
        return False
    ones = torch.ones(8, 64)
    try:
        with torch.inference_mode():
            product = QuantizedLinear(ones, None, is_relu=False, out=torch.float32)(ones)
    except (AttributeError, RuntimeError):
        return False
    return bool((product - 64).abs().max() < _ERROR)
