"""Dropout (Srivastava et al. 2014) with masks that are cheap to draw on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 15
_BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


class Dropout(nn.Module):
    """Zeroes each element with `probability` in training, and scales the rest by 1 / (1 - probability)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape; randomness comes from torch's generator of the device alone."""
        if not self.training or self.probability == 0:
            return x
        if x.device.type != "cpu" or x.dtype not in _BITS:
            return F.dropout(x, self.probability)
        dropped: Tensor = _BitMask.apply(x, self.probability)  # type: ignore[no-untyped-call]  # not annotated
        return dropped


class _BitMask(torch.autograd.Function):
    """torch's CPU dropout draws one number an element, one by one; here a 64-bit draw serves four elements.

    A draw of 15 bits below the threshold drops its element: the probability is right to 2^-15, and the scale is that
    of the probability taken. The mask is all ones or all zeros, laid over the bits of the element.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, probability: float) -> Tensor:
        threshold = min(round(probability * _LEVELS), _LEVELS - 1)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        kept = draws[: x.numel()].view(x.shape).bitwise_and_(_LEVELS - 1).neg_().add_(threshold - 1)
        mask = kept.bitwise_right_shift_(15).to(_BITS[x.dtype])
        ctx.save_for_backward(mask)
        ctx.scale = _LEVELS / (_LEVELS - threshold)  # type: ignore[attr-defined]  # a context takes any attribute
        return _masked(x, mask, _LEVELS / (_LEVELS - threshold))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]  # missing from torch's annotations
        return _masked(gradients[0], mask, ctx.scale), None  # type: ignore[attr-defined]  # set in forward


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (x.contiguous().view(mask.dtype) & mask).view(x.dtype).mul_(scale)
