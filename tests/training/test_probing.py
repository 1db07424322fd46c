"""How many tokens a device takes at once where the recipe leaves it open: arithmetic, trials, and what is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.bundle.run import open_run
from nmt_cli.dataset.shape import accumulation
from nmt_cli.dataset.store import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.recipe.loading import parse_recipe
from nmt_cli.training import probing
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.estimate import estimate
from nmt_cli.training.initial import build_model
from nmt_cli.training.order import DataOrder
from nmt_cli.training.probing import Limits, Measured, MemoryOfGpu, evenly, find_max_tokens, slots_within
from nmt_cli.training.update import Updater
from nmt_cli.training.weights import MasterWeights
from tests.training.tiny import (
    RECIPE,
    checkpoint,
    checkpoints,
    events,
    parallel_text,
    prepare_tiny,
    stopped_after,
    train,
)
from tests.training.two_ranks import LAUNCHED, start

AUTO = "training.max_tokens_per_device=auto"
ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclass
class Pretended:
    """A device where a micro-batch takes so many bytes and so many for each slot, of which there are as many as asked.

    It holds `held` slots, and `free` bytes seem to be free.
    """

    free: int
    held: int
    fixed: int = 1000
    of_slot: int = 10
    tried: list[int] = field(default_factory=list)

    def room(self) -> int:
        return self.free

    def measure(self, max_tokens: int) -> Measured | None:
        self.tried.append(max_tokens)
        return Measured(max_tokens, self.fixed + self.of_slot * max_tokens) if max_tokens <= self.held else None


def found(memory: Pretended, *, smallest: int = 100, largest: int = 25_000) -> int:
    return find_max_tokens(memory, Limits(smallest, largest), ranks=ALONE)


def test_the_line_through_two_trials_gives_what_fits_and_it_is_tried() -> None:
    memory = Pretended(free=151_000, held=10**9)
    assert found(memory) == 15_000
    assert memory.tried == [2048, 8192, 15_000]


def test_no_more_than_a_devices_share_is_taken() -> None:
    assert found(Pretended(free=10**9, held=10**9)) == 25_000
    assert found(Pretended(free=10**9, held=10**9), largest=1500) == 1500


def test_where_the_trial_fails_a_fifth_less_is_tried_until_one_does_not() -> None:
    memory = Pretended(free=151_000, held=10_000)
    assert found(memory) == 9600
    assert memory.tried == [2048, 8192, 15_000, 12_000, 9600]


def test_where_the_second_trial_fails_the_first_tells_alone() -> None:
    memory = Pretended(free=62_440, held=6000)  # 2,048 slots take 21,480 bytes: less than three times that is free
    assert found(memory) == 62_440 * 2048 // 21_480
    assert memory.tried == [2048, 8192, 5953]


def test_less_than_the_first_trial_took_may_be_left_to_take() -> None:
    assert found(Pretended(free=11_000, held=10**9)) == 1000
    assert found(Pretended(free=11_000, held=10**9), largest=1500) == 11_000 * 1500 // 16_000


@pytest.mark.parametrize("memory", [Pretended(free=10**6, held=50), Pretended(free=1500, held=10**9)])
def test_a_memory_that_does_not_hold_the_longest_sentence_is_an_error(memory: Pretended) -> None:
    with pytest.raises(DeviceError) as caught:
        found(memory)
    error = caught.value
    assert error.message == "the memory of cpu does not hold a micro-batch of one sentence of 100 pieces"
    assert error.where == "training.max_tokens_per_device"
    assert error.hint == (
        "end what else takes memory there, prepare with a smaller cleaning.max_words, or train a smaller model"
    )


def test_the_rank_with_least_memory_decides_and_one_that_fails_speaks_for_all() -> None:
    class OfTwo(Ranks):
        """Beside another rank whose line gives 9,000 tokens, and who fails in the first trial of what was agreed on."""

        def smallest(self, value: int) -> int:
            return min(value, 9000)

        def any(self, claim: bool) -> bool:
            answers.append(claim)
            return claim or len(answers) == 1

    answers: list[bool] = []
    memory = Pretended(free=151_000, held=10**9)
    limits = Limits(100, 25_000)
    tokens = find_max_tokens(memory, limits, ranks=OfTwo(0, 2, torch.device("cpu")))
    assert (tokens, answers) == (7200, [False, False])


def test_memory_that_does_not_grow_with_the_slots_is_no_division_by_zero() -> None:
    assert slots_within(5000, Measured(10, 100), Measured(20, 100)) == 10 + 4900


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("max_tokens", [300, 4096, 12_345, 25_000, 10**9])
def test_a_share_in_equal_parts_takes_no_more_rounds(max_tokens: int, world_size: int) -> None:
    tokens = evenly(max_tokens, batch_tokens=25_000, world_size=world_size, longest=100)
    rounds = accumulation(batch_tokens=25_000, max_tokens=max_tokens, world_size=world_size)
    assert tokens <= max_tokens
    assert accumulation(batch_tokens=25_000, max_tokens=tokens, world_size=world_size) == rounds
    assert tokens < 25_000 / (rounds * world_size) + 129


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that seem to be free on this machine, the last of the list; each time one asks one is taken off."""
    answers: list[int] = []
    monkeypatch.setattr(probing, "free_on_cpu", answers.pop)
    return answers


