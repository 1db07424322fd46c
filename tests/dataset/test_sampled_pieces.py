"""Sampled pieces: the same text in other pieces, which follow from the seed, the epoch and the pair alone."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from nmt_cli import processes
from nmt_cli.dataset import plan_cache
from nmt_cli.dataset.plan_cache import PLANS, CacheClosed, PlanCache
from nmt_cli.dataset.plan_files import EpochPlan, PlanKey
from nmt_cli.dataset.prepared_data import PreparedData, TokenPairs, TokenWriter, open_prepared
from nmt_cli.dataset.sampled_pieces import (
    BLOCK_PAIRS,
    SamplingCost,
    check_sampling,
    measure_sampling_cost,
    sample_pieces,
)
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import SubwordSampling
from nmt_cli.tokenization.sentencepiece_model import NORMAL, read_pieces, with_pieces
from nmt_cli.tokenization.tokenizer import EOS, UNK, Tokenizer
from tests.dataset import synthetic
from tests.dataset.synthetic import sentences
from tests.training.tiny import parallel_text, prepare_tiny
from tests.waiting import children, wait_until

PAIRS = parallel_text(2400, seed=3)
Rows = list[list[list[int]]]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """2,380 pairs, which are two blocks, with a vocabulary of 350 pieces."""
    return prepared(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def data(request: pytest.FixtureRequest, bpe: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """The same with each kind of tokenizer."""
    is_bpe = request.param == "bpe"
    return bpe if is_bpe else prepared(tmp_path_factory.mktemp("unigram"), "tokenizer.kind=unigram")


def prepared(folder: Path, *settings: str) -> PreparedData:
    return prepare_tiny(folder, "tokenizer.vocab_size=350", *settings, train=PAIRS[20:], valid=PAIRS[:20])


def copy_of(data: PreparedData, folder: Path) -> PreparedData:
    return open_prepared(shutil.copytree(data.directory, folder / "data", ignore=shutil.ignore_patterns(PLANS)))


def key_of(
    data: PreparedData, *, epoch: int = 0, seed: int = 1, alpha: float | None = 0.3, longest: int = 128
) -> PlanKey:
    return synthetic.key_of(data, epoch=epoch, seed=seed, batch_tokens=600, longest=longest, alpha=alpha)


def cache_of(data: PreparedData) -> PlanCache:
    return PlanCache(data, fallback=data.directory.with_name("run"), beat=lambda: None)


def opened(data: PreparedData, key: PlanKey, *, num_workers: int = 1) -> EpochPlan:
    return cache_of(data).open(key, anew=True, num_workers=num_workers)


def sampled(data: PreparedData, *, epoch: int = 0, seed: int = 1, num_workers: int = 1) -> Rows:
    """The sampled ids of each sentence, for both sides."""
    return rows_of(opened(data, key_of(data, epoch=epoch, seed=seed), num_workers=num_workers))


def rows_of(found: EpochPlan | TokenPairs) -> Rows:
    pairs = found.sampled_pairs if isinstance(found, EpochPlan) else found
    assert pairs is not None
    return [sentences(side) for side in (pairs.src, pairs.tgt)]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process beside this one begins a plan, and samples once this file is there."""
    go = tmp_path / "go"
    code = f"""
import time
from pathlib import Path
from nmt_cli.dataset import plan_cache
sample = plan_cache.sample_pieces
def sample_later(*arguments, **options):
    while not Path({str(go)!r}).exists():
        time.sleep(0.01)
    sample(*arguments, **options)
plan_cache.sample_pieces = sample_later
run_worker()"""
    monkeypatch.setattr(processes, "_WORKER_CODE", processes._WORKER_CODE.replace("run_worker()", code))
    return go


def share_of_others(rows: Rows, others: Rows) -> float:
    """The share of sentences whose ids differ."""
    return float(
        np.mean([a != b for one, other in zip(rows, others, strict=True) for a, b in zip(one, other, strict=True)])
    )


def test_each_epoch_has_the_same_text_in_other_pieces(data: PreparedData) -> None:
    ids = rows_of(data.split("train"))
    first, second = sampled(data), sampled(data, epoch=1)
    for side, file in enumerate((data.source_tokenizer_file, data.target_tokenizer_file)):
        decode = Tokenizer.load(file).decode
        assert decode(first[side]) == decode(second[side]) == decode(ids[side])
        assert {row[-1] for row in first[side]} == {EOS}
    assert min(share_of_others(*two) for two in ((first, ids), (second, ids), (first, second))) > 0.95
    assert share_of_others(sampled(data, seed=2), first) > 0.95


def test_the_pieces_do_not_depend_on_processes_or_on_what_was_sampled_before(data: PreparedData) -> None:
    expected = sampled(data, epoch=3)
    sampled(data, epoch=5)
    assert sampled(data, epoch=3) == expected
    assert sampled(data, epoch=3, num_workers=2) == expected


