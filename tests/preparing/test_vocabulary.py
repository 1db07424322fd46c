from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.dataset.store import SIDES, open_prepared
from nmt_cli.errors import DataError
from nmt_cli.preparing import shards
from nmt_cli.preparing.reading import readers
from nmt_cli.preparing.sources.fetching import fetch
from nmt_cli.preparing.text import CleanText, write_clean_text
from nmt_cli.preparing.vocabulary import sample
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.preparing.corpus_files import invented_pairs, run, silent, small_corpus

PAIRS = invented_pairs(640, seed=7)[40:]  # the training text of `small_corpus`


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CleanText:
    """600 pairs in 8 pieces, without duplicates."""
    monkeypatch.setattr(readers, "CHUNK_PAIRS", 40)
    monkeypatch.setattr(shards, "SHARD_CHUNKS", 2)
    located = small_corpus(tmp_path)
    (tmp_path / "clean").mkdir()
    sources = fetch(located, progress=silent).sources
    write_clean_text(located.corpus, sources, tmp_path / "clean", num_workers=1, progress=silent)
    return CleanText(tmp_path / "clean")


def test_a_sample_of_everything_is_the_text(text: CleanText) -> None:
    lines = [line.decode() for line in sample(text, SIDES, size=1200, seed=1)]
    assert lines == [src for src, _ in PAIRS] + [tgt for _, tgt in PAIRS]


def test_a_sample_is_drawn_by_its_seed_without_repeats_and_in_order(text: CleanText) -> None:
    drawn = list(sample(text, SIDES, size=301, seed=1))
    assert len(drawn) == len(set(drawn)) == 301
    order = {src: place for place, src in enumerate([src for src, _ in PAIRS] + [tgt for _, tgt in PAIRS])}
    places = [order[line.decode()] for line in drawn]
    assert places == sorted(places)
    assert drawn == list(sample(text, SIDES, size=301, seed=1))
    assert drawn != list(sample(text, SIDES, size=301, seed=2))


def test_every_line_is_drawn_as_likely(text: CleanText) -> None:
    draws, size = 300, 60
    counts = Counter(line for seed in range(draws) for line in sample(text, ["target"], size=size, seed=seed))
    expected = draws * size / 600
    numbers = np.array([counts[tgt.encode()] for _, tgt in PAIRS])
    # The sum of squared standard scores has a mean of about 600 and a standard deviation of about 35.
    assert ((numbers - expected) ** 2 / (expected * 0.9)).sum() == pytest.approx(600, abs=140)


def test_lines_that_are_taken_twice_can_be_drawn_twice(text: CleanText, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {number: text.copies(number) * 0 for number in range(8)}
    copies[3][[5, 9]] = (2, 1)
    monkeypatch.setattr(CleanText, "copies", lambda self, number: copies[number])
    whole = [PAIRS[245][0].encode(), PAIRS[245][0].encode(), PAIRS[249][0].encode()]
    assert list(sample(text, ["source"], size=3, seed=1)) == whole
    assert {tuple(sample(text, ["source"], size=2, seed=seed)) for seed in range(30)} == {
        tuple(whole[:2]),
        tuple(whole[1:]),
    }


def test_separate_tokenizers_are_trained_on_a_side_each(tmp_path: Path) -> None:
    report = run(
        small_corpus(tmp_path, "tokenizer.shared=false", "tokenizer.sample_lines=400"), tmp_path / "data"
    ).report
    for side in SIDES:
        assert report["vocabulary"][side] == {"size": 400, "lines": 600, "sampled": 400, "skipped": 0}


def test_a_vocabulary_is_taken_as_it_is_and_its_contents_tell_preparations_apart(tmp_path: Path) -> None:
    first = run(small_corpus(tmp_path, "tokenizer.shared=false"), tmp_path / "first").directory
    taken = f"tokenizer.taken_from={first}"
    second = run(small_corpus(tmp_path, taken, pairs=300), tmp_path / "second").directory
    for side in SIDES:
        assert (second / f"{side}.spm").read_bytes() == (first / f"{side}.spm").read_bytes()
    assert not open_prepared(second).manifest.shared_vocabulary
    assert "taken from a model as it was" in (second / "report.html").read_text(encoding="utf-8")
    sources, _ = open_prepared(second).texts("valid")
    encoded = Tokenizer.load(first / "source.spm").encode(sources)
    assert [row.tolist()[:-1] for row in open_prepared(second).split("valid").src] == encoded
    assert run(small_corpus(tmp_path, taken, pairs=300), second).was_finished
    other = run(small_corpus(tmp_path, "tokenizer.vocab_size=500"), tmp_path / "other").directory
    with pytest.raises(DataError, match="holds other data"):
        run(small_corpus(tmp_path, f"tokenizer.taken_from={other}", pairs=300), second)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    located = small_corpus(tmp_path, "tokenizer.taken_from=nowhere")
    with pytest.raises(
        DataError, match=r"no source\.spm in nowhere, from which the vocabulary is to be taken"
    ) as error:
        run(located, tmp_path / "out")
    assert error.value.where == "tokenizer.taken_from"
