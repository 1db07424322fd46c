"""Sampled pieces: the same text in other pieces, drawn from the seed, the epoch and the pair, and from nothing else."""

from __future__ import annotations

import pytest

from nmt_cli.dataset import sampled_pieces
from nmt_cli.dataset.plan import EpochPlan, PlanKey
from nmt_cli.dataset.plan_folder import open_plan
from nmt_cli.dataset.store import PreparedData, TokenPairs
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.training.tiny import prepare_tiny

LONGEST = 128


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """400 pairs with a vocabulary of 350 pieces."""
    folder = tmp_path_factory.mktemp(request.param)
    return prepare_tiny(folder, f"tokenizer.kind={request.param}", "tokenizer.vocab_size=350")


def opened(
    data: PreparedData,
    *,
    epoch: int = 0,
    seed: int = 1,
    alpha: float | None = 0.3,
    num_workers: int = 1,
    max_positions: int = LONGEST,
) -> EpochPlan:
    counts = data.manifest.splits["train"]
    key = PlanKey(
        data=data.manifest.fingerprint,
        num_pairs=counts.pairs,
        src_tokens=counts.source_tokens,
        tgt_tokens=counts.target_tokens,
        batch_tokens=600,
        max_positions=max_positions,
        seed=seed,
        epoch=epoch,
        has_even_end=True,
        alpha=alpha,
    )
    return open_plan(data, key=key, fallback=data.directory / "unused", anew=True, num_workers=num_workers)


def sampled(
    data: PreparedData, *, epoch: int = 0, seed: int = 1, alpha: float = 0.3, num_workers: int = 1
) -> list[list[list[int]]]:
    """The sampled ids of each sentence, for both sides."""
    pairs = opened(data, epoch=epoch, seed=seed, alpha=alpha, num_workers=num_workers).pairs
    assert pairs is not None
    return rows_of(pairs)


def rows_of(pairs: TokenPairs) -> list[list[list[int]]]:
    return [[row.tolist() for row in side] for side in (pairs.src, pairs.tgt)]


def test_each_epoch_has_the_same_text_in_other_pieces(data: PreparedData) -> None:
    prepared = rows_of(data.split("train"))
    first, second = sampled(data), sampled(data, epoch=1)
    for side, file in enumerate((data.source_tokenizer_file, data.target_tokenizer_file)):
        tokenizer = Tokenizer.load(file)
        texts = tokenizer.decode(prepared[side])
        assert tokenizer.decode(first[side]) == tokenizer.decode(second[side]) == texts
        changed = [sum(a != b for a, b in zip(one, prepared[side], strict=True)) for one in (first[side], second[side])]
        assert min(changed) > 350
        assert sum(a != b for a, b in zip(first[side], second[side], strict=True)) > 350
        assert {row[-1] for row in first[side]} == {3}
    assert first != sampled(data, seed=2)


def test_the_pieces_follow_from_seed_epoch_and_pair_only(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_pieces, "_BLOCK_PAIRS", 50)
    expected = sampled(data, epoch=3)
    sampled(data, epoch=5)
    assert sampled(data, epoch=3) == expected
