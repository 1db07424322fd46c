"""Table 1 of the paper, measured: complexity per layer, sequential operations, and maximum path length.

python benchmarks/layer_complexity.py | python benchmarks/charts.py --add layer-complexity

Each layer runs forward and backward over --tokens tokens, in sentences of n tokens with d channels. The figures per
sentence are fitted by n^a d^b, for n of at least 256. The paper's exponents come from the same fit to its formula,
because some formulas are sums. Prints one JSON object with tables for docs/paper-measured.md.

*Sequential operations* are the longest chain in the graph of torch's autograd. *Path length* is the smallest number of
layers with a gradient of the last output with respect to the first input that is not zero; in the recurrent layer, the
smallest number of steps. Shapes: B sentences, n tokens, d channels, H heads.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce

import numpy as np
import torch
from measuring import Figures, argument_parser, circumstances, cost, markdown_table
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional as F

from nmt_cli.memory import keep_freed_memory
from nmt_cli.model.attention import attend
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import SelfAttention
from nmt_cli.model.packing import Packed, Projections, pack
from nmt_cli.recipe.schema import ModelConfig

KERNEL, WINDOW = 7, 32
_HEAD_WIDTH = 64
_FITTED_FROM = 256
_FITTED = ("multiplications", "seconds", "peak_bytes")
_NARROW = 16  # channels where only the graph counts

Layer = Callable[[Tensor], Tensor]
"""A layer from [B, n, d] to [B, n, d]."""
Stack = Callable[[Tensor, int], Tensor]
"""So many layers on each other, from [B, n, d] to [B, n, d]."""


@dataclass(frozen=True)
class Kind:
    """A row of Table 1: the layer for d channels, and what the paper says; `operations` has its complexity.

    Without a number of `sentences`, there are as many as --tokens allows.
    """

    make: Callable[[int], Layer]
    complexity: str
    operations: Callable[[int, int], float]
    sequential: str
    path_length: str
    sentences: int | None = None


class Convolution(nn.Module):
    """A convolution over the tokens; separable, one per channel and then a matrix (Chollet 2017, arXiv:1610.02357)."""

    def __init__(self, d: int, *, is_separable: bool) -> None:
        super().__init__()
        self.tokens = nn.Conv1d(d, d, KERNEL, padding="same", groups=d if is_separable else 1)
        self.channels = nn.Conv1d(d, d, 1) if is_separable else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n, d] to [B, n, d]."""
        return self.over_channels(self.over_tokens(x))

    def over_tokens(self, x: Tensor) -> Tensor:
        """The part that sees more than one token."""
        out: Tensor = self.tokens(x.mT).mT
        return out

    def over_channels(self, x: Tensor) -> Tensor:
        """The part that sees one token at a time, if there is one."""
        out: Tensor = self.channels(x.mT).mT
        return out


class Recurrence(nn.Module):
    """A recurrent layer, whole or for a number of steps."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gru = nn.GRU(d, d, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n, d] to [B, n, d]."""
        out: Tensor = self.gru(x)[0]
        return out

    def steps(self, x: Tensor, number: int) -> Tensor:
        """The outputs [B, n, d] if each token saw only `number` steps. With n steps, `forward` gives the same."""
        cell = partial(torch.gru_cell, w_ih=self.gru.weight_ih_l0, w_hh=self.gru.weight_hh_l0)
        inputs, state = x.flatten(0, 1), torch.zeros_like(x)
        for _ in range(number):
            before = F.pad(state, (0, 0, 1, 0))[:, :-1].flatten(0, 1)
            state = cell(inputs, before, b_ih=self.gru.bias_ih_l0, b_hh=self.gru.bias_hh_l0).view_as(x)
        return state


