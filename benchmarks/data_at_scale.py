"""Training data at the size of WMT14 EN-FR: time of a plan and of batches, and memory; prints one JSON object.

python benchmarks/data_at_scale.py --folder /tmp/scale            # 36 million pairs: 5 GB on disk, 2 minutes
python benchmarks/data_at_scale.py --folder /tmp/scale --pairs 1000000

The script writes prepared data of random pieces once, to FOLDER/PAIRS, with log-normal lengths of about 30 tokens per
side. Each step is a process of its own, on one core. One computes the plan. The other does so too, and takes batches
for some seconds: first with the files dropped from the page cache, then with the files in it. Private memory is
Private_Clean + Private_Dirty of smaps_rollup, less that of a process that has only imported torch, at its maximum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import Figures, Largest, argument_parser, circumstances, largest, private_megabytes, run

_LOG_MEAN, _LOG_DEVIATION, _RATIO_DEVIATION, _LONGEST = 3.2, 0.62, 0.15, 256
_VOCABULARY = 37_000
_WRITE_PAIRS = 1 << 20
_WINDOW_SECONDS = 0.25


def main() -> None:
    """Run the steps one after another and print what they found."""
    arguments = _arguments()
    if arguments.step:
        steps = {"plan": _plan, "batches": _batches}
        print(json.dumps(steps[arguments.step](arguments)))
        return
    directory = arguments.folder / str(arguments.pairs)
    if not (directory / "manifest.json").exists():
        _write_data(directory, arguments.pairs)
    result = {
        "benchmark": "training data at scale, one core",
        **circumstances("cpu", commit=arguments.commit),
        "pairs": arguments.pairs,
        "batch_tokens": arguments.batch_tokens,
        **_step("plan"),
        **_step("batches"),
    }
    print(json.dumps(result, indent=2))


def _plan(arguments: argparse.Namespace) -> Figures:
    with _watched(arguments.core) as peak:
        order = _order(arguments)
        start = time.perf_counter()
        updates = len(order.open())
        seconds = time.perf_counter() - start
    return {
        "plan_seconds": round(seconds, 2),
        "plan_private_mb": round(peak.value),
        "updates": updates,
    }


def _batches(arguments: argparse.Namespace) -> Figures:
    import torch

    torch.set_num_threads(1)
    directory = arguments.folder / str(arguments.pairs)
    _drop_from_cache(directory)
    with _watched(arguments.core) as peak:
        order, rates = _order(arguments), _Rates(arguments)
        order.open()
        start = time.perf_counter()
        rates.take(order)
        first = time.perf_counter() - start
        cold = rates.measure(order)
        _read_all(directory)
        warm = rates.measure(order)
    return {
        "first_batch_seconds": round(first, 4),
        "pairs_per_second_from_disk": cold,
        "pairs_per_second": warm,
        "private_mb": round(peak.value),
    }


class _Rates:
    """Takes updates, and makes batches of both sides of their pairs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch

        from nmt_cli.dataset.prepared_data import open_prepared

        self._pairs = open_prepared(arguments.folder / str(arguments.pairs)).split("train")
        self._device = torch.device("cpu")
        self._seconds = arguments.seconds

    def take(self, order: Any) -> int:
        """Take one update, and return the number of its pairs."""
        from nmt_cli.dataset.batches import make_batch

        micro_batches = order.next().micro_batches
        for rows in micro_batches:
            make_batch(rows, self._pairs, device=self._device, shape=order.shape, pinned=False)
        return sum(map(len, micro_batches))

    def measure(self, order: Any) -> Figures:
        """Median and quartiles of the rates in windows of a quarter of a second."""
        rates, end = [], time.perf_counter() + self._seconds
        while time.perf_counter() < end or len(rates) < 2:
            start, taken = time.perf_counter(), 0
            while time.perf_counter() < start + min(_WINDOW_SECONDS, self._seconds / 2):
                taken += self.take(order)
            rates.append(taken / (time.perf_counter() - start))
        low, median, high = statistics.quantiles(rates, n=4)
        return {"median": round(median), "quartiles": [round(low), round(high)]}


