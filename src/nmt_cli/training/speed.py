"""How fast a training could be: its model's floating-point operations, and the rate of its devices' matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from nmt_cli.model.layers import CrossAttention
from nmt_cli.model.transformer import Transformer
from nmt_cli.training.distributed import Ranks

# A multiplication and an addition for each weight, in the forward pass and for both gradients of the backward pass.
_FLOPS_PER_WEIGHT = 6
# Large enough for the full rate; on a CPU, one product is about 10 ms in float32.
_SIZES = {"cuda": 8192, "cpu": 1024}
_SMALLER = 512
_PRODUCTS, _SECONDS = 9, 0.1  # in all, where nothing else runs


@dataclass(frozen=True, slots=True)
class Speed:
    """Operations of a training for each source and target token, and what all its devices do a second in a product."""

    flops_per_source_token: int
    flops_per_target_token: int
    matrix_rate: float

    def flops(self, *, source_tokens: int, target_tokens: int) -> int:
        """The model's floating-point operations in the forward and backward passes of so many tokens."""
        return self.flops_per_source_token * source_tokens + self.flops_per_target_token * target_tokens


def speed_of(model: Transformer, ranks: Ranks) -> Speed:
    """The speed of a training of `model`: all ranks measure at once, in the model's precision, and add up their rates.

    The operations are those of the matrices that a token passes, 6 for each of their weights: projections, feed-forward
    layers, and the output's rows that are pieces. Attention scores, of which a model has some 1 %, are left out, and
    with them all that is no product of a matrix.
    """
    ranks.wait()
    rate = torch.tensor(matrix_rate(ranks.device, model.output_weight.dtype), device=ranks.device)
    ranks.sum(rate)
    source = sum(_weights(layer) for layer in model.encoder)
    of_memory = sum(_weights(module.kv) for module in model.decoder.modules() if isinstance(module, CrossAttention))
    target = sum(_weights(layer) for layer in model.decoder) - of_memory + model.target_vocab * model.config.d_model
    return Speed(_FLOPS_PER_WEIGHT * (source + of_memory), _FLOPS_PER_WEIGHT * target, rate.item())


def matrix_rate(device: torch.device, dtype: torch.dtype, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Floating-point operations a second of a large matrix product on `device`: the best of some.

    Other work on the machine can only slow a product, and a training is compared with what the device can do. Takes
    about a tenth of a second; a slow CPU is given smaller matrices.
    """
    with torch.no_grad():
        size = _SIZES[device.type]
        if device.type == "cpu":
            expected = min(_seconds(_SMALLER, device, dtype, clock)) * (size / _SMALLER) ** 3
            size = _SMALLER if expected > _SECONDS / 4 else size
        rate = 2 * size**3 / min(_seconds(size, device, dtype, clock))
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return rate


def _seconds(size: int, device: torch.device, dtype: torch.dtype, clock: Callable[[], float]) -> list[float]:
    """What each of some products takes; the first also sets up the library."""
    # Random numbers, as in training: a GPU multiplies those of a constant faster, at less power.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.empty(size, size, device=device).normal_(generator=generator).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    taken: list[float] = []
    for _ in range(_PRODUCTS):
        _wait_for(device)
        start = clock()
        torch.mm(left, right, out=out)
        _wait_for(device)
        taken.append(clock() - start)
    return taken


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _weights(module: nn.Module) -> int:
    """Weights of the matrices in a module."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))
