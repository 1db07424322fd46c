"""A model of the time of a training step on one H200, part by part, from what the null GPU logged; nothing is measured.

python benchmarks/gpu/step_model.py build/null-gpu/parts/2.11.0 --measured step-base.json step-big.json micro.json

null_gpu.py writes the folder. The model knows shapes, bytes and launches. All rates are assumptions, and each has a
name below. With --measured, results of step_rate.py and micro.py stand beside the modelled parts. The project's bars
are at most 25 ms for base, 66 ms for big, and 6 ms for base on 8 GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch_log import COPY, GRAPH, MEMSET, PRODUCT, TRITON, Launch, from_json

# An H200: multiprocessors, instructions a second of all lanes, and what a large bf16 product reaches.
_PROCESSORS, _CLOCK = 132, 1.755e9
_INSTRUCTIONS = _PROCESSORS * 128 * _CLOCK
_MATRIX_RATE = 790e12

# Bytes a second. Torch's unvectorised additions of bf16 to float32 come to half of what the memory has.
_MEMORY, _MEMORY_OF_ATTENTION, _MEMORY_UNVECTORISED = 4.0e12, 4.2e12, 2.0e12
_SHORTEST = 2.0e-6  # seconds of a kernel, however little it does
_GAP = 0.9e-6  # between two nodes of a graph

# TFLOP/s of products, by inner size where rows are tokens, and by the tiles of 128 x 128 of a weight's gradient, whose
# inner size is the tokens: each bound with the rate up to it.
_BY_INNER = ((512, 590), (1024, 630), (1536, 700), (2048, 720), (4096, 730), (math.inf, 760))
_BY_TILES = ((16, 380), (32, 420), (48, 450), (64, 490), (128, 520), (512, 530), (math.inf, 700))
_TILE = 128
# Few rows do not fill the processors several times: each product then takes longer by this.
_FEW_ROWS, _RAMP = 8192, 2.2e-6

# torch's kernels for sentences of different lengths: a block of 128 x 128 for each sentence and head, however short.
_VARLEN_BLOCKS, _VARLEN_FORWARD, _VARLEN_BACKWARD = 2, 5e-6, 7e-6  # blocks on a processor forward, seconds a round
_VARLEN_ROWS, _HEAD = 128, 64
# Our own kernels: by bytes, but no faster than rounds of blocks.
_OWN_FORWARD, _OWN_BACKWARD = 2e-6, 4e-6
_OWN_BLOCKS_FORWARD, _OWN_BLOCKS_BACKWARD = 7, 4  # on a processor at once, by kernels.py

# Instructions per element, for kernels bound by them and not by bytes: Inductor's loss in three loops, a Philox mask.
_LOSS_INSTRUCTIONS, _PHILOX_INSTRUCTIONS = 64, 97

# Bytes a parameter of what ends an update: norm, Adam, the copy in bf16, and zeros.
_NORM, _ADAM, _PUBLISH, _ZERO, _COLLECT = 4, 28, 6, 4, 10
_CHUNK = 65_536  # elements of a block of foreach kernels
_HOST = 0.7e-3  # between updates, where the host waits for the device before it launches the rest
_LAUNCH = 2.5e-6  # of the host for a kernel, beside what the null GPU takes
_LINK = 450e9  # bytes a second of a rank's sums over NVLink

_BARS = {"base": 25.0, "big": 66.0, "base-8": 6.0}
_PARTS = (
    "products",
    "attention forward",
    "attention backward",
    "loss",
    "Triton kernels",
    "gradients into float32",
    "other kernels",
    "gaps",
    "optimizer",
    "sums over ranks",
    "host",
)


@dataclass(slots=True)
class Model:
    """Modelled seconds of an update by part."""

    name: str
    facts: dict[str, Any]
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))
    launches: int = 0

    @property
    def milliseconds(self) -> float:
        """Seconds of an update: the parts, or the host if it needs longer to launch them."""
        return 1000 * max(sum(self.parts.values()), self.host_seconds)

    @property
    def host_seconds(self) -> float:
        """Seconds of the host for an update: as on the null GPU, plus the cost of launches."""
        return float(self.facts["milliseconds_of_host"]) / 1000 + _LAUNCH * self.launches

    @property
    def share(self) -> float:
        """The model's operations over the matrix rate."""
        return float(self.facts["flops"]) / (self.milliseconds / 1000 * _MATRIX_RATE)


