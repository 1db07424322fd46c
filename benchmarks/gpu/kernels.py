"""What our Triton kernels take of a GPU: registers, spills, shared memory, and the blocks that a multiprocessor holds.

No GPU is needed, nor CUDA: Triton compiles for the architectures named, and its own copy of cuobjdump reads the result.
Each operator is called with tensors of a CPU, and what it would launch is compiled in its place, with the options and
alignments of the real launch. Exits with 1 if a kernel spills registers or leaves room for fewer than 4 blocks.

    python benchmarks/gpu/kernels.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

_FEWEST_BLOCKS = 4
# Of a multiprocessor, by compute capability: CUDA C++ programming guide, "Technical Specifications per Compute
# Capability". A block takes 1 KB of shared memory for itself.
_SHARED_MEMORY = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
_REGISTERS, _WARPS, _BLOCKS, _OWN_SHARED_MEMORY = 65_536, 64, 32, 1024
_REGISTERS_AT_ONCE = 256  # that a warp is given


@dataclass(frozen=True, slots=True)
class Size:
    """A model's widths, and slots and sentences of a small micro-batch: what kernels are compiled for is the same."""

    d_model: int
    heads: int
    d_k: int = 64
    d_v: int = 64
    slots: int = 512
    sentences: int = 16


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes on one architecture."""

    operator: str
    size: str
    kernel: str
    architecture: int
    threads: int
    registers: int
    spilled_bytes: int
    shared_memory: int
    blocks_per_multiprocessor: int


SIZES = {"base": Size(d_model=512, heads=8), "big": Size(d_model=1024, heads=16)}


def attention(size: Size, *, is_self: bool, is_causal: bool) -> None:
    """Attention, forward and backward."""
    from nmt_cli.model.packing import Spans
    from nmt_cli.model.projections import Projections
    from nmt_cli.model.triton_attention import attend_triton

    widths = [size.heads * size.d_k, size.heads * size.d_k, size.heads * size.d_v]
    columns = [sum(widths)] if is_self else [widths[0], widths[1] + widths[2]]
    matrices = [_matrix(size.slots, width).requires_grad_() for width in columns]
    sentences = Spans(torch.zeros(size.sentences + 1, dtype=torch.int32), torch.zeros(size.slots), bound=128)
    projections = Projections(matrices, size.heads, size.d_k, size.d_v)
    attend_triton(projections, queries=sentences, keys=sentences, is_causal=is_causal, window=None).sum().backward()


# Each operator is called as training calls it; the kernels follow.
OPERATORS: dict[str, Callable[[Size], None]] = {
    "self-attention": lambda size: attention(size, is_self=True, is_causal=False),
    "causal self-attention": lambda size: attention(size, is_self=True, is_causal=True),
    "cross-attention": lambda size: attention(size, is_self=False, is_causal=False),
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
    bad = [row for row in rows if row.spilled_bytes or row.blocks_per_multiprocessor < _FEWEST_BLOCKS]
    if bad:
        print(f"{len(bad)} kernels spill, or leave room for fewer than {_FEWEST_BLOCKS} blocks", file=sys.stderr)
        sys.exit(1)


def usages(operator: str, size: str, *, architecture: int) -> Iterator[Usage]:
    """What the kernels of an operator take; every kernel once."""
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
    """What Triton asks of a driver before it compiles."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_target(self) -> GPUTarget:
        """A GPU with warps of 32 threads."""
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        """A number under which Triton keeps what it compiled: one for each architecture."""
        return self._architecture

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0


def registers_of(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack: our kernels have no arrays, so those are spilled registers."""
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
    of_warp = -(-registers * 32 // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    by_registers = _REGISTERS // of_warp // warps
    by_shared_memory = _SHARED_MEMORY[architecture] // (shared_memory + _OWN_SHARED_MEMORY)
    return min(by_registers, by_shared_memory, _WARPS // warps, _BLOCKS)


def table(rows: list[Usage]) -> str:
    """The rows as text with aligned columns."""
    head = ["operator", "size", "kernel", "sm", "threads", "registers", "spilled", "shared", "blocks"]
    cells = [head, *([str(value) for value in asdict(row).values()] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _matrix(rows: int, columns: int) -> Tensor:
    return torch.zeros(rows, columns, dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