def mixing(d: int, *, window: int | None) -> Layer:
    """nmt's attention without the matrices around it: queries, keys and values are the input."""
    heads, dropout = heads_of(d), Dropout(0.0)

    def forward(x: Tensor) -> Tensor:
        layout = layout_of(len(x), x.size(1))
        inputs = Projections([x.flatten(0, 1)] * 3, heads, d // heads, d // heads)
        mixed = attend(inputs, queries=layout, keys=layout, is_causal=False, window=window, dropout=dropout)
        return mixed.view_as(x)

    return forward


def mixing_in_blocks(d: int) -> Layer:
    """The same as `mixing` with the window, for whole blocks of WINDOW / 2 tokens: each sees three blocks of keys."""
    half, heads = WINDOW // 2, heads_of(d)
    query, key = torch.arange(half)[:, None], torch.arange(3 * half) - half
    is_near = (query - key).abs() <= half

    def forward(x: Tensor) -> Tensor:
        queries = x.view(len(x), -1, half, heads, d // heads).transpose(2, 3)  # [B, blocks, H, half, d / H]
        keys = F.pad(x, (0, 0, half, half)).unfold(1, 3 * half, half).unflatten(2, (heads, -1))
        places = torch.arange(0, x.size(1), half)[:, None, None, None] + key
        is_seen = is_near & (places >= 0) & (places < x.size(1))
        scores = (queries @ keys * queries.size(-1) ** -0.5).masked_fill(~is_seen, -torch.inf)
        return (scores.softmax(-1) @ keys.mT).transpose(2, 3).reshape(x.shape)

    return forward


def whole_attention(d: int) -> Layer:
    """nmt's self-attention with the matrices for queries, keys, values and output."""
    config = ModelConfig(d_model=d, heads=heads_of(d), d_k=d // heads_of(d), d_v=d // heads_of(d))
    attention = SelfAttention(config, is_causal=False, window=None)
    return lambda x: attention.output(attention(x.flatten(0, 1), layout_of(len(x), x.size(1)))).view_as(x)


@lru_cache(maxsize=1)  # a layout keeps its masks
def layout_of(num_sentences: int, length: int) -> Packed:
    """Packed sentences of one length."""
    return pack([[0] * length] * num_sentences, device=torch.device("cpu"))


def heads_of(d: int) -> int:
    """The heads of d channels, 64 wide as the paper's."""
    return max(1, d // _HEAD_WIDTH)


def stacked(layer: Layer) -> Stack:
    """Layers on each other, or in a recurrent layer a number of steps."""
    if isinstance(layer, Recurrence):
        return layer.steps
    return lambda x, depth: reduce(lambda y, _: layer(y), range(depth), x)


def dilated(d: int) -> Stack:
    """Convolutions over the tokens before, as in ByteNet; each has KERNEL times the dilation of the one below."""

    def stack(x: Tensor, depth: int) -> Tensor:
        for level in range(depth):
            dilation = min(KERNEL**level, x.size(1))  # all beyond reach no other token
            convolution = nn.Conv1d(d, d, KERNEL, dilation=dilation)
            x = convolution(F.pad(x.mT, ((KERNEL - 1) * dilation, 0))).mT
        return x

    return stack


KINDS = {
    "self-attention": Kind(partial(mixing, window=None), "n² d", lambda n, d: n**2 * d, "1", "1"),
    "self-attention with its matrices": Kind(
        whole_attention, "n² d + n d²", lambda n, d: n**2 * d + n * d**2, "1", "1"
    ),
    "restricted, nmt's": Kind(partial(mixing, window=WINDOW), "r n d", lambda n, d: WINDOW * n * d, "1", "n / r"),
    "restricted, in blocks": Kind(mixing_in_blocks, "r n d", lambda n, d: WINDOW * n * d, "1", "n / r"),
    "recurrent": Kind(lambda d: Recurrence(d), "n d²", lambda n, d: n * d**2, "n", "n"),
    "convolution": Kind(
        partial(Convolution, is_separable=False), "k n d²", lambda n, d: KERNEL * n * d**2, "1", "n / k"
    ),
    "separable convolution": Kind(
        partial(Convolution, is_separable=True),
        "k n d + n d²",
        lambda n, d: KERNEL * n * d + n * d**2,
        "1",
        "n / k",
    ),
}
_DILATED = "convolution, dilated"
# Why the time of two layers has other exponents than their multiplications.
EXPLANATIONS = {
    "recurrent, 16 sentences of any length": replace(KINDS["recurrent"], sentences=16),
    "separable convolution, over tokens": Kind(
        lambda d: Convolution(d, is_separable=True).over_tokens, "k n d", lambda n, d: KERNEL * n * d, "1", "n / k"
    ),
    "separable convolution, over channels": Kind(
        lambda d: Convolution(d, is_separable=True).over_channels, "n d²", lambda n, d: n * d**2, "1", ""
    ),
}


def main() -> None:
    """Measure all, and print the tables."""
    arguments, start = _arguments(), time.perf_counter()
    keep_freed_memory()
    facts = circumstances("cpu", commit=arguments.commit)
    costs = [
        {"layer": name, "n": n, "d": d, **_cost(kind, n, d, arguments)}
        for name, kind in (KINDS | EXPLANATIONS).items()
        for d in arguments.widths
        for n in arguments.lengths
    ]
    chains = {
        name: {n: sequential_operations(kind.make(_NARROW), n) for n in arguments.path_lengths}
        for name, kind in KINDS.items()
    }
    stacks = {name: lambda kind=kind: stacked(kind.make(_NARROW)) for name, kind in KINDS.items()}
    paths = {
        name: {n: path_length(make, n) for n in arguments.path_lengths}
        for name, make in (stacks | {_DILATED: partial(dilated, _NARROW)}).items()
    }
    result: Figures = {
        "benchmark": "layers of Table 1",
        **facts,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "tokens": arguments.tokens,
        "kernel": KERNEL,
        "window": WINDOW,
        "costs": costs,
        "exponents": {name: _exponents(kind, name, costs) for name, kind in (KINDS | EXPLANATIONS).items()},
        "sequential_operations": chains,
        "path_length": paths,
    }
    print(json.dumps(result | {"tables": _tables(result)}, indent=1))


def sequential_operations(layer: Layer, n: int) -> int:
    """The longest chain of operations from the input to the output for n tokens, in the graph of autograd."""
    out = layer(torch.randn(1, n, _NARROW, requires_grad=True))
    users, waiting = Counter[Node](), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        for below in _inputs(node):
            if below not in users:
                waiting.append(below)
            users[below] += 1
    depths, ready = Counter({out.grad_fn: 1}), [out.grad_fn]
    while ready:  # a node is ready once the longest chain to it is known
        node = ready.pop()
        for below in _inputs(node):
            depths[below] = max(depths[below], depths[node] + 1)
            users[below] -= 1
            if not users[below]:
                ready.append(below)
    return max(depths.values())


def path_length(make: Callable[[], Stack], n: int) -> int:
    """The smallest depth of a stack at which the last of n outputs depends on the first input, by its gradient."""
    torch.set_default_dtype(torch.float64)  # in float32, a gradient through 512 steps is zero by underflow
    try:
        torch.manual_seed(1)
        stack = make()
        x = torch.randn(1, n, _NARROW, requires_grad=True)

        def is_reached(depth: int) -> bool:
            (gradient,) = torch.autograd.grad(stack(x, depth)[0, -1].sum(), x)
            return bool(gradient[0, 0].any())

        return 1 + bisect.bisect_left(range(1, n), True, key=is_reached)
    finally:
        torch.set_default_dtype(torch.float32)


def _inputs(node: Node) -> list[Node]:
    return [below for below, _ in node.next_functions if below is not None]


def _cost(kind: Kind, n: int, d: int, arguments: argparse.Namespace) -> Figures:
    torch.manual_seed(1)
    sentences = kind.sentences or arguments.tokens // n
    layer, x = kind.make(d), torch.randn(sentences, n, d, requires_grad=True)
    return {"sentences": sentences, **cost(lambda: layer(x), repeats=arguments.repeats)}


def _exponents(kind: Kind, name: str, costs: Sequence[Figures]) -> dict[str, list[float]]:
    """a and b of n^a d^b: of the paper's formula, and of multiplications, seconds and bytes per sentence."""
    rows = [row for row in costs if row["layer"] == name and row["n"] >= _FITTED_FROM]
    logs = np.log([[math.e, row["n"], row["d"]] for row in rows])
    figures = {key: [row[key] / row["sentences"] for row in rows] for key in _FITTED}
    figures["paper"] = [kind.operations(row["n"], row["d"]) for row in rows]
    return {key: np.linalg.lstsq(logs, np.log(values))[0][1:].round(2).tolist() for key, values in figures.items()}


def _tables(result: Figures) -> dict[str, list[str]]:
    rates = {(row["layer"], row["d"]): _gigaflops(row) for row in result["costs"] if row["n"] == _FITTED_FROM}
    widths = sorted({d for _, d in rates})
    ends = (widths[0], widths[-1])
    complexity, explanations, sequential = [], [], []
    for name, kind in (KINDS | EXPLANATIONS).items():
        fitted = (result["exponents"][name][key] for key in ("paper", *_FITTED))
        row = [name, f"O({kind.complexity})", *(f"n^{a:.2f} d^{b:.2f}" for a, b in fitted)]
        if name in KINDS:
            complexity.append(row)
        else:
            explanations.append([*row[:-1], *(f"{rates[name, d]:.1f}" for d in ends)])
    for name, paths in result["path_length"].items():
        kind = KINDS[name if name != _DILATED else "convolution"]
        chain = result["sequential_operations"].get(name, {})
        path = "log_k(n)" if name == _DILATED else kind.path_length
        cells = [", ".join(map(str, found.values())) for found in (chain, paths)]
        sequential.append([name, f"O({kind.sequential})", cells[0], f"O({path})", cells[1]])
    header = ["layer", "paper", "paper's exponents", "multiplications", "time"]
    lengths = ", ".join(str(n) for n in next(iter(result["path_length"].values())))
    return {
        "complexity": markdown_table([*header, "memory"], complexity),
        "explanations": markdown_table([*header, *(f"GFLOP/s, d = {d}" for d in ends)], explanations),
        "paths": markdown_table(
            ["layer", "sequential operations, paper", f"chain at n = {lengths}", "path length, paper", "layers"],
            sequential,
        ),
    }


def _gigaflops(row: Figures) -> float:
    """Billions of multiplications and additions per second, both passes together."""
    return 2 * 3 * row["multiplications"] / row["seconds"] / 1e9


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of all sentences together")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048], help="n")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512], help="d")
    parser.add_argument("--path-lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
