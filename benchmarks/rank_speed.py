"""The gain of summing gradients during the backward pass; prints one JSON object.

python benchmarks/rank_speed.py --data data/multi30k-en-de                          # two processes on the CPU
torchrun --nproc-per-node=8 benchmarks/rank_speed.py --data data/wmt14-en-de --device cuda --precision bf16

Every window of updates is taken in three ways, in turn. The ranks sum each bucket of gradients as soon as it is full;
or all buckets after the backward pass; or nothing, which bounds the gain of overlap. On a CPU the sums need the same
cores as the backward pass.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

from measuring import Figures, circumstances, summed_up, wait_for

_WARM_UP = 3


def main() -> None:
    """Measure as one of the ranks; without a launcher, start two."""
    arguments = _arguments()
    if "WORLD_SIZE" not in os.environ:
        sys.exit(_start_two())
    figures = _measure(arguments)
    if figures is not None:
        print(json.dumps(figures, indent=2))


def _start_two() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=shared | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    return max(abs(rank.wait()) for rank in ranks)


def _measure(arguments: argparse.Namespace) -> Figures | None:
    """Target tokens per second of all ranks together; None on all ranks but the first."""
    from nmt_cli.dataset.prepared_data import open_prepared
    from nmt_cli.memory import keep_freed_memory
    from nmt_cli.recipe.loading import load_recipe
    from nmt_cli.training.ranks.ranks import join_ranks

    keep_freed_memory()
    overrides = [
        f"training.batch_tokens={arguments.batch_tokens}",
        f"training.max_tokens_per_device={arguments.batch_tokens}",
        f"training.sum_gradients_in={arguments.sum_gradients_in}",
        "training.compile=false",
        *(arguments.settings or []),
    ]
    recipe, ranks = load_recipe(arguments.recipe, overrides=overrides), join_ranks(arguments.device)
    window = _windows(recipe, open_prepared(Path(arguments.data)), ranks, arguments)
    sides: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "overlapped": nullcontext,
        "afterwards": _afterwards,
        "without": _without,
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    window(_WARM_UP)
    for _ in range(arguments.windows):
        for side, changed in sides.items():
            with changed():
                rates[side].append(window(arguments.updates))
    figures = {
        "benchmark": "target tokens a second with EOS, of all ranks together",
        **circumstances(str(ranks.device), commit=None),
        "ranks": ranks.size,
        "precision": arguments.precision,
        **{side: summed_up(found) for side, found in rates.items()},
    }
    ranks.barrier()
    ranks.leave()
    return figures if ranks.is_first else None


def _windows(recipe: object, data: object, ranks: object, arguments: argparse.Namespace) -> Callable[[int], float]:
    """A function that takes updates and returns their rate."""
    from nmt_cli.dataset.batches import make_batch
    from nmt_cli.dataset.prepared_data import PreparedData
    from nmt_cli.recipe.schema import Recipe
    from nmt_cli.training.data_order import DataOrder
    from nmt_cli.training.initial_weights import build_model
    from nmt_cli.training.ranks.ranks import Ranks
    from nmt_cli.training.update import Updater

    assert isinstance(recipe, Recipe)
    assert isinstance(data, PreparedData)
    assert isinstance(ranks, Ranks)
    pairs, fallback = data.split("train"), Path(".")
    order = DataOrder(
        data,
        recipe,
        world_size=ranks.size,
        max_tokens=arguments.batch_tokens,
        has_even_end=True,
        fallback=fallback,
        beat=lambda: None,
    )
    order.open()
    updater = Updater(recipe, build_model(recipe, data).to(ranks.device), precision=arguments.precision, ranks=ranks)
    taken = 0

    def window(num_updates: int) -> float:
        nonlocal taken
        updates = [order.next() for _ in range(num_updates)]
        ranks.barrier()
        start = time.perf_counter()
        for update in updates:
            taken += 1
            micro = update.micro_batches
            batches = [
                (index, make_batch(micro[index], pairs, device=ranks.device, shape=order.shape, pinned=False))
                for index in range(ranks.rank, len(micro), ranks.size)
                if len(micro[index])
            ]
            tokens, num_micro_batches = update.target_tokens, len(micro)
            updater.launch(
                batches,
                number=taken,
                num_micro_batches=num_micro_batches,
                target_tokens=tokens,
                received_signal=lambda: None,
            ).result()
        wait_for(str(ranks.device))
        return sum(update.target_tokens for update in updates) / (time.perf_counter() - start)

    return window


def _afterwards() -> AbstractContextManager[object]:
    """Begin no bucket before the end of the backward pass."""
    from nmt_cli.training.weights import GradientSum

    return patch.object(GradientSum, "complete", lambda self, parameter: None)


@contextmanager
def _without() -> Iterator[None]:
    """Let each rank step by its own gradients, without sums."""
    from nmt_cli.training.weights import GradientSum

    with _afterwards(), patch.object(GradientSum, "finish", lambda self: None):
        yield


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--recipe", default="base")
    parser.add_argument("--set", dest="settings", action="append", help="as of nmt train")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="fp32")
    parser.add_argument("--sum-gradients-in", choices=["bf16", "fp32"], default="fp32")
    parser.add_argument("--batch-tokens", type=int, default=2000)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4, help="updates per window")
    return parser.parse_args()


if __name__ == "__main__":
    main()