def main() -> None:
    """Print the table, or JSON."""
    arguments = _arguments()
    models = [
        modelled(name, json.loads(file.read_text(encoding="utf-8")))
        for name in ("base", "big", "base-8", "big-8")
        if (file := Path(arguments.folder) / f"{name}.json").exists()
    ]
    if not models:
        sys.exit(f"{arguments.folder} holds no step: null_gpu.py writes base.json, big.json and base-8.json there")
    measured = _measured(arguments.measured)
    if arguments.json:
        print(json.dumps([_told(model, measured.get(model.name, {})) for model in models], indent=2))
    else:
        print("\n".join(_table(models, measured)))


def modelled(name: str, facts: dict[str, Any]) -> Model:
    """The parts of an update, from the facts that null_parts.py has written."""
    model = Model(name, facts)
    launched = from_json(facts["launched"])
    is_replayed = any(launch.kind == GRAPH for launch, _ in launched)
    captured = from_json(facts["captured"]) if is_replayed else []
    outside = [(launch, count) for launch, count in launched if launch.kind != GRAPH]
    chunks = sum(_blocks(launch) * count for launch, count in captured if "multi_tensor_apply" in launch.name)
    for launch, count in [*captured, *outside]:
        part, seconds = _cost(launch, facts, chunks=chunks)
        model.parts[part] += count * seconds
        model.parts["gaps"] += count * _GAP
    model.launches = sum(count for _, count in outside)
    model.parts["host"] = _HOST if facts["waits"] else 0.0
    size = facts["world_size"]
    sent = sum(size_in_bytes for _, _, size_in_bytes in facts["sums"])
    model.parts["sums over ranks"] = 2 * (size - 1) / size * sent / _LINK
    return model


def product_seconds(size: tuple[int, ...], *, slots: int) -> float:
    """The time of a product of [m, k] and [k, n], in cuBLAS's order of sizes, in a step of `slots` slots."""
    m, n, k, batch = size
    is_weight_gradient = k == slots
    if is_weight_gradient:
        tiles = math.ceil(m / _TILE) * math.ceil(n / _TILE)
        rate = next(rate for bound, rate in _BY_TILES if tiles <= bound)
    else:
        rate = next(rate for bound, rate in _BY_INNER if k <= bound)
    return 2 * m * n * k * batch / (rate * 1e12) + (_RAMP if slots <= _FEW_ROWS else 0.0)


def _cost(launch: Launch, facts: dict[str, Any], *, chunks: int) -> tuple[str, float]:
    """The part that a launch belongs to, and its seconds. `chunks` are the blocks of all foreach kernels in a graph."""
    name, parameters = launch.name, facts["parameters"]
    if launch.kind == PRODUCT:
        return "products", product_seconds(launch.size, slots=facts["slots"])
    if launch.kind in (COPY, MEMSET):
        return "other kernels", _by_bytes((2 if launch.kind == COPY else 1) * launch.bytes)
    if "flash" in name:
        return _varlen(launch, facts)
    if launch.kind == TRITON:
        return _triton(launch)
    if "multi_tensor_apply" in name:
        if "Adam" in name:
            return "optimizer", _by_bytes(_blocks(launch) * _CHUNK * _ADAM)
        if launch.is_captured:
            return "gradients into float32", _by_bytes(parameters * _COLLECT * _blocks(launch) / chunks)
        return "optimizer", _SHORTEST
    if "Norm" in name:
        return "optimizer", _by_bytes(parameters * _NORM)
    return _of_torch(launch, facts)


def _of_torch(launch: Launch, facts: dict[str, Any]) -> tuple[str, float]:
    """A kernel of torch itself, whose bytes follow from its blocks and its name."""
    name = launch.name
    threads = _blocks(launch) * launch.block[0]
    if "elementwise" in name:
        elements = threads * (8 if "vectorized" in name else 4)
        if not launch.is_captured and elements >= facts["parameters"]:
            of_each = _PUBLISH if "copy" in name else _ZERO if "Fill" in name else _COLLECT
            return "optimizer", _by_bytes(facts["parameters"] * of_each)
        if "unrolled" in name and "CUDAFunctor_addIf" in name:
            return "gradients into float32", _by_bytes(elements * _COLLECT, rate=_MEMORY_UNVECTORISED)
        is_narrow = "BFloat16" in name
        return "other kernels", _by_bytes(elements * (2 if is_narrow else 4) * (1 if "Fill" in name else 3))
    if "vectorized_gather" in name:
        return "other kernels", _by_bytes(threads * 2 * 16)
    if "compute_grad_weight" in name or "sum_and_scatter" in name:
        return "other kernels", _by_bytes(facts["slots"] * facts["heads"] * _HEAD * (2 + 4))
    return "other kernels", _SHORTEST