def test_what_was_found_is_said_kept_and_taken_again(
    prepared: PreparedData, tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole, run = tmp_path / "whole", tmp_path / "run"
    free += [_bytes_for(prepared, 250)] * 2
    assert train(prepared, whole, AUTO) == 0
    assert "an update of 600 tokens is 1 device(s) x 3 micro-batch(es) of at most 250 (auto)" in caplog.text
    assert open_run(whole).record.model_dump()["max_tokens_per_device"] == {
        "tokens": 250,
        "devices": 1,
        "device": "CPU",
        "precision": "fp32",
    }
    with stopped_after(10):
        assert train(prepared, run, AUTO) == 75
    assert free == []  # nobody asks again
    assert train(prepared, run, AUTO) == 0
    assert checkpoints(run) == checkpoints(whole)
    for update in checkpoints(run):
        assert checkpoint(run, update) == checkpoint(whole, update)
    assert open_run(run).record.max_tokens_per_device == open_run(whole).record.max_tokens_per_device
    assert open_run(run).record.finished is not None


def test_it_is_found_anew_on_other_devices_and_said(
    prepared: PreparedData, tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    free += [_bytes_for(prepared, 400), _bytes_for(prepared, 250)]
    with stopped_after(10):
        assert train(prepared, run, AUTO) == 75
    _change(run, devices=8, device="NVIDIA H200")
    assert train(prepared, run, AUTO) == 0
    told = "max_tokens_per_device: auto is now 384, found for 1 x CPU, and was 250, for 8 x NVIDIA H200"
    assert told in caplog.messages
    assert _note(run) == {"tokens": 384, "devices": 1, "device": "CPU", "precision": "fp32"}
    tokens = [event["target_tokens"] for event in events(run, "train")]
    assert train(prepared, tmp_path / "other") == 0
    assert tokens == [event["target_tokens"] for event in events(tmp_path / "other", "train")]


def test_a_recipe_that_says_how_many_is_not_measured(prepared: PreparedData, tmp_path: Path, free: list[int]) -> None:
    assert train(prepared, tmp_path / "run", "training.updates=1") == 0
    assert _note(tmp_path / "run") is None


def test_an_equal_part_that_is_shorter_than_the_longest_sentence_takes_that_still(
    tmp_path: Path, free: list[int]
) -> None:
    pairs = parallel_text(100, seed=5)
    long = " ".join(source for source, _ in pairs[:15]), " ".join(target for _, target in pairs[:15])
    data = prepare_tiny(tmp_path, "cleaning.max_words=400", train=[*pairs, long])
    longest = max(int(side.lengths.max()) for side in (data.split("train").src, data.split("train").tgt))
    assert 2 * 128 < longest < 500
    settings = AUTO, f"training.batch_tokens={longest + 9}", "model.max_positions=512"
    free.append(_bytes_for(data, longest + 2))
    with stopped_after(3):
        assert train(data, tmp_path / "run", *settings) == 75
    assert _note(tmp_path / "run")["tokens"] == longest
    assert train(data, tmp_path / "run", *settings, "training.updates=4") == 0


def test_a_share_that_is_shorter_than_the_longest_sentence_is_no_lack_of_memory() -> None:
    limits = Limits(500, evenly(10**9, batch_tokens=2000, world_size=8, longest=500))
    assert find_max_tokens(Pretended(free=10**9, held=10**9), limits, ranks=ALONE) == 500


def test_more_memory_than_needed_leaves_one_micro_batch(
    prepared: PreparedData, tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    free.append(10**12)
    assert train(prepared, tmp_path / "run", AUTO, "training.updates=1") == 0
    assert "an update of 600 tokens is 1 device(s) x 1 micro-batch(es) of at most 640 (auto)" in caplog.text


@pytest.mark.slow
def test_two_ranks_take_what_the_smaller_one_holds(prepared: PreparedData, tmp_path: Path) -> None:
    # A share of what is free, for two ranks of one machine.
    free = 10**12, 2 * _bytes_for(prepared, 150)
    fault = (
        "if RANK is not None:\n"
        "    from nmt_cli.training import probing\n"
        f"    probing.free_on_cpu = lambda: {free}[int(RANK)]\n"
    )
    process = start(LAUNCHED, prepared, tmp_path, AUTO, "training.updates=2", fault=fault)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stderr.count("an update of 600 tokens is 2 device(s) x 2 micro-batch(es) of at most 150 (auto)") == 1
    assert _note(tmp_path / "run") == {"tokens": 150, "devices": 2, "device": "CPU", "precision": "fp32"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trial_takes_the_model_through_a_full_micro_batch_and_leaves_no_gradient(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    allocated = iter([1000, 51_000])  # before, and at most
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: next(allocated))
    recipe = parse_recipe(f"name: tiny\n{RECIPE}", source="")
    order = DataOrder(prepared, recipe, world_size=1, max_tokens=600, fallback=tmp_path)
    updater = Updater(recipe, build_model(recipe, prepared), precision=precision, ranks=ALONE)
    memory = MemoryOfGpu(order, prepared.split("train"), updater, smoothing=0.1, ranks=ALONE)
    collected: list[float] = []
    collect = MasterWeights.collect

    def noted(self: MasterWeights) -> None:
        collect(self)
        collected.append(float(self.gradients.norm()))

    monkeypatch.setattr(MasterWeights, "collect", noted)
    before = updater.weights.values.clone()
    assert memory.measure(320) == Measured(max(order.shape.src_slots, order.shape.tgt_slots), 50_000)
    assert len(collected) == 2  # the first for the libraries
    assert collected[0] > 0

    def without_memory(self: MasterWeights) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(MasterWeights, "collect", without_memory)
    allocated = iter([1000])
    assert memory.measure(320) is None
    assert not updater.weights.gradients.any()
    assert precision == "fp32" or all(parameter.grad is None for parameter in updater.model.parameters())
    assert torch.equal(updater.weights.values, before)


@pytest.mark.gpu
def test_on_a_gpu_trials_leave_no_trace_and_what_is_found_fits(prepared: PreparedData, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(prepared, run, AUTO, "training.updates=4", device="cuda", precision="bf16") == 0
    note = _note(run)
    assert note["device"] == torch.cuda.get_device_name()
    fixed = f"training.max_tokens_per_device={note['tokens']}"
    assert train(prepared, tmp_path / "fixed", fixed, "training.updates=4", device="cuda", precision="bf16") == 0
    one, two = (events(folder, "train")[-1] for folder in (run, tmp_path / "fixed"))
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-3)


def _bytes_for(data: PreparedData, slots: int) -> int:
    """Free memory of which the share that is taken holds so many slots of the tiny model in float32."""
    recipe = parse_recipe(f"name: tiny\n{RECIPE}", source="")
    vocab = data.manifest.tokenizers.source.vocab_size
    needs = estimate(recipe, source_vocab=vocab, target_vocab=vocab, precision="fp32", world_size=1)
    return int(3 * needs.bytes_a_token * slots) + 9


def _note(run: Path) -> Any:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["max_tokens_per_device"]


def _change(run: Path, **values: Any) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    record["max_tokens_per_device"] |= values
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
