"""Linear layers for decoding on a CPU: matrices laid out for oneDNN, in 32, 16 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmt_cli.model.layers import FeedForward
from nmt_cli.model.transformer import Transformer

_INT8_MAX = 127  # integers go from -127 to 127, so that 0 stays 0
_UINT8_OFFSET = 128  # oneDNN multiplies unsigned by signed integers: this is added to the unsigned ones
_MIN_ROW_MAXIMUM = 1e-30  # so that rows of zeros have a scale too
# Smaller matrices gain nothing from integers, because rounding their inputs costs as much.
_SMALL_MATRIX_ELEMENTS = 1 << 18


class PackedLinear(nn.Module):
    """x W^T + b as `nn.Linear` computes it, with W laid out for oneDNN; `is_relu` adds a ReLU."""

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
    """`FeedForward` with the ReLU in its first product. Like there, the residual applies `outer`."""

    def __init__(self, inner: nn.Module, outer: nn.Linear) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer

    def forward(self, x: Tensor) -> Tensor:
        """The input [N, F] of `outer` for x [N, D]."""
        hidden: Tensor = self.inner(x)
        return hidden


def pack_linear_layers(model: Transformer, *, is_int8: bool) -> bool:
    """Lay out all matrices of a model on a CPU, if this torch can; True if any products are of 8-bit integers.

    `is_int8` asks for integers in products with large matrices. The model can then neither be trained nor saved.
    """

    def pack(weight: Tensor, bias: Tensor | None, *, is_relu: bool, int8_out: torch.dtype) -> nn.Module:
        if is_int8 and weight.numel() > _SMALL_MATRIX_ELEMENTS:
            return QuantizedLinear(weight, bias, is_relu=is_relu, out=int8_out)
        return PackedLinear(weight, bias, is_relu=is_relu)

    dtype = model.output_weight.dtype
    if model.output_weight.device.type != "cpu" or not can_pack(dtype):
        return False
    with torch.inference_mode():
        # First the products that a ReLU follows, so that the second pass finds them packed.
        for parent, name, child in _children(model):
            if isinstance(child, FeedForward) and child.activation == "relu":
                inner = pack(child.inner.weight, child.inner.bias, is_relu=True, int8_out=dtype)
                setattr(parent, name, _PackedFeedForward(inner, child.outer))
        for parent, name, child in _children(model):
            if isinstance(child, nn.Linear):
                setattr(parent, name, pack(child.weight, child.bias, is_relu=False, int8_out=dtype))
        vocab = model.target_vocab
        bias = None if model.output_bias is None else model.output_bias[:vocab]
        # Integers give float32 products: the softmax is computed in float32 anyway.
        model.packed_output = pack(model.output_weight[:vocab], bias, is_relu=False, int8_out=torch.float32)
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def _children(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """All modules in a model, each with its parent and its name there."""
    return [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch lays out matrices of `dtype` for oneDNN."""
    weight, x = torch.zeros(8, 8, dtype=dtype), torch.zeros(1, 8, dtype=dtype)
    is_known = dtype in (torch.float32, torch.bfloat16)
    return is_known and _product_or_none(lambda: PackedLinear(weight, None, is_relu=True)(x)) is not None


class QuantizedLinear(nn.Module):
    """x W^T + b with W and x in 8 bits, and the result in the precision `out`; `is_relu` adds a ReLU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, is_relu: bool, out: torch.dtype) -> None:
        super().__init__()
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min_(_MIN_ROW_MAXIMUM) / _INT8_MAX
        rounded = (weight / scales[:, None]).round_().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._scales = scales
        self._zeros = torch.zeros(len(weight), dtype=torch.long)
        self._bias = None if bias is None else bias.detach().float()
        self._is_relu, self._out = is_relu, out

    def forward(self, x: Tensor) -> Tensor:
        """x [N, in] to [N, out]."""
        x = x.float()
        scales = x.abs().amax(dim=1, keepdim=True).clamp_min_(_MIN_ROW_MAXIMUM).div_(_INT8_MAX)
        rounded = (x / scales).round_().to(torch.int8).view(torch.uint8).add_(_UINT8_OFFSET)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded,
            1.0,  # the scale of x: `scales` has one for each row, multiplied below
            _UINT8_OFFSET,
            self._weight,
            self._scales,
            self._zeros,
            None,  # the bias, added below
            1.0,  # the scale and the zero of the output, which stays in float32
            0,
            torch.float32,
            "none",  # no activation, so no arguments for it
            [],
            "",
        )
        out.mul_(scales)
        if self._bias is not None:
            out += self._bias
        if self._is_relu:
            out.relu_()
        return out.to(self._out)


def can_quantize() -> bool:
    """Whether this torch multiplies integers here, and exactly: CPUs without VNNI clip sums of large ones."""
    ones = torch.ones(8, 64)
    product = _product_or_none(lambda: QuantizedLinear(ones, None, is_relu=False, out=torch.float32)(ones))
    return product is not None and bool((product - 64).abs().max() < 1e-3)


def _product_or_none(multiply: Callable[[], Tensor]) -> Tensor | None:
    """The product; None if this torch cannot compute it."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        with torch.inference_mode():
            return multiply()
    except (AttributeError, RuntimeError):
        return None
