"""Steps that are recorded once and replayed: with tensors' operations recorded on a CPU, and with CUDA graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.model.packing import pack
from nmt_cli.training.recorded_steps import RecordedSteps
from nmt_cli.training.update import Updater
from tests.training.feeding import Feed, feed, taped
from tests.training.replaying_ranks import NUM_UPDATES, like_a_gpu, updates_of, with_recorder
from tests.training.two_ranks import run_module

CPU = torch.device("cpu")


@pytest.fixture
def as_on_cuda() -> Iterator[None]:
    with like_a_gpu():
        yield


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(
    ("precision", "settings"),
    [
        ("fp32", ["model.dropout=0"]),
        ("bf16", ["model={dropout: 0.2, ffn_dropout: 0.1, word_dropout: {source: 0.1}}"]),
        ("fp32", ["model.dropout=0.2", "training.consistency={name: simcut, cut: 0.2}"]),
    ],
)
def test_a_training_by_replays_of_one_recorded_step_is_the_training_itself(
    prepared: PreparedData, precision: Precision, settings: list[str]
) -> None:
    given = feed(prepared, *settings)
    plain, recorded = given.updater(precision), with_recorder(given.updater(precision), taped)
    recorded.warm_up([given.batch(given.order.full_rows)])
    assert not recorded.weights.gradients.any()
    for number, update in given.updates(10):
        if number == 5:
            update = replace(update, micro_batches=[rows[:3] for rows in update.micro_batches])
        assert given.give(plain, number, update) == given.give(recorded, number, update)
        assert torch.equal(plain.weights.values, recorded.weights.values)


@pytest.fixture(scope="module")
def of_two(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What two ranks, joined by gloo, have made of a micro-batch each: by replays and by running the steps."""
    file = tmp_path_factory.mktemp("replays") / "found.json"
    run_module("tests.training.replaying_ranks", file, prepared.directory)
    found: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.usefixtures("as_on_cuda")
def test_two_ranks_replay_a_micro_batch_each_and_sum_to_what_one_rank_has(
    of_two: dict[str, dict[str, Any]], prepared: PreparedData
) -> None:
    given = feed(prepared)
    alone = given.updater("bf16")
    results = [given.give(alone, number, update) for number, update in updates_of(given)]
    assert of_two["replayed"]["replayed"] == NUM_UPDATES
    for found in of_two.values():
        # Two float32 summands commute: not a bit may differ.
        assert found["results"] == [[one.smoothed, one.nll, one.kl, one.gradient_norm] for one in results]
        assert found["weights"] == alone.weights.values.tolist()


def batch_of(length: int, *, slots: int = 8, length_bound: int = 128) -> Batch:
    """One sentence of ascending pieces, and empty slots, on both sides."""
    side = pack([list(range(1, length + 1))], device=CPU)
    left = slots - length
    side = replace(
        side,
        ids=torch.nn.functional.pad(side.ids, (0, left)),
        positions=torch.nn.functional.pad(side.positions, (0, left)),
        num_empty=left,
        length_bound=length_bound,
    )
    return Batch(side, side, side.ids)


def summed(batch: Batch, divisor: Tensor, *, begins_sum: bool) -> Tensor:
    """A step that needs all of a batch: the sum of its pieces over the divisor, and that of its positions."""
    return torch.stack([batch.source.ids.sum() / divisor, batch.target.positions.sum() + batch.gold.sum() * 0.0])


def test_a_replay_takes_the_batch_and_the_divisor_that_it_is_given() -> None:
    steps = RecordedSteps(summed, taped, num_sums=2)
    steps.record(batch_of(3))
    assert steps.can_replay(batch_of(5))
    assert steps.replay(batch_of(5), divisor=2, begins_sum=True).tolist() == [7.5, 10.0]
    first = steps.replay(batch_of(2), divisor=1, begins_sum=True)
    steps.replay(batch_of(8), divisor=1, begins_sum=True)
    assert first.tolist() == [3.0, 1.0], "losses are copied out before the next replay"


