"""Cost of the sampled pieces of one epoch, without training; prints one JSON object.

python benchmarks/sample_pieces.py data/multi30k-en-de --probability 0.1 --workers 2

The probability is that of a recipe's `tokenizer.dropout`, or `tokenizer.sampling` for a unigram vocabulary. Memory is
Private_Clean + Private_Dirty of smaps_rollup, added up over all processes, at its maximum.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from measuring import circumstances

from nmt_cli.dataset.plan import PlanKey
from nmt_cli.dataset.planning import expected_facts
from nmt_cli.dataset.sampled_pieces import expected_growth, sample_pieces
from nmt_cli.dataset.store import open_prepared

_MAX_POSITIONS, _BATCH_TOKENS = 1024, 25_000
_WINDOW_SECONDS = 0.2


def main() -> None:
    """Sample the pieces of one epoch into a temporary folder."""
    arguments = _arguments()
    data = open_prepared(arguments.data)
    counts = data.manifest.splits["train"]
    key = PlanKey(
        data=data.manifest.fingerprint,
        num_pairs=counts.pairs,
        src_tokens=counts.source_tokens,
        tgt_tokens=counts.target_tokens,
        batch_tokens=_BATCH_TOKENS,
        max_positions=_MAX_POSITIONS,
        seed=1,
        epoch=0,
        alpha=arguments.probability,
    )
    growth = expected_growth(data, alpha=arguments.probability, seed=key.seed, max_positions=_MAX_POSITIONS)
    facts = expected_facts(data.split("train"), key=key, growth=growth)
    with tempfile.TemporaryDirectory() as folder, _largest_memory() as memory:
        wall, processor = time.perf_counter(), _processor_seconds()
        sampled = sample_pieces(
            data, Path(folder), key=key, facts=facts, num_workers=arguments.workers, progress=lambda: None
        )
        wall, processor = time.perf_counter() - wall, _processor_seconds() - processor
        num_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
    figures = circumstances("cpu", commit=None) | {
        "data": arguments.data.name,
        "pairs": counts.pairs,
        "source_growth": round(sampled.source_tokens / counts.source_tokens, 3),
        "target_growth": round(sampled.target_tokens / counts.target_tokens, 3),
        "seconds": round(wall, 1),
        "processor_seconds": round(processor, 1),
        "peak_private_mb": round(memory["mb"]),
        "disk_mb": round(num_bytes / 1e6, 1),
    }
    print(json.dumps(figures, indent=2))


def _processor_seconds() -> float:
    """The processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


@contextmanager
def _largest_memory() -> Iterator[dict[str, float]]:
    """The largest private memory, in MB, of this process and its children together."""
    peak, done = {"mb": 0.0}, threading.Event()

    def look() -> None:
        while not done.wait(_WINDOW_SECONDS):
            found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True)
            processes = [os.getpid(), *map(int, found.stdout.split())]
            peak["mb"] = max(peak["mb"], sum(map(_private_mb, processes)))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _private_mb(process: int) -> float:
    with suppress(OSError):  # it has ended
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
        return (sizes["Private_Clean"] + sizes["Private_Dirty"]) * 1024 / 1e6
    return 0.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a directory of prepared data")
    parser.add_argument("--probability", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
