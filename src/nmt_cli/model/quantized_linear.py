"""Matrix products of 8-bit integers on a CPU, for a model that only translates from then on.

A matrix is rounded once, each of its rows by a scale of its own; what it is multiplied with when it comes, each row by
its own scale too, so that no sentence changes what becomes of another. Sums are exact, and what surrounds the products
stays in its precision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# The largest 8-bit integer that is used; its negative is the smallest, so that 0 stays 0.
_MOST = 127
# oneDNN multiplies unsigned by signed integers: this is added to the former.
_SHIFT = 128
_SMALLEST = 1e-30
# Matrices of so few numbers gain nothing: what it costs to round their inputs is as much.
_FEW_NUMBERS = 1 << 18
_ERROR = 1e-3


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
