"""The resources of our Triton kernels: registers, spills, shared memory, and blocks per multiprocessor.

No GPU is needed, nor CUDA: Triton compiles for the architectures named, and its own copy of cuobjdump reads the result.
Each operator is called with tensors on the CPU. Each kernel that the operator would launch is compiled with the options
and alignments of the real launch. The sizes are those of recipes. Exits with 1 if a kernel spills registers, or if a
kernel of attention leaves room for fewer than 4 blocks; at rare widths of Table 3 a line on stderr says so.

    python benchmarks/gpu/kernels.py --json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Tests set it for themselves and for the processes that they start. Triton reads it when it is imported.
    os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import ModelConfig

_RECIPES = Path(__file__).resolve().parents[2] / "recipes"
_COMMON = ["base", "big"]
_RARE = ["a-h4", "a-h16", "a-h32", "b-dk16", "b-dk32", "c-d256", "c-d1024"]
SIZES = {name: load_recipe(_RECIPES / f"{name}.yaml").model for name in (*_COMMON, *(f"table3/{row}" for row in _RARE))}
_SLOTS, _SENTENCES = 512, 16  # of a small micro-batch: kernels are compiled for all numbers of both
_VOCABULARY, _COLUMNS = 37_000, 37_120

_FEWEST_BLOCKS = 4
_ATTENTION = {"forward_kernel", "backward_kernel", "attend_to_past", "attend_to_source"}
# Of a multiprocessor, by compute capability: CUDA C++ programming guide, "Technical Specifications per Compute
# Capability". A block takes 1 KB of shared memory for itself.
_SHARED_MEMORY = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
_REGISTERS, _WARPS, _BLOCKS, _OWN_SHARED_MEMORY = 65_536, 64, 32, 1024
_REGISTERS_AT_ONCE = 256  # that a warp is given


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of one kernel on one architecture."""

    operator: str
    size: str
    kernel: str
    architecture: int
    threads: int
    registers: int
    spilled_bytes: int
    shared_memory: int
    blocks_per_multiprocessor: int


def attention(size: ModelConfig, *, is_self: bool, is_causal: bool, dropout: float) -> None:
    """Attention, forward and backward."""
    from nmt_cli.model.cuda_attention import attend_triton
    from nmt_cli.model.dropout import Dropout
    from nmt_cli.model.packing import Projections, Spans

    widths = [size.heads * size.d_k, size.heads * size.d_k, size.heads * size.d_v]
    columns = [sum(widths)] if is_self else [widths[0], widths[1] + widths[2]]
    matrices = [_zeros(_SLOTS, width).requires_grad_() for width in columns]
    sentences = Spans(torch.zeros(_SENTENCES + 1, dtype=torch.int32), torch.zeros(_SLOTS), length_bound=128)
    projections = Projections(matrices, size.heads, size.d_k, size.d_v)
    out = attend_triton(
        projections, queries=sentences, keys=sentences, is_causal=is_causal, window=None, dropout=Dropout(dropout)
    )
    out.sum().backward()


def residual(size: ModelConfig, *, has_bias: bool) -> None:
    """Dropout, residual and norm behind a sub-layer, forward and backward."""
    from nmt_cli.model.kernels.residual_norm import residual_norm

    x, out = (_zeros(_SLOTS, size.d_model).requires_grad_() for _ in range(2))
    bias, weight, shift = (_zeros(size.d_model).requires_grad_() for _ in range(3))
    seed = torch.zeros(2, dtype=torch.int32)
    residual_norm(x, out, bias if has_bias else None, weight, shift, seed, 0.1, 1e-6)[0].sum().backward()


def relu(size: ModelConfig) -> None:
    """The gradient of bias and ReLU of the feed-forward network."""
    from nmt_cli.model.kernels.residual_norm import relu_backward

    relu_backward(_zeros(_SLOTS, size.d_ff), _zeros(_SLOTS, size.d_ff))


def loss(size: ModelConfig) -> None:
    """The loss of one pass and that of two, with their gradients."""
    from nmt_cli.model.kernels.loss import loss_and_gradient, loss_and_gradient_of_both_passes

    logits, gold = _zeros(_SLOTS, _COLUMNS), torch.zeros(_SLOTS, dtype=torch.int64)
    loss_and_gradient(logits, gold, _VOCABULARY, 0.1, pad=0)
    loss_and_gradient_of_both_passes(logits, gold, _VOCABULARY, 0.1, weights=(0.5, 0.5, 1.25, 1.25), pad=0)


def search(size: ModelConfig) -> None:
    """One step of a recorded search of beam 4."""
    from nmt_cli.decoding.search.cuda import CudaSearch
    from nmt_cli.decoding.search.static_state import StaticSizes, advance_hypotheses, choose_candidates
    from nmt_cli.model.static_cache import StepInputs, static_step
    from nmt_cli.model.transformer import Transformer

    config = size.model_copy(update={"encoder_layers": 1, "decoder_layers": 1})
    with torch.inference_mode():
        model = Transformer(config, source_vocab=_VOCABULARY, target_vocab=_VOCABULARY).eval().bfloat16()
        sizes = StaticSizes(_SENTENCES, source_tokens=32, positions=32, beam=4, nbest=1)
        unused: Any = None
        state = CudaSearch([model], device=torch.device("cpu"), recorder=unused).state_for(sizes)
        seen = StepInputs(state.ancestors, state.source_lengths, state.counters)
        logits = model.logits(static_step(model, state.ids.flatten(), state.caches[0], seen))
        advance_hypotheses(state, choose_candidates(state, logits))


