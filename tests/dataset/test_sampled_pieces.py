"""Sampled pieces: the same text in other pieces, which follow from the seed, the epoch and the pair alone."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from nmt_cli import processes
from nmt_cli.dataset import sampled_pieces
from nmt_cli.dataset.plan_computation import EpochInvariants, compute_plan, expected_invariants
from nmt_cli.dataset.prepared_data import PreparedData, TokenPairs, TokenWriter, open_prepared
from nmt_cli.dataset.sampled_pieces import (
    BLOCK_PAIRS,
    SAMPLED,
    SampledPieces,
    SamplingStopped,
    check_sampling,
    measure_sampling_cost,
)
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import SubwordSampling
from nmt_cli.tokenization.tokenizer import EOS, UNK, Tokenizer
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


def invariants_of(data: PreparedData, *, longest: int = 128, seed: int = 1) -> EpochInvariants:
    cost = measure_sampling_cost(data, alpha=0.3, seed=seed, max_positions=longest)
    return expected_invariants(data.split("train"), batch_tokens=600, max_positions=longest, cost=cost, mixture=None)


def pieces_of(
    data: PreparedData,
    folder: Path,
    *,
    seed: int = 1,
    longest: int = 128,
    beat: Callable[[], None] = lambda: None,
) -> SampledPieces:
    longest = invariants_of(data, longest=longest, seed=seed).max_tokens_in_sentence
    return SampledPieces(data, folder / SAMPLED, alpha=0.3, seed=seed, max_tokens_in_sentence=longest, beat=beat)


@pytest.fixture
def sampled(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rows]:
    """The sampled ids of each sentence, for both sides, sampled in a new folder by some processes."""

    def sample(data: PreparedData, *, epoch: int = 0, seed: int = 1, num_workers: int = 1) -> Rows:
        monkeypatch.setattr(sampled_pieces, "num_cpus", lambda: num_workers)
        return rows_of(pieces_of(data, tmp_path_factory.mktemp("run"), seed=seed).open(epoch))

    return sample


def rows_of(pairs: TokenPairs) -> Rows:
    return [sentences(side) for side in (pairs.src, pairs.tgt)]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that sample wait until this file is there."""
    go = tmp_path / "go"
    code = f"""
import time
from pathlib import Path
while not Path({str(go)!r}).exists():
    time.sleep(0.01)
run_worker()"""
    monkeypatch.setattr(processes, "_WORKER_CODE", processes._WORKER_CODE.replace("run_worker()", code))
    return go


def share_of_others(rows: Rows, others: Rows) -> float:
    """The share of sentences whose ids differ."""
    return float(
        np.mean([a != b for one, other in zip(rows, others, strict=True) for a, b in zip(one, other, strict=True)])
    )


def test_each_epoch_has_the_same_text_in_other_pieces(data: PreparedData, sampled: Callable[..., Rows]) -> None:
    ids = rows_of(data.split("train"))
    first, second = sampled(data), sampled(data, epoch=1)
    for side, file in enumerate((data.source_tokenizer_file, data.target_tokenizer_file)):
        decode = Tokenizer.load(file).decode
        assert decode(first[side]) == decode(second[side]) == decode(ids[side])
        assert {row[-1] for row in first[side]} == {EOS}
    assert min(share_of_others(*two) for two in ((first, ids), (second, ids), (first, second))) > 0.95
    assert share_of_others(sampled(data, seed=2), first) > 0.95
    assert sampled(data, epoch=1, num_workers=2) == second, "however many processes sample, and whatever came before"


def test_the_pieces_of_a_block_do_not_depend_on_other_blocks(
    bpe: PreparedData, tmp_path: Path, sampled: Callable[..., Rows]
) -> None:
    shorter = prepare_tiny(tmp_path, f"tokenizer.taken_from={bpe.directory}", train=PAIRS[20:2100], valid=PAIRS[:20])
    whole, part = rows_of(bpe.split("train")), rows_of(shorter.split("train"))
    assert [side[:BLOCK_PAIRS] for side in part] == [side[:BLOCK_PAIRS] for side in whole]
    assert [side[:BLOCK_PAIRS] for side in sampled(shorter)] == [side[:BLOCK_PAIRS] for side in sampled(bpe)]


