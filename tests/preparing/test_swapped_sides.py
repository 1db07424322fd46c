from __future__ import annotations

import functools
import gzip
from itertools import islice
from pathlib import Path

import pytest

from nmt_cli.preparing.cleaning import swapped_sides
from nmt_cli.preparing.cleaning.swapped_sides import warning_of_swapped_sides
from nmt_cli.preparing.sources.base import CorpusLanguages
from tests.preparing.corpus_files import corpus_of_pairs, invented_pairs, run

Pairs = list[tuple[str, str]]
EN_DE = CorpusLanguages(source="en", target="de")

CORPORA = [
    ("multi30k/train", "multi30k/val", "de"),
    ("wmt14-sample/train", "newstest/newstest2013", "de"),
    ("wmt14-sample/train", "tatoeba-en-de/valid", "de"),
    ("tatoeba-en-de/test", "newstest/newstest2013", "de"),
    ("mix-en-de/train", "newstest/newstest2013", "de"),
    ("mix-en-fr/train", "newstest/newstest2013", "fr"),
]


@functools.cache
def read(folder: Path, prefix: str, language: str, *, number: int) -> Pairs:
    """Pairs spread over the first 30,000 of a corpus of English and another language."""
    sides = []
    for code in ("en", language):
        path = folder / f"{prefix}.{code}"
        with path.open("rb") if path.exists() else gzip.open(f"{path}.gz", "rb") as file:
            sides.append([line.decode().rstrip("\n") for line in islice(file, 30_000)])
    pairs = list(zip(*sides, strict=True))
    return [(src, tgt) for src, tgt in pairs[:: len(pairs) // number]][:number]


def with_swapped_sides(pairs: Pairs) -> Pairs:
    return [(tgt, src) for src, tgt in pairs]


@pytest.fixture(params=[True, False], ids=["with py3langid", "without"])
def has_identifier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        pytest.importorskip("py3langid")
    else:
        monkeypatch.setattr(swapped_sides, "find_spec", lambda name: None)
    return bool(request.param)


@pytest.mark.parametrize(("train", "valid", "language"), CORPORA)
def test_real_corpora_are_judged_right(
    shared_data: Path, train: str, valid: str, language: str, *, has_identifier: bool
) -> None:
    languages = CorpusLanguages(source="en", target=language)
    sample, held_out = read(shared_data, train, language, number=500), read(shared_data, valid, language, number=1000)
    for number in (50, 500):
        assert warning_of_swapped_sides(sample[:number], held_out, languages) is None
        warning = warning_of_swapped_sides(with_swapped_sides(sample[:number]), held_out, languages)
        assert warning is not None
        assert warning.startswith("the two sides of the training text seem to be swapped")
        assert warning.endswith("give its two files, columns or keys in the other order")


def test_the_text_that_is_swapped_is_named(shared_data: Path) -> None:
    pytest.importorskip("py3langid")
    train, valid = (read(shared_data, name, "de", number=300) for name in ("multi30k/train", "multi30k/val"))
    assert warning_of_swapped_sides(train, with_swapped_sides(valid), EN_DE) == (
        "the two sides of the validation text seem to be swapped: its source side is identified as de and its target "
        "side as en, unlike the training text; give its two files, columns or keys in the other order"
    )
    assert warning_of_swapped_sides(with_swapped_sides(train), with_swapped_sides(valid), EN_DE) == (
        "the languages seem to be given in the wrong order: they are en-de, and the source side of the training and "
        "validation text is identified as de, the target side as en"
    )
    assert (
        warning_of_swapped_sides(
            with_swapped_sides(train), with_swapped_sides(valid), CorpusLanguages(source="de", target="en")
        )
        is None
    )


def test_without_an_identifier_the_two_texts_are_compared(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapped_sides, "find_spec", lambda name: None)
    train, valid = (read(shared_data, name, "de", number=300) for name in ("multi30k/train", "multi30k/val"))
    for warning in (
        warning_of_swapped_sides(with_swapped_sides(train), valid, EN_DE),
        warning_of_swapped_sides(train, with_swapped_sides(valid), EN_DE),
    ):
        assert warning is not None
        assert "in 100% of 300 training pairs the source is more like the validation text's target" in warning
    assert warning_of_swapped_sides(with_swapped_sides(train), with_swapped_sides(valid), EN_DE) is None


def test_nothing_is_said_of_small_samples(*, has_identifier: bool) -> None:
    pairs = invented_pairs(200, seed=3)
    assert warning_of_swapped_sides(with_swapped_sides(pairs[:49]), pairs[100:], EN_DE) is None
    assert warning_of_swapped_sides(with_swapped_sides(pairs[:100]), pairs[100:149], EN_DE) is None
    assert warning_of_swapped_sides([], [], EN_DE) is None


def test_nothing_is_said_of_sides_that_are_alike(*, has_identifier: bool) -> None:
    words = [src for src, _ in invented_pairs(600, seed=4)]
    alike = list(zip(words[:300], words[300:], strict=True))
    for start in (0, 100, 150):
        assert warning_of_swapped_sides(with_swapped_sides(alike[start : start + 100]), alike[200:], EN_DE) is None
    empty = [("", "")] * 100
    assert warning_of_swapped_sides(empty, empty, EN_DE) is None
    assert warning_of_swapped_sides(empty, alike, EN_DE) is None


def test_languages_that_nothing_identifies_are_compared_all_the_same() -> None:
    klingon = CorpusLanguages(source="tlh", target="de")
    pairs = invented_pairs(200, seed=5)  # told apart by their last characters
    assert warning_of_swapped_sides(pairs[:100], pairs[100:], klingon) is None
    assert warning_of_swapped_sides(with_swapped_sides(pairs[:100]), pairs[100:], klingon) is not None


@pytest.mark.parametrize("rules", [[], ["cleaning.other_language=true"]], ids=["default rules", "other_language"])
def test_preparing_swapped_text_warns_in_the_log_and_in_the_report(
    shared_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, rules: list[str]
) -> None:
    if rules:
        pytest.importorskip("py3langid")
    train = with_swapped_sides(read(shared_data, "multi30k/train", "de", number=600))
    valid = read(shared_data, "multi30k/val", "de", number=100)
    prepared = run(corpus_of_pairs(tmp_path, *rules, train=train, valid=valid), tmp_path / "data")
    (warning,) = prepared.report["warnings"]
    assert "the two sides of the training text seem to be swapped" in warning
    assert warning in caplog.text
    assert warning in (prepared.directory / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
