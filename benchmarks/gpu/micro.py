"""The parts of a step, each by itself: attention by sentence length, the loss, products, additions, nodes of a graph.

python benchmarks/gpu/micro.py --json micro.json

Each part is captured and replayed, so that no launch is timed. Prints a line for each part; --json writes what
step_model.py puts beside its own. Attention is timed in two ways: torch's kernel for packed sentences ("varlen"), and
our own ("ours"). Ours should win for short sentences ("as text", "all of 32") and differ by bf16 rounding only.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from nmt_cli.model.cuda_attention import attend_triton
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.kernels.loss import loss_and_gradient
from nmt_cli.model.packing import Projections, Spans
from nmt_cli.tokenization.tokenizer import PAD

_HEAD = 64
_ATTENTIONS = 18  # in a step of base or big: 6 in the encoder, 12 in the decoder
_HEADS = {"base": 8, "big": 16}
_PARAMETERS = {"base": 65_000_000, "big": 218_000_000}
_PIECES = 37_000
_ROWS_OF_A_STEP = 25_024
_WIDTH = 37_120  # of the logits: the pieces, rounded up to a multiple of 128
_NODES = 150

Attention = Callable[[Tensor, Tensor, int, bool], Tensor]
"""qkv [N, 3HK], cu_seqlens, heads, and whether it is causal, to [N, HK]."""


def main() -> None:
    """Time each part, and print it."""
    arguments = _arguments()
    parts: dict[str, dict[str, float]] = {size: {} for size in _HEADS}
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    lengths = _lengths(arguments.tokens)
    for size, heads in _HEADS.items():
        for name, each in (
            (f"as text, {len(lengths)} sentences", lengths),
            ("all of 128", [128] * (arguments.tokens // 128)),
            ("all of 32", [32] * (arguments.tokens // 32)),
        ):
            of_step = _time_attention(name, each, heads)
            if each is lengths:
                parts[size] |= of_step
    loss = _time_loss()
    _time_products()
    node = _time_nodes()
    for size, of_size in parts.items():
        of_size |= {"loss": loss, "gradients into float32": _time_additions(_PARAMETERS[size])}
    if arguments.json:
        result = {"torch": torch.__version__, "microseconds_a_node": round(1000 * node, 3), "parts": parts}
        Path(arguments.json).write_text(json.dumps(result, indent=2), encoding="utf-8")


def _time_attention(name: str, lengths: list[int], heads: int) -> dict[str, float]:
    """Milliseconds of a step's attention, a third of it causal, forward and backward, by our kernels."""
    slots = math.ceil(sum(lengths) / 64) * 64
    lengths = [*lengths, slots - sum(lengths)] if slots > sum(lengths) else lengths
    cu_seqlens = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    found: dict[str, tuple[float, float]] = {}
    results: dict[tuple[str, bool], Tensor] = {}
    for way, attend in _ways(max(lengths)):
        sums = [0.0, 0.0]
        for is_causal, count in ((False, 12), (True, 6)):
            torch.manual_seed(1)
            qkv = torch.randn(slots, 3 * heads * _HEAD, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            gradient = torch.randn(slots, heads * _HEAD, device="cuda", dtype=torch.bfloat16)

            def forward(qkv: Tensor = qkv, attend: Attention = attend, is_causal: bool = is_causal) -> Tensor:
                return attend(qkv, cu_seqlens, heads, is_causal)

            def both(qkv: Tensor = qkv, forward: Callable[[], Tensor] = forward, gradient: Tensor = gradient) -> None:
                qkv.grad = None
                forward().backward(gradient)

            with torch.no_grad():
                forwards = _milliseconds(forward)
                results[way, is_causal] = forward()
            backwards = _milliseconds(both) - forwards
            sums = [sums[0] + count * forwards, sums[1] + count * backwards]
            of_step = _ATTENTIONS * (forwards + backwards)
            print(
                f"attention, {way}, {heads:2d} heads, {name}, causal {is_causal}: forward {1000 * forwards:.0f} us, "
                f"backward {1000 * backwards:.0f} us; {_ATTENTIONS} of them {of_step:.1f} ms",
                flush=True,
            )
        found[way] = sums[0], sums[1]
    for (way, is_causal), result in results.items():
        difference = (result - results["varlen", is_causal]).abs().max().item()
        if way != "varlen":
            print(f"attention, {way}, causal {is_causal}: differs from varlen by at most {difference:.4f}", flush=True)
    forward_ms, backward_ms = found["ours"]
    return {"attention forward": forward_ms, "attention backward": backward_ms}


def _ways(longest: int) -> Iterator[tuple[str, Attention]]:
    """torch's kernel, and ours."""
    bound = max(128, longest)

    def by_varlen(qkv: Tensor, cu_seqlens: Tensor, heads: int, is_causal: bool) -> Tensor:
        q, k, v = (x.unflatten(-1, (heads, _HEAD)) for x in qkv.split(heads * _HEAD, dim=-1))
        window = (-1, 0) if is_causal else (-1, -1)
        out = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, bound, bound, window_size=window)
        assert isinstance(out, Tensor)
        return out.flatten(1)

    yield "varlen", by_varlen

    no_dropout = Dropout(0.0)

    def by_triton(qkv: Tensor, cu_seqlens: Tensor, heads: int, is_causal: bool) -> Tensor:
        spans = Spans(cu_seqlens, cu_seqlens, bound)  # no kernel reads the positions
        projections = Projections([qkv], heads, _HEAD, _HEAD)
        return attend_triton(
            projections, queries=spans, keys=spans, is_causal=is_causal, window=None, dropout=no_dropout
        )

    yield "ours", by_triton


