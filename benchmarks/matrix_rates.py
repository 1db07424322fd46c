"""The rate of a device at the matrix products of a training step."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from typing import NamedTuple

import torch
from measuring import Figures, wait_for
from torch import Tensor

from nmt_cli.recipe.schema import ModelConfig


class Product(NamedTuple):
    """[rows, inner] by [inner, columns]."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


def products_of_step(model: ModelConfig, *, vocab: int, src_tokens: int, tgt_tokens: int) -> Counter[Product]:
    """The forward matrix products of a step, with their counts; vocabulary rows are padded like the model's."""
    d, f, width = model.d_model, model.d_ff, model.heads * model.d_k
    inner = 2 * f if model.activation == "swiglu" else f
    rows = math.ceil(vocab / model.embedding_multiple) * model.embedding_multiple
    found: Counter[Product] = Counter()
    for tokens, layers in ((src_tokens, model.encoder_layers), (tgt_tokens, model.decoder_layers)):
        for product in ((d, 3 * width), (width, d), (d, inner), (f, d)):
            found[Product(tokens, *product)] += layers
    for tokens, shape in ((tgt_tokens, (d, width)), (src_tokens, (d, 2 * width)), (tgt_tokens, (width, d))):
        found[Product(tokens, *shape)] += model.decoder_layers
    found[Product(tgt_tokens, d, rows)] += 1
    return found


def rates_of_step(forward: Counter[Product], *, device: str, repeats: int = 10) -> Figures:
    """The rates of each product and of its two backward products, and the time of all of them."""
    table, total_seconds, total_flops = [], 0.0, 0
    for product, count in sorted(forward.items(), key=lambda item: -item[0].flops * item[1]):
        x, gradient = _random(product.rows, product.inner, device), _random(product.rows, product.columns, device)
        weight = _random(product.columns, product.inner, device)
        ways = {"forward": (x, weight.T), "to_input": (gradient, weight), "to_weight": (gradient.T, x)}
        seconds = {way: _seconds(*pair, device=device, repeats=repeats) for way, pair in ways.items()}
        total_seconds += count * sum(seconds.values())
        total_flops += 3 * count * product.flops
        rates = {way: round(product.flops / taken / 1e12, 3) for way, taken in seconds.items()}
        table.append({"rows_inner_columns": list(product), "times": count, "teraflops_a_second": rates})
    return {
        "milliseconds_a_step": round(1000 * total_seconds, 3),
        "teraflops_a_second": round(total_flops / total_seconds / 1e12, 3),
        "products": table,
    }


def _seconds(left: Tensor, right: Tensor, *, device: str, repeats: int) -> float:
    out = torch.empty(left.size(0), right.size(1), device=device, dtype=torch.bfloat16)
    windows = []
    for window in range(6):
        wait_for(device)
        start = time.perf_counter()
        for _ in range(repeats if window else 3):
            torch.mm(left, right, out=out)
        wait_for(device)
        if window:
            windows.append((time.perf_counter() - start) / repeats)
    return statistics.median(windows)


def _random(rows: int, columns: int, device: str) -> Tensor:
    return torch.randn(rows, columns, device=device).to(torch.bfloat16)
