from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from nmt_cli.languages import parse_languages
from nmt_cli.preparing.corpus import LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files
from tests.preparing.corpus_files import Pairs, contents, invented_pairs, refusal, run, training_pairs


def of_tsv(folder: Path, pairs: Pairs, *overrides: str) -> LocatedCorpus:
    """A corpus of one TSV file without validation text, with a vocabulary of 400."""
    file = folder / "my.tsv"
    file.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    settings = ["tokenizer.vocab_size=400", "cleaning.max_length_ratio=null", *overrides]
    return corpus_from_files({"train": [str(file)]}, languages="en-de", name="my", overrides=settings)


def split_of(data: Path, split: str) -> list[tuple[str, str]]:
    """The pairs of a held-out split as raw text."""
    src, tgt = ((data / f"{split}.{code}").read_text().splitlines() for code in ("en", "de"))
    return list(zip(src, tgt, strict=True))


def with_shared_sides() -> list[tuple[str, str]]:
    """600 pairs of which every fourth has the source of the pair before it, and every seventh is there twice."""
    pairs = invented_pairs(600, seed=5)
    pairs = [(pairs[place - 1][0] if place % 4 == 3 else src, tgt) for place, (src, tgt) in enumerate(pairs)]
    return [pair for place, pair in enumerate(pairs) for _ in range(2 if place % 7 == 0 else 1)]


def test_a_split_takes_clean_pairs_and_no_sentence_is_on_both_sides(tmp_path: Path) -> None:
    pairs = with_shared_sides()
    dirty = [("", "leer"), ("same", "same"), ("a\x07b c d", "e f g h")] * 5
    prepared = run(of_tsv(tmp_path, [*pairs, *dirty], "valid_size=60", "test_size=40"), tmp_path / "data")
    valid, test = (split_of(prepared.directory, split) for split in ("valid", "test"))
    train = training_pairs(prepared)
    assert (len(valid), len(test)) == (60, 40)
    assert len({*valid, *test}) == 100
    assert {*valid, *test} <= {*pairs}
    for side in (0, 1):
        texts = [Counter(pair[side] for pair in split) for split in (valid, test, train)]
        assert not texts[0] & texts[1]
        assert not texts[2] & (texts[0] + texts[1])
    held = [{pair[side] for pair in [*valid, *test]} for side in (0, 1)]
    assert {*train} == {pair for pair in pairs if pair[0] not in held[0] and pair[1] not in held[1]}
    cleaning = prepared.report["cleaning"]
    assert cleaning["kept"] == len(train) == prepared.report["pairs"]["train"]
    assert cleaning["read"] == len(pairs) + len(dirty) - 100
    shared = cleaning["dropped"]["in validation or test text"]["count"]
    assert shared == len({*pairs}) - 100 - len(train) > 0


def test_a_limit_is_told_of_if_pairs_are_set_aside(tmp_path: Path) -> None:
    for limit, is_told in ((300, True), (400, False), (401, False)):
        run(of_tsv(tmp_path, invented_pairs(399, seed=5), f"limit={limit}"), tmp_path / f"data-{limit}")
        page = (tmp_path / f"data-{limit}" / "report.html").read_text()
        assert (f"This is a try: no more than the first {limit} training pairs were read" in page) == is_told


def test_the_held_out_pairs_stand_in_the_order_of_the_text(tmp_path: Path) -> None:
    pairs = invented_pairs(500, seed=5)
    run(of_tsv(tmp_path, pairs, "valid_size=50"), tmp_path / "data")
    places = [pairs.index(pair) for pair in split_of(tmp_path / "data", "valid")]
    assert places == sorted(places)
    # A choice by hash is spread over the text: of 50 places, no half of the text has more than 40 (5 sigma).
    assert 10 <= sum(place < 250 for place in places) <= 40


def test_the_choice_depends_on_text_and_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 50)
    pairs = with_shared_sides()
    run(of_tsv(tmp_path, pairs, "valid_size=50"), tmp_path / "one", num_workers=1)
    run(of_tsv(tmp_path, pairs, "valid_size=50"), tmp_path / "two", num_workers=2)
    run(of_tsv(tmp_path, pairs, "valid_size=50", "test_size=20"), tmp_path / "tested")
    run(of_tsv(tmp_path, pairs, "valid_size=50", "split_seed=2"), tmp_path / "seed")
    run(of_tsv(tmp_path, pairs[::-1], "valid_size=50"), tmp_path / "reversed")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one == two
    valid = {*split_of(tmp_path / "one", "valid")}
    assert {*split_of(tmp_path / "tested", "valid")} == valid
    assert len({*split_of(tmp_path / "seed", "valid")} & valid) < 25
    assert {*split_of(tmp_path / "reversed", "valid")} == valid