def test_the_pieces_of_a_block_do_not_depend_on_other_blocks(bpe: PreparedData, tmp_path: Path) -> None:
    shorter = prepare_tiny(tmp_path, f"tokenizer.taken_from={bpe.directory}", train=PAIRS[20:2100], valid=PAIRS[:20])
    whole, part = rows_of(bpe.split("train")), rows_of(shorter.split("train"))
    assert [side[:BLOCK_PAIRS] for side in part] == [side[:BLOCK_PAIRS] for side in whole]
    assert [side[:BLOCK_PAIRS] for side in sampled(shorter)] == [side[:BLOCK_PAIRS] for side in sampled(bpe)]


def test_a_process_beside_this_one_builds_the_very_plan(bpe: PreparedData, tmp_path: Path) -> None:
    data = copy_of(bpe, tmp_path)
    key, cache = key_of(data, epoch=1), cache_of(data)
    cache.open(key_of(data), anew=False)
    cache.build_ahead(key, num_workers=2)
    plan = data.directory / PLANS / key.directory_name
    wait_until(plan.exists)
    cache.close()
    expected = opened(bpe, key).directory
    for file in expected.iterdir():
        assert (plan / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_plan_that_another_process_begins_is_waited_for(bpe: PreparedData, tmp_path: Path, go: Path) -> None:
    data = copy_of(bpe, tmp_path)
    key, cache = key_of(data), cache_of(data)
    cache.build_ahead(key, num_workers=1)
    partial = data.directory / PLANS / f".{key.directory_name}.partial"
    wait_until(partial.exists)
    made, beats = partial.stat().st_ino, []

    def beat() -> None:  # the watchdog of the ranks hears of it
        beats.append(1)
        go.touch()

    waiting = PlanCache(data, fallback=data.directory.with_name("run"), beat=beat)
    assert waiting.open(key, anew=False).directory.stat().st_ino == made
    assert beats
    cache.close()


def test_a_builder_that_makes_no_progress_is_not_reported_as_progress(
    bpe: PreparedData, tmp_path: Path, go: Path
) -> None:
    """So the watchdog of the ranks notices it."""
    data = copy_of(bpe, tmp_path)
    key, cache = key_of(data), cache_of(data)
    cache.build_ahead(key, num_workers=1)
    wait_until((data.directory / PLANS / f".{key.directory_name}.partial").exists)
    beats: list[int] = []
    waiting = PlanCache(data, fallback=data.directory.with_name("run"), beat=lambda: beats.append(1))
    thread = Thread(target=waiting.open, args=[key], kwargs={"anew": False})
    thread.start()
    wait_until(lambda: len(beats) > 0)
    time.sleep(0.5)
    assert len(beats) == 1, "when it begins to wait"
    go.touch()
    thread.join(timeout=60)
    assert len(beats) > 1
    cache.close()


@pytest.mark.usefixtures("go")
def test_after_a_kill_while_it_samples_the_same_pieces_are_sampled(
    bpe: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, before = copy_of(bpe, tmp_path), children(os.getpid())
    key, cache = key_of(data), cache_of(data)
    cache.build_ahead(key, num_workers=1)
    partial = data.directory / PLANS / f".{key.directory_name}.partial"
    wait_until(partial.exists)
    for process in children(os.getpid()) - before:
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: bool(caplog.records))
    assert [path.name for path in partial.parent.iterdir() if not path.name.endswith(".lock")] == [partial.name]
    assert rows_of(opened(data, key)) == sampled(bpe)
    assert not partial.exists()


@pytest.mark.parametrize("is_beside", [True, False])
@pytest.mark.usefixtures("go")
def test_a_cache_that_is_closed_samples_no_more_and_leaves_nothing(
    bpe: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_beside: bool
) -> None:
    """Also if a thread waits for the process beside it, or samples itself."""
    data, before = copy_of(bpe, tmp_path), children(os.getpid())
    key, cache, ends = key_of(data), cache_of(data), list[str]()
    partial = data.directory / PLANS / f".{key.directory_name}.partial"

    def sample_once_closed(*arguments: Any, **options: Any) -> None:
        wait_until(lambda: cache._is_closed)
        sample_pieces(*arguments, **options)

    def load() -> None:
        with pytest.raises(CacheClosed):
            cache.open(key, anew=False, num_workers=1)
        ends.append("closed")

    monkeypatch.setattr(plan_cache, "sample_pieces", sample_once_closed)
    thread = Thread(target=load)
    if is_beside:
        cache.build_ahead(key, num_workers=1)
        wait_until(partial.exists)
    thread.start()
    wait_until(partial.exists)
    cache.close()
    thread.join(timeout=60)
    assert ends == ["closed"]
    cache.build_ahead(key_of(data, epoch=1), num_workers=1)
    assert children(os.getpid()) == before
    assert [path.name for path in (data.directory / PLANS).iterdir()] == [".lock"]


def test_a_process_that_cannot_be_started_is_a_warning(
    bpe: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, limits = copy_of(bpe, tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    cache, lowest = cache_of(data), os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        for _ in range(3):
            cache.build_ahead(key_of(data), num_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [record.getMessage() for record in caplog.records] == [
        "the process that plans epoch 1 ahead has failed; training plans it when the epoch begins: Too many open files"
    ]
    assert rows_of(cache.open(key_of(data), anew=False)) == sampled(bpe)
    cache.close()


def test_a_plan_that_cannot_be_built_beside_the_training_is_a_warning_and_an_error_when_it_is_needed(
    bpe: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = copy_of(bpe, tmp_path)
    beside, run = data.directory / PLANS, data.directory.with_name("run") / PLANS
    for path in (beside, run):
        path.parent.mkdir(exist_ok=True)
        path.write_text("in the way")
    key, cache = key_of(data, epoch=1), cache_of(data)
    cache.build_ahead(key, num_workers=1)
    wait_until(lambda: bool(caplog.records))
    problem = f"the plan of the epoch can be written neither to {beside} nor to {run}: File exists"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            f"the process that plans epoch 2 ahead has failed; training plans it when the epoch begins: {problem}",
        )
    ]
    with pytest.raises(DataError) as caught:
        cache.open(key, anew=False)
    assert (caught.value.message, caught.value.hint) == (
        problem,
        "free some space there, or choose another folder with -o",
    )
    beside.unlink()
    assert rows_of(cache.open(key, anew=False)) == sampled(bpe, epoch=1)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda file: os.truncate(file, 100)])
def test_damaged_ids_are_sampled_anew(
    bpe: PreparedData, tmp_path: Path, damage: Callable[[Path], None], side: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = copy_of(bpe, tmp_path)
    key, cache = key_of(data), cache_of(data)
    plan = cache.open(key, anew=False)
    expected = rows_of(plan)
    plan.close()
    damage(plan.directory / f"sampled.{side}.ids")
    assert rows_of(cache.open(key, anew=False)) == expected
    (warning,) = {record.getMessage() for record in caplog.records if record.levelno == logging.WARNING}
    assert warning.startswith(f"the plan {plan.directory.name}: ")
    assert warning.endswith(": it is built anew")


def test_a_disk_that_is_full_while_it_samples_leaves_nothing_there(
    bpe: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = copy_of(bpe, tmp_path)
    key, original = key_of(data), TokenWriter.append

    def full_after_a_block(self: TokenWriter, ids: np.ndarray, lengths: np.ndarray) -> None:
        if self.sentences > 0 and str(data.directory) in self._ids.name:
            raise OSError(28, "No space left on device")
        original(self, ids, lengths)

    monkeypatch.setattr(TokenWriter, "append", full_after_a_block)
    plan = opened(data, key)
    assert plan.directory.parent == data.directory.with_name("run") / PLANS
    assert rows_of(plan) == sampled(bpe)
    assert [path.name for path in (data.directory / PLANS).iterdir()] == [".lock"]


def test_a_worker_that_is_killed_is_an_error_that_says_what_to_do(
    bpe: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_WORKER_CODE", "import time; time.sleep(600)")  # no end before the kill
    data = copy_of(bpe, tmp_path)
    before = children(os.getpid())

    def kill() -> None:
        wait_until(lambda: len(children(os.getpid()) - before) > 0)
        for process in children(os.getpid()) - before:
            os.kill(process, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    with pytest.raises(DataError) as caught:
        opened(data, key_of(data), num_workers=2)
    killer.join()
    assert caught.value.message == "a worker process was killed (SIGKILL)"
    assert caught.value.hint == "if memory ran out, end other programs, then give the same command again: it continues"
    assert [path.name for path in (data.directory / PLANS).iterdir()] == [".lock"]


def test_words_that_their_text_does_not_give_back_keep_their_ids(bpe: PreparedData, tmp_path: Path) -> None:
    data = copy_of(bpe, tmp_path)
    pairs = data.split("train")
    ids = np.memmap(data.directory / "train.source.ids", dtype="<u2", mode="r+")
    begins = pairs.src.read_offsets(0, 4)
    ids[begins[0]] = UNK
    byte = Tokenizer.load(data.source_tokenizer_file).byte_ids
    ids[begins[1]] = byte[ord("\n")]
    ids[begins[2] : begins[3] - 1] = byte[ord("d")]  # of which the text "ddd" is not made
    ids.flush()
    before, after = rows_of(open_prepared(data.directory).split("train")), sampled(data)
    assert [row[0] for row in after[0][:2]] == [UNK, byte[ord("\n")]]
    assert after[0][2] == before[0][2]
    assert share_of_others([after[0][3:]], [before[0][3:]]) > 0.95


def test_sampling_leaves_out_no_pair_and_makes_none_too_long(bpe: PreparedData) -> None:
    pairs = bpe.split("train")
    size = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    limit = int(np.median(size))
    taken = np.flatnonzero(size <= limit)
    plan = opened(bpe, key_of(bpe, longest=limit))
    rows = np.concatenate([plan.rows(index) for index in range(len(plan))])
    assert sorted(rows["pair"].tolist()) == taken.tolist()
    assert plan.invariants.num_pairs_left_out == len(size) - len(taken)
    assert max(rows["src_length"].max(), rows["tgt_length"].max()) == limit == plan.invariants.max_tokens_in_sentence


def test_the_plan_is_made_of_the_sampled_lengths_and_its_invariants_are_those_of_all_epochs(data: PreparedData) -> None:
    plans = [opened(data, key_of(data, epoch=epoch)) for epoch in range(3)]
    assert len({plan.invariants.model_dump_json() for plan in plans}) == 1
    plain = opened(data, key_of(data, alpha=None))
    assert len(plans[0]) > 1.1 * len(plain)
    for plan in plans:
        pairs = plan.sampled_pairs
        assert pairs is not None
        assert max(pairs.src.lengths.max(), pairs.tgt.lengths.max()) <= plan.invariants.max_tokens_in_sentence
        totals = []
        for index in range(len(plan)):
            rows = plan.rows(index)
            numbers = rows["pair"].astype(np.int64)
            for side, tokens in (("src", pairs.src), ("tgt", pairs.tgt)):
                assert (rows[f"{side}_length"] == tokens.lengths[numbers]).all()
                assert (rows[f"{side}_start"] == tokens.offsets[numbers]).all()
            totals.append([int(rows[f"{side}_length"].sum()) for side in ("src", "tgt")])
        most = np.max(totals, axis=0)
        assert most[0] <= plan.invariants.budgets.src
        assert most[1] <= plan.invariants.budgets.tgt
        # The sides of an update fill together, since the budgets follow from the expected lengths.
        fill = np.mean(totals, axis=0) / [plan.invariants.budgets.src, plan.invariants.budgets.tgt]
        assert fill.min() > 0.93


def test_what_all_epochs_share_is_expected_once(
    bpe: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def noted(*arguments: Any, **options: Any) -> SamplingCost:
        calls.append(options["seed"])
        return measure_sampling_cost(*arguments, **options)

    monkeypatch.setattr(plan_cache, "measure_sampling_cost", noted)
    cache = cache_of(copy_of(bpe, tmp_path))
    plans = [cache.open(key_of(bpe, epoch=epoch), anew=False, num_workers=1) for epoch in range(3)]
    assert calls == [1]
    assert rows_of(plans[2]) == sampled(bpe, epoch=2)
    cache.open(key_of(bpe, seed=2), anew=False, num_workers=1)
    assert calls == [1, 1, 2]


def without_merges(model: bytes) -> bytes:
    pieces = [piece for piece in read_pieces(model) if piece.kind != NORMAL or len(piece.text) == 1]
    return with_pieces(model, pieces, has_bytes=True)


@pytest.mark.parametrize(
    ("kind", "sampling", "change", "message", "hint"),
    [
        (
            "unigram",
            SubwordSampling(dropout=0.1),
            bytes,
            "tokenizer.dropout is for BPE vocabularies, but the data has a unigram one",
            "--set tokenizer.dropout=0 --set tokenizer.sampling=0.2",
        ),
        (
            "bpe",
            SubwordSampling(sampling=0.2),
            bytes,
            "tokenizer.sampling is for unigram vocabularies, but the data has a BPE one",
            "--set tokenizer.sampling=null --set tokenizer.dropout=0.05",
        ),
        (
            "bpe",
            SubwordSampling(dropout=0.1),
            without_merges,
            "tokenizer.dropout has nothing to choose: each piece of the vocabulary is a single character",
            "--set tokenizer.dropout=0",
        ),
    ],
)
def test_a_vocabulary_that_cannot_be_sampled_so_is_refused(
    tmp_path: Path, kind: str, sampling: SubwordSampling, change: Callable[[bytes], bytes], message: str, hint: str
) -> None:
    data = prepare_tiny(tmp_path, f"tokenizer.kind={kind}", "tokenizer.vocab_size=350")
    for file in (data.source_tokenizer_file, data.target_tokenizer_file):
        file.write_bytes(change(file.read_bytes()))
    check_sampling(data, SubwordSampling())
    with pytest.raises(RecipeError) as caught:
        check_sampling(data, sampling)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.where == str(data.source_tokenizer_file)
