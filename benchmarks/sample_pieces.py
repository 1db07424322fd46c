"""Cost of the sampled pieces of one epoch, without training; prints one JSON object.

python benchmarks/sample_pieces.py data/multi30k-en-de --probability 0.1 --workers 2

The probability is that of a recipe's `tokenizer.dropout`, or `tokenizer.sampling` for a unigram vocabulary. Memory is
Private_Clean + Private_Dirty of smaps_rollup, added up over all processes, at its maximum.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from measuring import argument_parser, circumstances, largest, private_megabytes, processes_of

from nmt_cli.dataset.plan_computation import expected_invariants
from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.dataset.sampled_pieces import SampledPieces, measure_sampling_cost

_MAX_POSITIONS, _BATCH_TOKENS = 1024, 25_000
_WINDOW_SECONDS = 0.2


def main() -> None:
    """Sample the pieces of one epoch into a temporary folder."""
    arguments = _arguments()
    data = open_prepared(arguments.data)
    counts = data.manifest.splits["train"]
    alpha, limits = arguments.probability, {"batch_tokens": _BATCH_TOKENS, "max_positions": _MAX_POSITIONS}
    cost = measure_sampling_cost(data, alpha=alpha, seed=1, max_positions=_MAX_POSITIONS)
    longest = expected_invariants(data.split("train"), cost=cost, mixture=None, **limits).max_tokens_in_sentence
    with tempfile.TemporaryDirectory() as folder, largest(_megabytes, every_seconds=_WINDOW_SECONDS) as memory:
        pieces = SampledPieces(
            data, Path(folder), alpha=alpha, seed=1, max_tokens_in_sentence=longest, beat=lambda: None
        )
        wall, processor = time.perf_counter(), _processor_seconds()
        pieces.sample_ahead(0, num_workers=arguments.workers)
        sampled = pieces.open(0)
        wall, processor = time.perf_counter() - wall, _processor_seconds() - processor
        num_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*"))
    figures = circumstances("cpu", commit=arguments.commit) | {
        "data": arguments.data.name,
        "pairs": counts.pairs,
        "source_growth": round(sampled.src.num_tokens / counts.source_tokens, 3),
        "target_growth": round(sampled.tgt.num_tokens / counts.target_tokens, 3),
        "seconds": round(wall, 1),
        "processor_seconds": round(processor, 1),
        "peak_private_mb": round(memory.value),
        "disk_mb": round(num_bytes / 1e6, 1),
    }
    print(json.dumps(figures, indent=2))


def _processor_seconds() -> float:
    """The processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _megabytes() -> float:
    """The private memory of this process and its children together."""
    return sum(map(private_megabytes, processes_of(os.getpid())))


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="a directory of prepared data")
    parser.add_argument("--probability", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
