"""Ranks that replay a micro-batch each: `python -m tests.training.replaying_ranks FILE DATA SETTING...`.

Each rank is a process of its own. The first writes what came of it to FILE as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.model import attention, dropout
from nmt_cli.training.data_order import PlannedUpdate
from nmt_cli.training.ranks.ranks import Ranks, join_ranks
from nmt_cli.training.recorded_steps import RecordedSteps
from nmt_cli.training.update import Updater
from tests.reference.varlen import register
from tests.training.feeding import Feed, feed, take, taped

NUM_UPDATES = 9


@contextmanager
def like_a_gpu() -> Iterator[None]:
    """Attention by torch's variable-length operator, and masks by torch's own dropout."""
    register()
    with (
        patch.object(attention, "choose_kernel", lambda *_, **__: "varlen"),
        patch.object(dropout, "_INT_OF_SAME_WIDTH", {}),
    ):
        yield


def with_recorder(updater: Updater, recorder: Callable[[Callable[[], None]], Callable[[], None]]) -> Updater:
    """An updater that records as it would on a GPU."""
    updater._recorded = RecordedSteps(updater._step, recorder, num_sums=updater._num_sums)
    return updater


def updates_of(given: Feed) -> Iterator[tuple[int, PlannedUpdate]]:
    """The first updates with their numbers; the last but one is short and has no pairs for the second rank."""
    for number, update in given.updates(NUM_UPDATES):
        first, second = update.micro_batches
        yield number, replace(update, micro_batches=[first, second[:0]]) if number == NUM_UPDATES - 1 else update


def main() -> None:
    """Take updates by replays and by backward passes."""
    file, directory, *settings = sys.argv[1:]
    ranks, given = join_ranks("cpu"), feed(open_prepared(Path(directory)), *settings)
    found: dict[str, object] = {}
    with like_a_gpu():
        if ranks.size > 1:  # test_cuda_graphs.py has the replays of one
            found["replayed"] = _train(given, ranks, is_recorded=True)
        found["run"] = _train(given, ranks, is_recorded=False)
    if ranks.is_first:
        Path(file).write_text(json.dumps(found), encoding="utf-8")
    ranks.barrier()
    ranks.leave()


def _train(given: Feed, ranks: Ranks, *, is_recorded: bool) -> dict[str, object]:
    """The weights after some updates, their losses and norms, and how many steps were replayed."""
    updater = given.updater("bf16", ranks=ranks)
    replayed: list[int] = []

    def recorder(function: Callable[[], None]) -> Callable[[], None]:
        tape = taped(function)

        def replay() -> None:
            replayed.append(1)
            tape()

        return replay

    if is_recorded:
        with_recorder(updater, recorder).warm_up([given.batch(given.order.full_rows)])
        replayed.clear()
    results = []
    for number, update in updates_of(given):
        mine = [(index, rows) for index, rows in enumerate(update.micro_batches) if index % ranks.size == ranks.rank]
        batches = [(index, given.batch(rows)) for index, rows in mine if len(rows)]
        result = take(updater, batches, number, update)
        results.append([result.smoothed, result.nll, result.kl, result.gradient_norm])
    return {"weights": updater.weights.values.tolist(), "results": results, "replayed": len(replayed)}


if __name__ == "__main__":
    main()