def test_the_next_epoch_is_sampled_ahead_and_the_one_before_is_removed(
    bpe: PreparedData, tmp_path: Path, sampled: Callable[..., Rows]
) -> None:
    beats: list[int] = []
    pieces = pieces_of(bpe, tmp_path, beat=lambda: beats.append(1))
    for epoch in range(3):
        pieces.open(epoch)
        before = len(beats)
        pieces.sample_ahead(epoch + 1, num_workers=2)
        wait_until((tmp_path / SAMPLED / f"epoch-{epoch + 1:05}").exists)
        assert len(beats) == before > 0, "the watchdog of the ranks must notice a training that hangs meanwhile"
    assert rows_of(pieces.open(3)) == sampled(bpe, epoch=3)
    assert sorted(path.name for path in (tmp_path / SAMPLED).glob("epoch-*")) == ["epoch-00002", "epoch-00003"]
    pieces.close()


def test_an_epoch_that_another_process_samples_is_waited_for_as_long_as_it_makes_progress(
    bpe: PreparedData, tmp_path: Path, go: Path, sampled: Callable[..., Rows]
) -> None:
    beats: list[int] = []
    other = pieces_of(bpe, tmp_path)
    other.sample_ahead(0, num_workers=2)
    wait_until((tmp_path / SAMPLED / ".epoch-00000.partial").exists)
    waiting = pieces_of(bpe, tmp_path, beat=lambda: beats.append(1))
    found: list[TokenPairs] = []
    thread = Thread(target=lambda: found.append(waiting.open(0)))
    thread.start()
    wait_until(lambda: len(beats) > 0)
    time.sleep(1)
    assert len(beats) <= 2, "only when it begins to wait, so the watchdog of the ranks notices it"
    made = (tmp_path / SAMPLED / ".epoch-00000.partial").stat().st_ino
    go.touch()
    thread.join(timeout=60)
    assert (tmp_path / SAMPLED / "epoch-00000").stat().st_ino == made
    assert rows_of(found[0]) == sampled(bpe)
    other.close()


def test_when_it_is_closed_nothing_is_sampled_any_more_and_nothing_is_left(
    bpe: PreparedData, tmp_path: Path, go: Path
) -> None:
    """Neither by other processes nor by a thread that waits for those of another rank."""
    pieces, other_rank, ends = pieces_of(bpe, tmp_path), pieces_of(bpe, tmp_path), list[str]()
    partial = tmp_path / SAMPLED / ".epoch-00000.partial"

    def load() -> None:
        with pytest.raises(SamplingStopped):
            other_rank.open(0)
        ends.append("closed")

    pieces.sample_ahead(0, num_workers=2)
    wait_until(partial.exists)
    thread = Thread(target=load)
    thread.start()
    other_rank.close()
    thread.join(timeout=60)
    assert ends == ["closed"]
    pieces.close()
    go.touch()
    wait_until(lambda: not partial.exists())
    assert all(path.name.endswith(".lock") for path in (tmp_path / SAMPLED).iterdir())