def test_without_validation_text_a_tenth_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    located = of_tsv(tmp_path, invented_pairs(450, seed=5))
    run(located, tmp_path / "data")
    assert len(split_of(tmp_path / "data", "valid")) == 45
    assert "set aside: 45 clean pairs as validation text" in caplog.messages
    assert located.corpus.size_of("valid", clean_pairs=1_000_000) == 2_000
    assert run(located, tmp_path / "data").was_finished


@pytest.mark.parametrize(
    ("sizes", "message", "flags", "own_text"),
    [
        (["valid_size=5000"], "valid_size 5,000 is more", "--valid-size 40", "--valid FILE"),
        (
            ["valid_size=150", "test_size=51"],
            "valid_size 150 and test_size 51 are together more",
            "--valid-size 40 --test-size 40",
            "--valid FILE --test FILE",
        ),
    ],
)
def test_a_validation_size_that_leaves_too_little_is_refused_with_one_that_fits(
    tmp_path: Path, sizes: list[str], message: str, flags: str, own_text: str
) -> None:
    located = of_tsv(tmp_path, invented_pairs(400, seed=5), *sizes)
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message == f"{message} than half of the 400 clean training pairs"
    assert error.hint == f"{flags}, or text in files of its own: {own_text}"
    assert not (tmp_path / "data").exists()
    fitting = [f"{flag.removeprefix('--').replace('-', '_')}=40" for flag in flags.split() if flag.startswith("--")]
    run(of_tsv(tmp_path, invented_pairs(400, seed=5), *fitting), tmp_path / "data")
    assert len(split_of(tmp_path / "data", "valid")) == 40


def test_pairs_that_all_share_sentences_cannot_be_split(tmp_path: Path) -> None:
    pairs = [(src, tgt) for src, _ in invented_pairs(20, seed=5) for _, tgt in invented_pairs(20, seed=5)]
    error = refusal(lambda: run(of_tsv(tmp_path, pairs, "valid_size=40"), tmp_path / "data"))
    assert error.message == "40 training pairs are to be set aside, and only 20 have no sentence in common"
    assert error.hint == "--valid-size 2, or text in files of its own: --valid FILE"
    run(of_tsv(tmp_path, pairs, "valid_size=1", "test_size=2"), tmp_path / "data")


@pytest.mark.parametrize(
    ("reason", "pair", "rules", "hint"),
    [
        ("empty", ("blank", " "), [], "look at that line"),
        (
            "length ratio",
            ("a b c d", "abcdefgh"),
            ["cleaning.max_word_ratio=2"],
            "--set cleaning.max_length_ratio=null --set cleaning.max_word_ratio=null keeps them",
        ),
        (
            "other script",
            ("one two three", "один два три"),
            ["cleaning.other_script=true"],
            "name the script in the language code, as in sr_Latn, or: --set cleaning.other_script=false keeps them",
        ),
    ],
)
def test_the_settings_that_an_error_names_keep_the_pairs(
    tmp_path: Path, reason: str, pair: tuple[str, str], rules: list[str], hint: str
) -> None:
    located = of_tsv(tmp_path, [pair] * 200, *rules)
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message == f"no training pair is left after cleaning: 200 of 200 dropped for {reason}"
    assert not (tmp_path / "data.partial").exists()  # there is nothing to continue
    assert error.where == "my.tsv:1"
    assert error.hint == hint
    if code := re.search(r"as in ([\w-]+)", hint):
        assert parse_languages(f"en-{code[1]}") == ("en", code[1])
    if relaxed := re.findall(r"--set (\S+)", hint):
        again = refusal(lambda: run(of_tsv(tmp_path, [pair] * 200, *rules, *relaxed), tmp_path / "data"))
        assert again.message == (
            "valid_size 1 is more than half of the 1 clean training pairs; 199 of 200 were dropped for duplicate"
        )
        assert again.hint == "text in files of its own: --valid FILE"


def test_too_little_text_names_the_rule_that_dropped_most_of_it(tmp_path: Path) -> None:
    pairs = [("one two three", "eins zwei drei"), *((f"one{n}", f"eins{n}") for n in range(29))]
    error = refusal(lambda: run(of_tsv(tmp_path, pairs, "cleaning.min_words=3"), tmp_path / "data"))
    assert "1 clean training pairs; 29 of 30 were dropped for too short" in error.message
    assert "--set cleaning.min_words=" in error.hint


def test_pairs_that_all_share_a_sentence_with_those_set_aside_leave_nothing(tmp_path: Path) -> None:
    pairs = [("one dog", tgt) for _, tgt in invented_pairs(10, seed=5)]
    error = refusal(lambda: run(of_tsv(tmp_path, pairs), tmp_path / "data"))
    assert error.message == ("no training pair is left after cleaning: 9 of 9 dropped for in validation or test text")
    assert error.hint == "give validation text in files of its own: --valid FILE"
