"""The least time that a device needs for a step of beam search: the bytes it must read, and what it must multiply."""

from __future__ import annotations

import statistics
import time

import torch
from measuring import wait_for

from nmt_cli.model.transformer import Transformer

_LARGE_BYTES = {"cuda": 1 << 31, "cpu": 1 << 26}
_BYTES = 2  # of bf16


def bandwidth(device: str, *, repeats: int = 10) -> float:
    """Bytes per second that a device reads and writes when it copies a large tensor: the median of five windows."""
    left = torch.zeros(_LARGE_BYTES[torch.device(device).type], dtype=torch.uint8, device=device)
    right = torch.zeros_like(left)
    rates = []
    for _ in range(6):
        wait_for(device)
        start = time.perf_counter()
        for _ in range(repeats):
            right.copy_(left)
        wait_for(device)
        rates.append(2 * left.numel() * repeats / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def floor_seconds(
    model: Transformer,
    *,
    sentences: int,
    beam: int,
    source_tokens: float,
    target_tokens: float,
    bytes_a_second: float,
    flops_a_second: float,
) -> float:
    """Seconds of a step in bf16, half-way through translations of the given length from sources of the given length.

    Read are the decoder's matrices and those of the output, once; keys and values of the source, once a sentence, and
    of all hypotheses; logits are written and read. Whichever of bytes and products takes longer is the floor.
    """
    layers = list(model.decoder.children())
    width = model.config.heads * (model.config.d_k + model.config.d_v)
    of_source = sum(p.numel() for layer in layers for p in layer.cross_attention.kv.parameters())  # type: ignore[operator, union-attr]  # a list of Modules
    weights = sum(p.numel() for p in model.decoder.parameters()) - of_source + model.output_weight.numel()
    places = source_tokens + beam * target_tokens / 2
    rows = sentences * beam
    num_bytes = _BYTES * (weights + sentences * places * len(layers) * width + 2 * rows * model.target_vocab)
    return max(num_bytes / bytes_a_second, 2 * weights * rows / flops_a_second)