def test_a_full_disk_is_an_error_that_leaves_nothing_there(
    bpe: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TokenWriter.append

    def full_after_a_block(self: TokenWriter, ids: np.ndarray, lengths: np.ndarray) -> None:
        if self.tokens > 0:
            raise OSError(28, "No space left on device")
        original(self, ids, lengths)

    monkeypatch.setattr(TokenWriter, "append", full_after_a_block)
    with pytest.raises(DataError) as caught:
        pieces_of(bpe, tmp_path).open(0)
    assert caught.value.message == "cannot write epoch-00000: the disk is full"
    assert caught.value.hint == "free some space, then give the same command again"
    assert [path.name for path in (tmp_path / SAMPLED).iterdir()] == [".lock"]


def test_a_worker_that_is_killed_is_an_error_and_the_same_command_samples_the_same(
    bpe: PreparedData, tmp_path: Path, go: Path, sampled: Callable[..., Rows]
) -> None:
    before, pieces = children(os.getpid()), pieces_of(bpe, tmp_path)
    pieces.sample_ahead(0, num_workers=2)
    wait_until(lambda: len(children(os.getpid()) - before) > 0)
    for process in children(os.getpid()) - before:
        os.kill(process, signal.SIGKILL)
    go.touch()
    with pytest.raises(DataError) as caught:
        pieces.open(0)
    assert caught.value.message == "a worker process was killed (SIGKILL)"
    assert caught.value.hint == "if memory ran out, end other programs, then give the same command again: it continues"
    assert rows_of(pieces_of(bpe, tmp_path).open(0)) == sampled(bpe)


def test_words_that_their_text_does_not_give_back_keep_their_ids(
    bpe: PreparedData, tmp_path: Path, sampled: Callable[..., Rows]
) -> None:
    data = open_prepared(shutil.copytree(bpe.directory, tmp_path / "data"))
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


def test_sampling_leaves_out_no_pair_and_makes_none_too_long(bpe: PreparedData, tmp_path: Path) -> None:
    pairs = bpe.split("train")
    size = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    limit = int(np.median(size))
    invariants = invariants_of(bpe, longest=limit)
    assert invariants.num_pairs_left_out == np.count_nonzero(size > limit)
    assert invariants.max_tokens_in_sentence == limit
    sampled = pieces_of(bpe, tmp_path, longest=limit).open(0)
    sampled_size = np.maximum(sampled.src.lengths, sampled.tgt.lengths)
    assert (sampled_size[size <= limit] <= limit).all()
    assert sampled_size[size <= limit].max() == limit
    plan = compute_plan(
        sampled, batch_tokens=600, max_positions=limit, seed=1, epoch=0, invariants=invariants, mixture=None
    )
    assert sorted(plan.pair_order.tolist()) == np.flatnonzero(size <= limit).tolist()


def test_the_budgets_follow_from_the_expected_lengths_so_both_sides_fill_in_all_epochs(
    data: PreparedData, tmp_path: Path
) -> None:
    invariants, pieces = invariants_of(data), pieces_of(data, tmp_path)
    for epoch in range(2):
        pairs = pieces.open(epoch)
        assert max(pairs.src.lengths.max(), pairs.tgt.lengths.max()) <= invariants.max_tokens_in_sentence
        plan = compute_plan(
            pairs, batch_tokens=600, max_positions=128, seed=1, epoch=epoch, invariants=invariants, mixture=None
        )
        updates = [pairs.rows(plan.pairs_of_update(index)) for index in range(len(plan))]
        totals = np.array([[rows["src_length"].sum(), rows["tgt_length"].sum()] for rows in updates])
        budgets = [invariants.budgets.src, invariants.budgets.tgt]
        assert (totals.max(axis=0) <= budgets).all()
        assert (totals.mean(axis=0) / budgets).min() > 0.93


@pytest.mark.parametrize(
    ("kind", "sampling", "message", "hint"),
    [
        (
            "unigram",
            SubwordSampling(dropout=0.1),
            "tokenizer.dropout is for BPE vocabularies, but the data has a unigram one",
            "--set tokenizer.dropout=0 --set tokenizer.sampling=0.2",
        ),
        (
            "bpe",
            SubwordSampling(sampling=0.2),
            "tokenizer.sampling is for unigram vocabularies, but the data has a BPE one",
            "--set tokenizer.sampling=null --set tokenizer.dropout=0.05",
        ),
    ],
)
def test_a_vocabulary_that_cannot_be_sampled_so_is_refused(
    tmp_path: Path, kind: str, sampling: SubwordSampling, message: str, hint: str
) -> None:
    data = prepare_tiny(tmp_path, f"tokenizer.kind={kind}", "tokenizer.vocab_size=350")
    check_sampling(data, SubwordSampling())
    with pytest.raises(RecipeError) as caught:
        check_sampling(data, sampling)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.where == str(data.source_tokenizer_file)