def _time_loss() -> float:
    """Milliseconds of a step's loss over the logits."""
    logits = torch.randn(_ROWS_OF_A_STEP, _WIDTH, device="cuda", dtype=torch.bfloat16)
    gold = torch.randint(4, _PIECES, (_ROWS_OF_A_STEP,), device="cuda")
    taken = _milliseconds(lambda: loss_and_gradient(logits, gold, _PIECES, 0.1, pad=PAD))
    rate = 2 * logits.nbytes / taken / 1e9
    print(
        f"loss of {_ROWS_OF_A_STEP:,} x {_WIDTH:,}: {taken:.3f} ms, {rate:.2f} TB/s if read and written once",
        flush=True,
    )
    return taken


def _time_products() -> None:
    """Time the products of a step by shape: forward, to the input, to the weights (inner size: the tokens)."""
    tokens, shapes = _ROWS_OF_A_STEP, []
    for d in (512, 1024):
        for inner, columns in ((d, d), (d, 3 * d), (d, 4 * d), (4 * d, d)):
            shapes += [(tokens, inner, columns), (inner, tokens, columns)]
        shapes += [(tokens, d, _WIDTH), (tokens, _WIDTH, d), (_WIDTH, tokens, d)]
    for rows, inner, columns in shapes:
        is_weight_gradient = inner == tokens
        left = torch.randn(inner, rows, device="cuda").bfloat16().T if is_weight_gradient else None
        x = torch.randn(rows, inner, device="cuda").bfloat16() if left is None else left
        y = torch.randn(inner, columns, device="cuda").bfloat16()
        taken = _milliseconds(lambda x=x, y=y: torch.mm(x, y))
        rate = 2 * rows * inner * columns / taken / 1e9
        print(f"product {rows} x {inner} x {columns}: {1000 * taken:.1f} us, {rate:.0f} TFLOP/s", flush=True)


def _time_nodes() -> float:
    """Milliseconds of a node of a graph that does next to nothing."""
    small = torch.zeros(1024, device="cuda")

    def chain() -> None:
        for _ in range(_NODES):
            small.add_(1)

    taken = _milliseconds(chain) / _NODES
    print(f"a graph of {_NODES} small kernels: {1000 * taken:.2f} us a node", flush=True)
    return taken


def _time_additions(parameters: int) -> float:
    """Milliseconds of adding bf16 gradients to the float32 ones."""
    narrow, wide = torch.randn(parameters, device="cuda").bfloat16(), torch.zeros(parameters, device="cuda")
    taken = _milliseconds(lambda: wide.add_(narrow))
    print(f"float32 += bf16, {parameters / 1e6:.0f} M: {taken:.3f} ms", flush=True)
    return taken


def _milliseconds(work: Callable[[], object], *, replays: int = 30) -> float:
    """The median of five windows of replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    for _ in range(3):
        graph.replay()
    windows = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        windows.append((time.perf_counter() - start) / replays)
    return 1000 * statistics.median(windows)


def _lengths(tokens: int) -> list[int]:
    """Sentence lengths like those of text, which add up to slightly fewer than `tokens`."""
    rng, found = np.random.default_rng(1), []
    while sum(found) < tokens - 130:
        found.append(int(min(120, max(2, rng.lognormal(3.1, 0.62)))))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=25_000)
    parser.add_argument("--json", metavar="FILE", help="write what step_model.py --measured reads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