def refusing(function: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")


def out_of_memory(function: Callable[[], None]) -> Callable[[], None]:
    try:
        raise torch.OutOfMemoryError
    except torch.OutOfMemoryError as problem:  # how torch ends a recording that failed
        raise RuntimeError("capture failed") from problem


def test_what_cannot_be_recorded_is_run_with_a_warning(
    prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    given = feed(prepared)
    plain, refused = given.updater("fp32"), with_recorder(given.updater("fp32"), refusing)
    refused.warm_up([given.batch(given.order.full_rows)])
    assert caplog.messages == [
        "no CUDA graph can be made (CUDA error: operation not permitted when stream is capturing):"
        " updates take longer to launch"
    ]
    for number, update in given.updates(2):
        assert given.give(plain, number, update) == given.give(refused, number, update)


def test_too_little_memory_to_record_is_the_error_of_too_little_memory(prepared: PreparedData) -> None:
    given = feed(prepared)
    updater = with_recorder(given.updater("fp32"), out_of_memory)
    batch = given.batch(given.order.full_rows)
    with pytest.raises(
        DeviceError, match=r"(?m)^the memory of cpu does not hold a micro-batch of \d+ tokens$"
    ) as caught:
        updater.warm_up([batch])
    assert caught.value.hint.startswith("--set training.max_tokens_per_device=")


def taken(updater: Updater, given: Feed, batch: Batch, *, key: tuple[int, int]) -> tuple[float, Tensor]:
    """The loss of a micro-batch and the gradients that it adds."""
    loss, _ = updater.accumulate(batch, key=key, target_tokens=100, begins_sum=True)
    return float(loss), updater.weights.gradients.clone()


@pytest.mark.gpu
def test_a_cuda_graph_gives_the_loss_and_the_gradients_of_the_step(prepared: PreparedData) -> None:
    given = feed(prepared, device="cuda")
    recorded, plain = (
        given.updater("bf16"),
        feed(prepared, "training.compile=false", device="cuda").updater("bf16"),
    )
    assert (recorded.reason_not_to_compile, plain.reason_not_to_compile) == (None, "training.compile is false")
    recorded.warm_up([given.batch(given.order.longest_rows), given.batch(given.order.full_rows)])
    assert recorded._recorded is not None
    unrecorded, graphs = given.updater("bf16"), recorded._recorded
    unrecorded._recorded = None
    for _, update in given.updates(8):
        batch = given.batch(update.micro_batches[0])
        assert graphs.can_replay(batch)
        loss, gradients = taken(recorded, given, batch, key=(1, 0))
        for other in (unrecorded, plain):
            other_loss, other_gradients = taken(other, given, batch, key=(1, 0))
            # bf16 keeps 8 bits of activations near 1, and losses are sums over a few hundred tokens.
            assert loss == pytest.approx(other_loss, rel=2e-3)
            assert (gradients - other_gradients).norm() < 0.02 * other_gradients.norm()


@pytest.mark.gpu
def test_masks_of_a_replay_follow_from_seed_update_and_micro_batch(prepared: PreparedData) -> None:
    given = feed(prepared, "model.dropout=0.3", device="cuda")
    updater = given.updater("bf16")
    batch = given.batch(given.order.full_rows)
    updater.warm_up([batch])
    keys = [(1, 0), (1, 1), (2, 0), (1, 0)]
    first, second, third, again = (taken(updater, given, batch, key=key) for key in keys)
    assert first[0] == again[0]
    assert len({first[0], second[0], third[0]}) == 3
    torch.testing.assert_close(first[1], again[1], rtol=1e-3, atol=1e-4)
    updater._recipe = given.recipe.model_copy(
        update={"training": given.recipe.training.model_copy(update={"seed": 77})}
    )
    assert taken(updater, given, batch, key=(1, 0))[0] != first[0]