# Each operator is called as training and search call it; the kernels follow.
OPERATORS: dict[str, Callable[[ModelConfig], None]] = {
    "self-attention": lambda size: attention(size, is_self=True, is_causal=False, dropout=0.0),
    "causal self-attention": lambda size: attention(size, is_self=True, is_causal=True, dropout=0.0),
    "cross-attention": lambda size: attention(size, is_self=False, is_causal=False, dropout=0.0),
    "self-attention, dropout": lambda size: attention(size, is_self=True, is_causal=False, dropout=0.1),
    "causal self-attention, dropout": lambda size: attention(size, is_self=True, is_causal=True, dropout=0.1),
    "cross-attention, dropout": lambda size: attention(size, is_self=False, is_causal=False, dropout=0.1),
    "residual": lambda size: residual(size, has_bias=False),
    "residual with bias": lambda size: residual(size, has_bias=True),
    "relu": relu,
    "loss": loss,
    "search": search,
}


def main() -> None:
    """Compile every kernel for every size and architecture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, nargs="+", choices=_SHARED_MEMORY, default=[*_SHARED_MEMORY])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--json", action="store_true", help="print JSON on stdout; the table goes to stderr")
    arguments = parser.parse_args()
    rows = [
        usage
        for architecture in arguments.architectures
        for size in arguments.sizes
        for operator in OPERATORS
        for usage in usages(operator, size, architecture=architecture)
    ]
    print(table(rows), file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps({"triton": triton.__version__, "kernels": [asdict(row) for row in rows]}, indent=2))
    faults = [row for row in rows if row.spilled_bytes]
    for row in crowded(rows):
        if row.size in _COMMON:
            faults.append(row)
        else:
            print(f"{row.size}, {row.operator}: room for {row.blocks_per_multiprocessor} blocks", file=sys.stderr)
    if faults:
        print(f"{len(faults)} kernels spill, or leave room for fewer than {_FEWEST_BLOCKS} blocks", file=sys.stderr)
        sys.exit(1)


def crowded(rows: list[Usage]) -> list[Usage]:
    """The kernels of attention with too few blocks per multiprocessor, which would wait for memory."""
    return [row for row in rows if row.kernel in _ATTENTION and row.blocks_per_multiprocessor < _FEWEST_BLOCKS]


def usages(operator: str, size: str, *, architecture: int) -> Iterator[Usage]:
    """The resources of an operator's kernels, each kernel once."""
    compiled = {kernel.hash: kernel for kernel in compiled_by(lambda: OPERATORS[operator](SIZES[size]), architecture)}
    for kernel in compiled.values():
        threads, shared = 32 * kernel.metadata.num_warps, kernel.metadata.shared
        registers, spilled = registers_of(kernel.asm["cubin"])
        blocks = blocks_that_fit(architecture, threads=threads, registers=registers, shared_memory=shared)
        yield Usage(operator, size, kernel.metadata.name, architecture, threads, registers, spilled, shared, blocks)


def compiled_by(call: Callable[[], None], architecture: int) -> list[Any]:
    """The kernels that a call would launch on a GPU of this architecture, compiled; none is launched."""
    kernels: list[Any] = []
    run, driver = JITFunction.run, triton.runtime.driver

    def compile_only(self: JITFunction[Any], *inputs: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernels.append(run(self, *inputs, grid=grid, warmup=True, **options))

    driver.set_active(Target(architecture))
    JITFunction.run = compile_only
    try:
        call()
    finally:
        JITFunction.run = run
    return kernels


class Target:
    """The driver that Triton asks before it compiles."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_target(self) -> GPUTarget:
        """A GPU with warps of 32 threads."""
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        """The number under which Triton caches what it compiled: one per architecture."""
        return self._architecture

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0


def registers_of(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack: without arrays, the stack holds spilled registers."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [folder / "cuobjdump", "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)", text)
    assert found is not None, text
    registers, stack, local = (int(number) for number in found.groups())
    return registers, stack + local


def blocks_that_fit(architecture: int, *, threads: int, registers: int, shared_memory: int) -> int:
    """Blocks that a multiprocessor runs at a time."""
    warps = threads // 32
    of_warp = math.ceil(registers * 32 / _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    by_registers = _REGISTERS // of_warp // warps
    by_shared_memory = _SHARED_MEMORY[architecture] // (shared_memory + _OWN_SHARED_MEMORY)
    return min(by_registers, by_shared_memory, _WARPS // warps, _BLOCKS)


def table(rows: list[Usage]) -> str:
    """The rows as text with aligned columns."""
    head = ["operator", "size", "kernel", "sm", "threads", "registers", "spilled", "shared", "blocks"]
    cells = [head, *([str(value) for value in asdict(row).values()] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
