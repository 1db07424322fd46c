"""Dropout (Srivastava et al. 2014) with masks that are cheap to sample: on a CPU, and in compiled code."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_INT_OF_SAME_WIDTH = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
# Random bits come in lanes of 16 bits. The low byte of a lane decides one element, and the high byte another element.
# All low bytes of a chunk of lanes share one limit, and all high bytes another limit.
_LANES_PER_CHUNK = 256
# The constants of SplitMix64 (Steele et al. 2014) as signed integers.
_SPLITMIX_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_SPLITMIX_FIRST, _SPLITMIX_SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
HASH_FACTORS = (0x7FEB352D, 0x846CA68B)
"""The factors of Wellons' hash `lowbias32` (2018)."""


class Dropout(nn.Module):
    """Zeroes each element with `probability` in training, and scales the rest by 1 / (1 - probability).

    Kernels make their own masks (`kernel_arguments`). In compiled training, the mask is a hash of `seed`, two sampled
    int32, and the backward pass computes it again. Otherwise it is a bit mask on a CPU, and torch's own elsewhere.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.seed: Tensor | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is dropped."""
        return self.training and self.probability > 0

    def kernel_arguments(self, device: torch.device) -> tuple[Tensor | None, float]:
        """The seed and the probability for a kernel that makes its own mask; (None, 0.0) if nothing is dropped."""
        if not self.is_on:
            return None, 0.0
        if self.seed is not None:
            return self.seed, self.probability
        return torch.empty(2, dtype=torch.int32, device=device).random_(-(2**31), 2**31), self.probability

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape."""
        if not self.is_on:
            return x
        if self.seed is not None:
            keep_probability = 1 - self.probability
            return (x * (1 / keep_probability)).where(_hash_keep_mask(x, self.seed, keep_probability), 0)
        if x.device.type != "cpu" or x.dtype not in _INT_OF_SAME_WIDTH:
            return F.dropout(x, self.probability)
        dropped: Tensor = _BitMaskDropout.apply(x, self.probability)  # type: ignore[no-untyped-call]  # not annotated
        return dropped


def new_seeds(model: nn.Module, *, device: torch.device) -> Tensor:
    """A tensor [dropouts, 2], of which each dropout of the model has its row as `seed` from now on."""
    dropouts = [module for module in model.modules() if isinstance(module, Dropout) and module.probability > 0]
    seeds = torch.zeros(len(dropouts), 2, dtype=torch.int32, device=device)
    for dropout, seed in zip(dropouts, seeds.unbind(), strict=True):
        dropout.seed = seed
    return seeds


class _BitMaskDropout(torch.autograd.Function):
    """Dropout on a CPU by a bit mask: one hash serves eight elements; torch's own dropout samples a number for each.

    The mask of an element is all ones or all zeros, laid over its bits.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        mask = cpu_bit_mask(x.numel(), probability, like=x).view(x.shape)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - probability)
        return apply_bit_mask(x, mask, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return apply_bit_mask(gradients[0], mask, ctx.scale), None


def _hash_keep_mask(x: Tensor, seed: Tensor, keep_probability: float) -> Tensor:
    """The mask for compiled code: True with `keep_probability` for each element of x.

    An element is kept if a hash of its index and the seed lies below a limit.
    The hash is `lowbias32` without its last step, which mixes only the low bits.
    """
    first, second = HASH_FACTORS[0], HASH_FACTORS[1] - 2**32  # as signed int32, which torch computes in
    bits = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape) ^ seed[0]
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * first ^ seed[1]
    bits = (bits ^ (bits >> 15 & 0x1FFFF)) * second
    return bits < keep_limit(keep_probability)


def keep_limit(keep_probability: float) -> int:
    """The limit below which the share `keep_probability` of all hashes lies, as signed integers."""
    return min(round(keep_probability * 2**32) - 2**31, 2**31 - 1)


def cpu_bit_mask(count: int, probability: float, *, like: Tensor) -> Tensor:
    """Integers [count] with the width of an element of `like`: -1, or 0 with `probability`.

    An element is kept if 8 random bits are below a limit. A limit is a whole number, sampled so that its mean is 256
    times the keep probability. For any single element, the probability is exact to 2^-24.

    For example, the first of n lanes is 0x37F1, and the keep probability is 0.9. Its low byte, 241, serves element 0.
    It is not below the limit, 230, so element 0 is dropped (0). Its high byte, 55, serves element n. High bytes are
    signed, so their limit is 231 - 128: 55 is below it, and element n is kept (-1).
    """
    num_chunks = math.ceil(count / (2 * _LANES_PER_CHUNK))
    lanes = _random_bits(num_chunks * _LANES_PER_CHUNK // 4).view(torch.int16).view(num_chunks, _LANES_PER_CHUNK)
    limits = (torch.rand(2, num_chunks, 1) + (1 - probability) * 256).floor_().to(torch.int16)
    limits[1] -= 128  # the upper bytes are signed
    masks = torch.empty(2, num_chunks, _LANES_PER_CHUNK, dtype=torch.int16)
    torch.bitwise_and(lanes, 255, out=masks[0])
    torch.bitwise_right_shift(lanes, 8, out=masks[1])
    return masks.sub_(limits).bitwise_right_shift_(15).view(-1)[:count].to(_INT_OF_SAME_WIDTH[like.dtype])


def apply_bit_mask(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x times `scale`, with zeros at the zeros of the bit mask."""
    return (x.contiguous().view(mask.dtype) & mask).view(x.dtype).mul_(scale)


def _random_bits(count: int) -> Tensor:
    """Random bits in `count` int64: SplitMix64 from a start that torch's generator samples, on all threads at once."""
    start = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
    bits = torch.arange(count).mul_(_SPLITMIX_GAMMA).add_(start)
    # Unlike SplitMix64's, these shifts repeat the sign bit, so each step clears bit 63. The next product fills it
    # again. No product follows the last step, so only the last shift is masked.
    bits.bitwise_xor_(bits >> 30).mul_(_SPLITMIX_FIRST)
    bits.bitwise_xor_(bits >> 27).mul_(_SPLITMIX_SECOND)
    return bits.bitwise_xor_((bits >> 31).bitwise_and_(2**33 - 1))
