"""How many tokens a device takes at once: the estimate, the memory that is free, and what is found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.artifacts.run import open_run
from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError, OutOfMemory
from nmt_cli.memory import free_cpu_bytes
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import parse_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training import micro_batch_size
from nmt_cli.training.micro_batch_size import (
    DeviceNeeds,
    estimate_device_needs,
)
from nmt_cli.training.update import Updater
from tests.training.tiny import (
    RECIPE,
    checkpoint,
    events,
    stopped_after,
    train,
)

AUTO = "training.max_tokens_per_device=auto"
SMALL = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 32, "d_ff": 48, "heads": 2, "d_k": 8, "d_v": 16}
# Trains one update of a model with random sentences of 20 pieces, and prints by how much its memory grew at most.
MEASURE = """
import json, sys
import numpy as np, torch
from nmt_cli.dataset.batches import make_batch
from nmt_cli.dataset.prepared_data import TokenPairs
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.update import Updater
from tests.dataset.synthetic import tokenized_side

def peak():
    # Not ru_maxrss, which begins at what the process that started this one has.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

def train(recipe, tokens):
    count = tokens // 20
    side = tokenized_side(np.random.default_rng(1).integers(4, 8000, count * 20), np.full(count, 20))
    model = Transformer(recipe.model, source_vocab=8000, target_vocab=8000)
    pairs, cpu = TokenPairs(side, side), torch.device("cpu")
    updater = Updater(recipe, model, precision="fp32", ranks=Ranks(0, 1, cpu))
    batch = make_batch(pairs.rows(np.arange(count)), pairs, device=cpu, shape=None, pinned=False)
    for number in (1, 2):
        options = {"num_micro_batches": 1, "target_tokens": count * 20, "received_signal": lambda: None}
        updater.launch([(0, batch)], number=number, **options).result()

small = Recipe.model_validate(json.loads(sys.argv[2]))
train(small, 100)
before = peak()
recipe = Recipe.model_validate(json.loads(sys.argv[1]))
train(recipe, recipe.training.max_tokens_per_device)
print(peak() - before)
"""
GB = 10**9


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that seem to be free on this machine, the last of the list; each time one asks one is taken off."""
    answers: list[int] = []
    monkeypatch.setattr(micro_batch_size, "free_cpu_bytes", answers.pop)
    return answers