def _order(arguments: argparse.Namespace) -> Any:
    from nmt_cli.dataset.prepared_data import open_prepared
    from nmt_cli.recipe.loading import load_recipe
    from nmt_cli.training.data_order import DataOrder

    directory = arguments.folder / str(arguments.pairs)
    recipe = load_recipe("base", overrides=[f"training.batch_tokens={arguments.batch_tokens}"])
    return DataOrder(
        open_prepared(directory),
        recipe,
        world_size=1,
        max_tokens=arguments.batch_tokens + arguments.batch_tokens // 50,
        run_directory=directory,
        beat=lambda: None,
    )


@contextmanager
def _watched(core: int) -> Iterator[Largest]:
    """Pin this process to one core, and track its largest private memory, in MB above a process with torch alone."""
    import torch  # noqa: F401  # what is measured from

    before = private_megabytes(os.getpid())
    os.sched_setaffinity(0, {core})
    with largest(lambda: private_megabytes(os.getpid()) - before, every_seconds=0.02) as peak:
        yield peak


def _drop_from_cache(directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_all(directory: Path) -> None:
    buffer = bytearray(1 << 22)
    for path in sorted(directory.glob("*.ids")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _write_data(directory: Path, num_pairs: int) -> None:
    """Write prepared data as training reads it: token files of one split, and tokenizers that are never loaded."""
    from hashlib import sha256

    import numpy as np

    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(1)
    totals = {"source": 0, "target": 0}
    files = {
        (side, part): (directory / f"train.{side}.{part}").open("wb") for side in totals for part in ("ids", "offsets")
    }
    for side in totals:
        files[side, "offsets"].write(bytes(8))
    for start in range(0, num_pairs, _WRITE_PAIRS):
        size = min(_WRITE_PAIRS, num_pairs - start)
        source = generator.lognormal(_LOG_MEAN, _LOG_DEVIATION, size)
        target = source * generator.lognormal(0, _RATIO_DEVIATION, size)
        for side, lengths in (("source", source), ("target", target)):
            ends = np.cumsum(np.clip(np.rint(lengths), 2, _LONGEST).astype("<i8"))
            ids = generator.integers(4, _VOCABULARY, ends[-1], dtype=np.uint16)
            ids[ends - 1] = 3
            files[side, "ids"].write(ids.astype("<u2").tobytes())
            files[side, "offsets"].write((ends + totals[side]).tobytes())
            totals[side] += int(ends[-1])
    for file in files.values():
        file.close()
    tokenizer = b"no model: random pieces"
    for side in totals:
        (directory / f"{side}.spm").write_bytes(tokenizer)
    _write_manifest(directory, num_pairs, totals, sha256(tokenizer).hexdigest())


def _write_manifest(directory: Path, num_pairs: int, totals: dict[str, int], fingerprint: str) -> None:
    record = {"vocab_size": _VOCABULARY, "fingerprint": fingerprint}
    manifest = {
        "kind": "prepared data",
        "format": 1,
        "nmt_version": "0",
        "name": f"synthetic-{num_pairs}",
        "languages": {"source": "en", "target": "fr"},
        "shared_vocabulary": True,
        "tokenizers": {"source": record, "target": record},
        "dtype": "uint16",
        "splits": {
            "train": {
                "pairs": num_pairs,
                "source_tokens": totals["source"],
                "target_tokens": totals["target"],
            }
        },
        "inputs": [],
        "fingerprint": f"synthetic-{num_pairs}",
        "corpus": {},
        "files": {path.name: path.stat().st_size for path in sorted(directory.glob("train.*"))},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2))


def _step(name: str) -> Figures:
    found: Figures = json.loads(run([sys.executable, __file__, *sys.argv[1:], "--step", name]))
    return found


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="scratch folder for the data; 5 GB for 36M pairs")
    parser.add_argument("--pairs", type=int, default=36_000_000)
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--seconds", type=float, default=10, help="length of each of the two measurements of batches")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core that the steps run on")
    parser.add_argument("--step", choices=("plan", "batches"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
