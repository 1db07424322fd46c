"""A log of launches on the null GPU: kernels, copies and products, with the bytes that Triton's kernels read and write.

The null GPU is a CUDA runtime without a device. It counts launches and executes nothing.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

KERNEL, COPY, MEMSET, PRODUCT, TRITON, GRAPH = range(6)
"""The kinds of launches, by the numbers of the log."""

_DRAWS = ("tl.rand", "philox")


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. `size` is [m, n, k, batch] of a product as cuBLAS has it, column by column.

    `bytes` is the size of a copy or memset, or of the tensors that a Triton kernel is given: one that it both reads and
    writes counts twice if the kernel's arguments say so. `elements` is the size of its largest tensor, and `draws` is
    true if it draws random numbers by Philox. `module` is where a Triton kernel was written.
    """

    kind: int
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_memory: int
    is_captured: bool
    bytes: int
    size: tuple[int, ...]
    elements: int = 0
    draws: bool = False
    module: str = ""


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The arguments of a Triton kernel's launch."""

    bytes: int
    elements: int
    draws: bool
    module: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Launches, and the nodes of the graphs among them."""

    launched: list[Launch]
    replayed: list[Launch]


class LaunchLog:
    """A log of launches and of the nodes of each graph; the null GPU must be in the process already."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.nullgpu_count.restype = self._library.nullgpu_syncs.restype = ctypes.c_long
        self._tensors: list[_Tensors] | None = None
        self._nodes: dict[int, list[Launch]] = {}
        self._replayed: list[int] = []
        _watch_triton(self._note)
        self._watch_graphs()

    @property
    def waits(self) -> int:
        """The number of times that the host has waited for the device."""
        return int(self._library.nullgpu_syncs())

    def count(self, work: Callable[[], object], kind: int) -> int:
        """Launches of one kind during some work."""
        self._library.nullgpu_reset()
        work()
        return int(self._library.nullgpu_count(kind))

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Record the launches of the block, in which nothing may be compiled or captured."""
        found = Recording([], [])
        self._replayed.clear()
        self._start()
        yield found
        found.launched.extend(self._stop())
        found.replayed.extend(node for graph in self._replayed for node in self._nodes[graph])

    def _start(self) -> None:
        self._tensors = []
        self._library.nullgpu_start()

    def _stop(self) -> list[Launch]:
        self._library.nullgpu_stop()
        tensors, self._tensors = self._tensors or [], None
        with tempfile.NamedTemporaryFile() as file:
            self._library.nullgpu_dump(file.name.encode())
            launches = [_read(line) for line in Path(file.name).read_text(encoding="utf-8").splitlines()]
        number = sum(launch.kind == TRITON for launch in launches)
        if number != len(tensors):
            raise RuntimeError(f"{number} launches of Triton kernels, but the tensors of {len(tensors)} are known")
        known = iter(tensors)
        return [
            replace(launch, **asdict(given)) if launch.kind == TRITON and (given := next(known)) else launch
            for launch in launches
        ]

    def _watch_graphs(self) -> None:
        """Log what each graph captures, and note which graphs are replayed."""
        import torch

        begin, end, replay = (
            getattr(torch.cuda.CUDAGraph, name) for name in ("capture_begin", "capture_end", "replay")
        )

        def logged_begin(graph: torch.cuda.CUDAGraph, *arguments: Any, **options: Any) -> None:
            self._start()
            begin(graph, *arguments, **options)

        def logged_end(graph: torch.cuda.CUDAGraph) -> None:
            self._nodes[id(graph)] = [launch for launch in self._stop() if launch.is_captured]
            end(graph)

        def noted_replay(graph: torch.cuda.CUDAGraph) -> None:
            self._replayed.append(id(graph))
            replay(graph)

        for name, method in (("capture_begin", logged_begin), ("capture_end", logged_end), ("replay", noted_replay)):
            setattr(torch.cuda.CUDAGraph, name, method)

    def _note(self, names: list[str], values: list[Any], function: Any) -> None:
        if self._tensors is None:
            return
        import torch

        tensors = [(name, value) for name, value in zip(names, values, strict=False) if isinstance(value, torch.Tensor)]
        sizes = [value.numel() * value.element_size() * (1 + name.startswith("in_out")) for name, value in tensors]
        self._tensors.append(
            _Tensors(
                bytes=sum(sizes),
                elements=max((value.numel() for _, value in tensors), default=0),
                draws=any(word in str(getattr(function, "src", "")) for word in _DRAWS),
                module=str(getattr(function, "__module__", "")),
            )
        )


def to_json(launches: list[Launch]) -> list[dict[str, Any]]:
    """Launches as JSON; `count` is how many are alike."""
    return [asdict(launch) | {"count": count} for launch, count in Counter(launches).items()]


def from_json(rows: list[dict[str, Any]]) -> list[tuple[Launch, int]]:
    """Launches, each with how many are alike."""
    found = []
    for row in rows:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        count = values.pop("count")
        found.append((Launch(**values), count))
    return found


def _read(line: str) -> Launch:
    kind, name, grid, block, shared_memory, _stream, captured, size, product = line.split("\t")
    return Launch(
        kind=int(kind),
        name=name,
        grid=_numbers(grid),
        block=_numbers(block),
        shared_memory=int(shared_memory),
        is_captured=captured == "1",
        bytes=int(size),
        size=_numbers(product),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _watch_triton(note: Callable[[list[str], list[Any], Any], None]) -> None:
    """Note each launch of a Triton kernel: Inductor's in its own launcher, others in Triton's."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.runtime.jit import JITFunction

    launch_inductor, launch_triton = CachingAutotuner.run, JITFunction.run

    def of_inductor(self: Any, *arguments: Any, **options: Any) -> Any:
        note(list(self.fn.arg_names), list(arguments), self.fn)
        return launch_inductor(self, *arguments, **options)

    def of_triton(self: Any, *arguments: Any, **options: Any) -> Any:
        if not options.get("warmup"):
            names = list(self.arg_names)
            named = [options[name] for name in names[len(arguments) :] if name in options]
            note(names, [*arguments, *named], self)
        return launch_triton(self, *arguments, **options)

    CachingAutotuner.run, JITFunction.run = of_inductor, of_triton