def test_what_was_found_is_said_kept_and_taken_again(
    prepared: PreparedData, tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole, run = tmp_path / "whole", tmp_path / "run"
    free += [_bytes_for(prepared, 250)] * 2
    assert train(prepared, whole, AUTO, "training.updates=8") == 0
    assert "an update of 600 tokens is 1 device(s) x 3 micro-batch(es) of at most 250 (auto)" in caplog.text
    assert _note(whole) == {"tokens": 250, "devices": 1, "device": "CPU", "precision": "fp32"}
    with stopped_after(4):
        assert train(prepared, run, AUTO, "training.updates=8") == 75
    assert free == []  # nobody asks again
    assert train(prepared, run, AUTO, "training.updates=8") == 0
    assert checkpoint(run, 8) == checkpoint(whole, 8)
    assert _note(run) == _note(whole)
    assert open_run(run).record.finished is not None


def test_it_is_found_anew_on_other_devices(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path, free: list[int]
) -> None:
    run, other = tmp_path / "run", finished_run()
    assert _note(other) is None, "a recipe that says how many is not measured"
    free += [_bytes_for(prepared, 400), _bytes_for(prepared, 250)]
    with stopped_after(10):
        assert train(prepared, run, AUTO) == 75
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    record["max_tokens_per_device"] |= {"devices": 8, "device": "NVIDIA H200"}
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    assert train(prepared, run, AUTO) == 0
    assert _note(run) == {"tokens": 384, "devices": 1, "device": "CPU", "precision": "fp32"}
    ours, theirs = ([event["target_tokens"] for event in events(each, "train")] for each in (run, other))
    assert ours == theirs


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens at once, the last of the list, that fit the memory in a warm-up; each warm-up is added to the list."""
    limit: list[int] = []
    warm_up = Updater.warm_up

    def limited(self: Updater, batches: Sequence[Batch]) -> None:
        slots = max(batch.source.ids.numel() for batch in batches)
        limit.insert(-1, slots)
        if slots > limit[-1]:
            raise OutOfMemory("the memory of cpu does not hold it", hint="")
        warm_up(self, batches)

    monkeypatch.setattr(Updater, "warm_up", limited)
    return limit


def test_a_warm_up_that_runs_out_of_memory_is_tried_with_half_until_it_fits(
    prepared: PreparedData, tmp_path: Path, free: list[int], held: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    free.append(10**12)
    held.append(200)
    assert train(prepared, run, AUTO, "training.updates=2") == 0
    assert len(held[:-1]) == 3
    assert "an update of 600 tokens is 1 device(s) x 1 micro-batch(es) of at most 640 (auto)" in caplog.text
    told = [message for message in caplog.messages if message.startswith("memory does not hold")]
    expected = "memory does not hold {} tokens at once: trying {}"
    assert told == [expected.format(640, 320), expected.format(320, 160)]
    assert _note(run) == {"tokens": 160, "devices": 1, "device": "CPU", "precision": "fp32"}
    assert train(prepared, tmp_path / "fixed", "training.max_tokens_per_device=160", "training.updates=2") == 0
    assert checkpoint(run, 2) == checkpoint(tmp_path / "fixed", 2)


def test_weights_that_memory_does_not_hold_are_an_error(prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        train(prepared, tmp_path / "vast", "model.d_ff=99999999999999")
    assert re.fullmatch(r"[\d,]+ parameters need [\d,.]+ GB of memory, and [\d.]+ GB are free", caught.value.message)
    assert caught.value.where == "model"
    assert caught.value.hint == "train a smaller model (nmt recipes lists sizes), or end what else takes memory"


def test_a_memory_that_does_not_hold_the_longest_sentence_is_an_error(
    prepared: PreparedData, tmp_path: Path, free: list[int], held: list[int]
) -> None:
    longest = max(int(side.lengths.max()) for side in (prepared.split("train").src, prepared.split("train").tgt))
    free += [0, 10**12]
    held.append(1)
    for name in ("warm-up", "estimate"):  # of the two, the one that fails
        with pytest.raises(OutOfMemory) as caught:
            train(prepared, tmp_path / name, AUTO)
        assert caught.value.message == (
            f"the memory of cpu does not hold a micro-batch of one sentence of {longest} pieces"
        )
        assert caught.value.where == "training.max_tokens_per_device"
        assert caught.value.hint == (
            "end what else takes memory there, prepare with a smaller cleaning.max_words, or train a smaller model"
        )


@pytest.mark.gpu
def test_on_a_gpu_what_is_estimated_fits(prepared: PreparedData, tmp_path: Path) -> None:
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
    needs = estimate_device_needs(recipe, source_vocab=vocab, target_vocab=vocab, precision="fp32", world_size=1)
    return int(3 * needs.bytes_per_token * slots) + 9


def _note(run: Path) -> Any:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["max_tokens_per_device"]


def needs(*, precision: Precision = "fp32", batch_tokens: int = 8000, max_tokens: int = 4000) -> DeviceNeeds:
    training = {"batch_tokens": batch_tokens, "max_tokens_per_device": max_tokens}
    recipe = Recipe.model_validate({"name": "x", "model": {**SMALL, "tying": "none"}, "training": training})
    return estimate_device_needs(recipe, source_vocab=500, target_vocab=400, precision=precision, world_size=1)


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_parameters_are_those_of_the_model(tying: str) -> None:
    recipe = Recipe.model_validate({"name": "x", "model": {**SMALL, "tying": tying}})
    source = 400 if tying == "all" else 500
    found = estimate_device_needs(recipe, source_vocab=source, target_vocab=400, precision="fp32", world_size=1)
    model = Transformer(recipe.model, source_vocab=source, target_vocab=400)
    assert found.num_parameters == sum(parameter.numel() for parameter in set(model.parameters()))


@pytest.mark.parametrize(
    ("precision", "training", "expected"),
    [
        ("fp32", {}, 16),  # weight, gradient, two moments
        ("bf16", {}, 20),  # and a copy
        ("fp32", {"ema": 0.99}, 24),
    ],
)
def test_weights_take_so_many_bytes_each(precision: Precision, training: dict[str, Any], expected: int) -> None:
    recipe = Recipe.model_validate({"name": "x", "model": SMALL, "training": training})
    found = estimate_device_needs(recipe, source_vocab=400, target_vocab=400, precision=precision, world_size=1)
    assert found.weight_bytes == expected * found.num_parameters


def test_activations_follow_the_micro_batch_and_the_precision_not_the_batch() -> None:
    few, many = (needs(max_tokens=tokens) for tokens in (2000, 4000))
    assert many.activation_bytes == 2 * few.activation_bytes == 2 * needs(precision="bf16").activation_bytes
    assert needs(batch_tokens=80_000).activation_bytes == many.activation_bytes


DROPOUTS = {"attention_dropout": 0.1, "ffn_dropout": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ({"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4}, 4000),
        ({"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, **DROPOUTS}, 4000),
        ({"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8}, 1000),
    ],
)
def test_memory_is_within_a_factor_of_two_of_what_is_measured(
    model: dict[str, float], tokens: int, repository: Path
) -> None:
    training = {"batch_tokens": tokens, "max_tokens_per_device": tokens}
    values = {"name": "x", "model": model, "training": training}
    tiny = {"name": "x", "model": {**SMALL}, "training": training}
    process = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(values), json.dumps(tiny)],
        cwd=repository,
        env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    measured = int(process.stdout)
    found = estimate_device_needs(
        Recipe.model_validate(values), source_vocab=8000, target_vocab=8000, precision="fp32", world_size=1
    )
    estimated = found.weight_bytes + found.activation_bytes
    assert 0.5 < estimated / measured < 2  # 1.1 to 1.2 where this was written


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 8 GB available."""
    return write(tmp_path, {"proc/meminfo": f"MemTotal: {16 * GB // 1024} kB\nMemAvailable:   {8 * GB // 1024} kB\n"})


@pytest.mark.parametrize(
    ("cgroup", "groups", "expected"),
    [
        ("", {}, 8 * GB // 1024 * 1024),
        ("0::/job/step\n", {"job/step": (f"{4 * GB}", 3 * GB, GB)}, 2 * GB),
        ("0::/job/step\n", {"job/step": ("max", 3 * GB, 0), "job": (f"{5 * GB}", 4 * GB, 0)}, GB),
    ],
    ids=["the machine's without groups", "cached files do not count", "the narrowest of the groups above"],
)
def test_free_memory_is_what_the_machine_and_its_groups_leave(
    machine: Path, cgroup: str, groups: dict[str, tuple[str, int, int]], expected: int
) -> None:
    write(machine, {"proc/self/cgroup": cgroup})
    for folder, (limit, usage, cached) in groups.items():
        values = {"memory.max": limit, "memory.current": str(usage), "memory.stat": f"inactive_file {cached}"}
        write(machine, {f"sys/fs/cgroup/{folder}/{name}": f"{text}\n" for name, text in values.items()})
    assert free_cpu_bytes(machine) == expected