def _varlen(launch: Launch, facts: dict[str, Any]) -> tuple[str, float]:
    """torch's attention: rounds of the blocks with a sentence, or float32 rows that are cleared and read."""
    blocks = facts["sentences"] * facts["heads"]
    if "flash_fwd" in launch.name:
        return "attention forward", math.ceil(blocks / (_VARLEN_BLOCKS * _PROCESSORS)) * _VARLEN_FORWARD
    if "dq_dk_dv" in launch.name:
        return "attention backward", math.ceil(blocks / _PROCESSORS) * _VARLEN_BACKWARD
    return "attention backward", _SHORTEST + _blocks(launch) * _VARLEN_ROWS * _HEAD * 4 / _MEMORY


def _triton(launch: Launch) -> tuple[str, float]:
    """A kernel of Inductor's, or one of ours, which is known by its module."""
    name = launch.name
    if launch.module.endswith("kernels.attention"):
        by_bytes = _by_bytes(launch.bytes, rate=_MEMORY_OF_ATTENTION)
        if "backward" in name:
            rounds = math.ceil(_blocks(launch) / (_OWN_BLOCKS_BACKWARD * _PROCESSORS))
            return "attention backward", max(by_bytes, rounds * _OWN_BACKWARD)
        rounds = math.ceil(_blocks(launch) / (_OWN_BLOCKS_FORWARD * _PROCESSORS))
        return "attention forward", max(by_bytes, rounds * _OWN_FORWARD)
    if launch.module.endswith("kernels.loss"):
        return "loss", _by_bytes(2 * launch.bytes)  # it writes over what it reads
    if "logsumexp" in name:
        return "loss", max(_by_bytes(launch.bytes), launch.elements * _LOSS_INSTRUCTIONS / _INSTRUCTIONS)
    drawing = launch.elements * _PHILOX_INSTRUCTIONS / _INSTRUCTIONS if launch.draws else 0.0
    return "Triton kernels", max(_by_bytes(launch.bytes), drawing)


def _by_bytes(size: float, *, rate: float = _MEMORY) -> float:
    return max(_SHORTEST, size / rate)


def _blocks(launch: Launch) -> int:
    return math.prod(launch.grid)


def _measured(files: Iterable[str]) -> dict[str, dict[str, float]]:
    """Measured milliseconds by model and part, from results of step_rate.py and micro.py; `update` is the whole."""
    found: dict[str, dict[str, float]] = {}
    for file in files:
        result = json.loads(Path(file).read_text(encoding="utf-8"))
        if "milliseconds_an_update" in result:
            of_size = found.setdefault(result["size"], {})
            of_size["update"] = result["milliseconds_an_update"]
            of_size["share"] = result["ratios"]["share_of_matrix_rate"]
            of_size["products"] = result["own_products"]["milliseconds_a_step"]
        elif "parts" in result:
            for size, parts in result["parts"].items():
                found.setdefault(size, {}).update(parts)
        else:
            sys.exit(f"{file} is neither a result of step_rate.py nor one of micro.py")
    return found


def _told(model: Model, measured: dict[str, float]) -> dict[str, Any]:
    return {
        "name": model.name,
        "torch": model.facts["torch"],
        "modelled_milliseconds": {part: round(1000 * seconds, 3) for part, seconds in model.parts.items()},
        "modelled_milliseconds_an_update": round(model.milliseconds, 2),
        "modelled_share_of_matrix_rate": round(model.share, 3),
        "milliseconds_of_host": round(1000 * model.host_seconds, 2),
        "bar_milliseconds": _BARS.get(model.name),
        "measured": measured,
    }


def _table(models: list[Model], measured: dict[str, dict[str, float]]) -> list[str]:
    rows = [["modelled ms"]]
    rows += [[part] for part in _PARTS]
    rows += [["update"], ["bar"], ["share of the matrix rate"], ["host"]]
    for model in models:
        values = [f"{1000 * model.parts[part]:.2f}" for part in _PARTS]
        bar = _BARS.get(model.name)
        values += [f"{model.milliseconds:.1f}", f"{bar:.0f}" if bar else "", f"{model.share:.2f}"]
        _add_column(rows, [model.name, *values, f"{1000 * model.host_seconds:.1f}"])
        if model.name in measured:
            of_model = measured[model.name]
            parts = [_two_digits(of_model.get(part)) for part in _PARTS]
            whole = [_two_digits(of_model.get("update")), "", _two_digits(of_model.get("share")), ""]
            _add_column(rows, ["measured", *parts, *whole])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _add_column(rows: list[list[str]], column: list[str]) -> None:
    for row, cell in zip(rows, column, strict=True):
        row.append(cell)


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where null_gpu.py has written base.json, big.json and base-8.json")
    parser.add_argument("--measured", nargs="+", default=[], metavar="FILE", help="of step_rate.py and micro.py")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
