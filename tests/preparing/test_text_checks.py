"""Warnings of `nmt prepare`: text that is other than it should be is told, and raw text is never doubted."""

from __future__ import annotations

import functools
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from unicodedata import normalize

import pytest
import sacremoses

from nmt_cli.decompression import open_bytes
from nmt_cli.preparing.cleaning import text_checks
from nmt_cli.preparing.cleaning.text_checks import check_no_pieces, text_sides, warnings_of_unusual_text
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.sources.base import CorpusLanguages
from nmt_cli.recipe.loading import packaged_folder
from tests.preparing.corpus_files import corpus_of_pairs, refusal, run, write_prefix

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


@pytest.fixture(scope="module")
def raw() -> Pairs:
    """Pairs of the built-in corpus, as people wrote them."""
    with open_bytes(packaged_folder() / "corpora" / "demo" / "train.tsv.zst") as stream:
        rows = [line.decode().rstrip("\n").split("\t") for line in islice(stream, 1000)]
    return [(src, tgt) for src, tgt, *_ in rows]


def warnings_of(folder: Path, *overrides: str, train: Pairs, valid: Pairs) -> list[str]:
    """The warnings of a preparation, which are those of its report and of its page too."""
    prepared = run(corpus_of_pairs(folder, *overrides, train=train, valid=valid), folder / "data", overwrite=True)
    page = (prepared.directory / "report.html").read_text(encoding="utf-8")
    assert page.count("<li>") == len(prepared.report["warnings"]) + 1  # few pairs
    return list(prepared.report["warnings"])


def doubts_of(pairs: Pairs, languages: CorpusLanguages = EN_DE) -> list[str]:
    sides = text_sides("the training text", pairs, languages, source=None)
    check_no_pieces(sides)
    return list(warnings_of_unusual_text(sides))


@pytest.mark.parametrize(("train", "valid", "language"), CORPORA)
def test_real_corpora_are_doubted_only_with_swapped_sides(
    shared_data: Path, train: str, valid: str, language: str
) -> None:
    for prefix, number in ((train, 2000), (valid, 1000), (valid, 50)):
        pairs = read(shared_data, prefix, language, number=number)
        languages = CorpusLanguages(source="en", target=language)
        swapped = with_swapped_sides(pairs)
        assert doubts_of(pairs, languages) == []
        assert doubts_of(swapped, CorpusLanguages(source=language, target="en")) == []
        if find_spec("py3langid") is not None:
            (warning,) = doubts_of(swapped, languages)
            assert warning.startswith(f"the training text (en and {language}) seems to have its sides swapped: ")


def test_the_built_in_corpus_is_prepared_without_a_warning(
    raw: Pairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(tmp_path, train=raw[:800], valid=raw[800:]) == []
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_text_in_pieces_of_subword_nmt_is_refused_with_a_command_that_joins_it(raw: Pairs, tmp_path: Path) -> None:
    def in_pieces(line: str) -> str:
        return " ".join("@@ ".join([word[:3], word[3:]]) if word[3:].isalpha() else word for word in line.split())

    pieces = [(in_pieces(src), in_pieces(tgt)) for src, tgt in raw]
    error = refusal(lambda: warnings_of(tmp_path, train=pieces, valid=raw))
    assert error.message.startswith("the training text (en and de) holds pieces instead of words: '@@ ' in ")
    assert error.where == str(tmp_path / "train.en")
    commands, _, rest = error.hint.partition("; then give the new files")
    assert rest == ": nmt makes pieces of its own"
    subprocess.run(commands, shell=True, check=True)
    for side, code in enumerate(("en", "de")):
        joined = (tmp_path / f"joined-train.{code}").read_text(encoding="utf-8").splitlines()
        assert joined == [pair[side] for pair in raw]
    assert (
        "the validation text (de)"
        in refusal(lambda: warnings_of(tmp_path, train=raw, valid=[(src, in_pieces(tgt)) for src, tgt in raw])).message
    )


def test_sentencepiece_text_is_refused_with_a_command_that_joins_it(raw: Pairs, tmp_path: Path) -> None:
    def in_pieces(line: str) -> str:
        return " ".join("▁" + (f"{word[:3]} {word[3:]}" if len(word) > 3 else word) for word in line.split())

    train = [(in_pieces(src), tgt) for src, tgt in raw]
    error = refusal(lambda: warnings_of(tmp_path, train=train, valid=raw))
    assert error.message.startswith("the training text (en) holds pieces instead of words: '▁' in '▁")
    subprocess.run(error.hint.partition("; then")[0], shell=True, check=True)
    joined = [(tmp_path / f"joined-train.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de")]
    assert list(zip(*joined, strict=True)) == raw
    # A few marks are noise, such as a bar chart or a line of code.
    assert doubts_of([*raw, ("▁ here", "▁ da"), ("a@@ b", "a@@ b")]) == []


def test_a_later_source_in_pieces_is_found_and_named(raw: Pairs, tmp_path: Path) -> None:
    first = write_prefix(tmp_path / "first", raw)
    second = write_prefix(tmp_path / "second", [(f"{src[:2]}@@ {src[2:]}", tgt) for src, tgt in raw[:100]])
    located = corpus_from_files({"train": [first, second]}, languages="en-de", name="mine", overrides=[])
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message.startswith("the training text second.en (en) holds pieces")
    assert error.where == str(tmp_path / "second.en")


def test_tokenised_text_is_told_with_the_command_that_mends_it(
    raw: Pairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    english, german = (sacremoses.MosesTokenizer(code) for code in ("en", "de"))
    train = [(english.tokenize(src, return_str=True), german.tokenize(tgt, return_str=True)) for src, tgt in raw]
    (warning,) = warnings_of(tmp_path, train=train, valid=raw)
    assert warning.startswith("the training text (en and de) looks tokenised: ")
    assert f"sacremoses -l de detokenize < {tmp_path}/train.de > {tmp_path}/plain-train.de" in warning
    assert warning in caplog.messages
    commands = warning.partition("or detokenise it: ")[2]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(commands, shell=True, check=True, capture_output=True, env=environment)
    plain = [(tmp_path / f"plain-train.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de")]
    assert doubts_of(list(zip(*plain, strict=True))) == []


@pytest.mark.parametrize("rules", [[], ["cleaning.other_language=true"]], ids=["default rules", "other_language"])
def test_swapped_text_is_told_in_the_log_and_in_the_report(
    shared_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, rules: list[str]
) -> None:
    pytest.importorskip("py3langid")
    train = with_swapped_sides(read(shared_data, "multi30k/train", "de", number=600))
    valid = read(shared_data, "multi30k/val", "de", number=100)
    warnings = warnings_of(tmp_path, *rules, train=train, valid=valid)
    assert any("swapped" in warning and warning in caplog.text for warning in warnings)


def double_encoded(text: str) -> str:
    """The text as a program writes it that reads the bytes of UTF-8 as Windows-1252."""
    return "".join(
        chr(byte) if byte in b"\x81\x8d\x8f\x90\x9d" else bytes([byte]).decode("cp1252") for byte in text.encode()
    )


@pytest.mark.parametrize(
    ("written", "mended", "told"),
    [
        ("It&#39;s R&amp;D", "It's R&D", "HTML entities"),
        ("5&nbsp;&euro; &amp;amp; more &quot;a&quot;", '5\xa0€ & more "a"', "HTML entities"),
        ("a <f0>red</f0> dog<br/>", "a red dog", "tags"),
        ('see <a href="x">this</a>, 1 < 2', "see this, 1 < 2", "tags"),
        (double_encoded("Käse – “schön”"), "Käse – “schön”", "double-encoded"),
        (double_encoded("Привет €") + " ü", "Привет € ü", "double-encoded"),
        (normalize("NFD", "Käse über Nacht"), "Käse über Nacht", "accents apart"),
        (normalize("NFD", "한국어 ガ Мой за\u0301мок"), "한국어 ガ Мой за\u0301мок", "accents apart"),
    ],
)
def test_marked_up_double_encoded_and_decomposed_text_is_told_with_the_command_that_mends_it(
    raw: Pairs, tmp_path: Path, written: str, mended: str, told: str
) -> None:
    half = len(raw) // 2

    def train(text: str) -> list[tuple[str, str]]:
        return [(src, f"{tgt} {text}" if n % 20 == 0 else tgt) for n, (src, tgt) in enumerate(raw[:half])]

    off = ("cleaning.control_characters=false", "cleaning.max_length_ratio=null")
    (warning,) = warnings_of(tmp_path, *off, train=train(written), valid=raw[half:])
    assert warning.startswith(f"the training text (de) holds {told}")
    subprocess.run(warning.partition("take them out: ")[2], shell=True, check=True)
    lines = (tmp_path / "mended-train.de").read_bytes().decode().split("\n")[:-1]
    assert lines == [tgt for _, tgt in train(mended)]
    assert (tmp_path / "mended-train.en").read_bytes() == (tmp_path / "train.en").read_bytes()
    assert warnings_of(tmp_path, *off, train=train(mended), valid=raw[half:]) == []


def test_control_characters_of_double_encoded_text_are_not_to_be_kept(raw: Pairs, tmp_path: Path) -> None:
    text = "我不喜欢吃辣的东西。"
    train = [(src, f"{tgt} {double_encoded(text)}" if n % 5 == 0 else tgt) for n, (src, tgt) in enumerate(raw[:500])]
    (warning,) = warnings_of(tmp_path, train=train, valid=raw[500:])
    assert "double-encoded characters: python3" in warning


def test_another_language_than_stated_is_told(raw: Pairs, shared_data: Path) -> None:
    pytest.importorskip("py3langid")
    french = [fr for _, fr in read(shared_data, "newstest/newstest2013", "fr", number=1000)]
    pairs = [(src, fr) for (src, _), fr in zip(raw, french, strict=True)]
    (warning,) = doubts_of(pairs)
    assert warning.startswith("the training text (de) is identified as fr, not as de: ")
    # Languages that an identifier takes for each other are not doubted.
    assert doubts_of(raw, CorpusLanguages(source="en", target="lb")) == []


def test_without_py3langid_nothing_is_said_of_languages(raw: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_checks, "find_spec", lambda name: None)
    assert doubts_of([(src, src) for src, _ in raw]) == []


def windows_1252(folder: Path, name: str, lines: Sequence[str]) -> list[bytes]:
    """The lines of a file in which they are Windows-1252, as Excel writes it; of these, the ones that are no UTF-8."""
    encoded = [line.encode("windows-1252", "replace") for line in lines]
    (folder / name).write_bytes(b"".join(line + b"\n" for line in encoded))
    return [line for line in encoded if not line.isascii()]


def test_text_that_is_mostly_latin1_is_refused_with_the_commands_that_convert_it(raw: Pairs, tmp_path: Path) -> None:
    umlauts = [(src, tgt) for src, tgt in raw if not tgt.isascii()]
    english = [f"“{src.replace('e', 'é')}” – 5 €" for src, _ in umlauts]
    located = corpus_of_pairs(tmp_path, train=umlauts, valid=raw[:100])
    windows_1252(tmp_path, "train.de", [tgt for _, tgt in umlauts])
    error = refusal(lambda: run(located, tmp_path / "data"))
    number = f"{len(umlauts):,}"
    assert error.message == f"train.de is not UTF-8: {number} of {number} pairs cannot be read"
    assert error.where == "train.de:1"
    assert not (tmp_path / "data.partial").exists()  # there is nothing to continue
    convert = f"iconv -f WINDOWS-1252 -t UTF-8 < {tmp_path}/train.{{0}} > {tmp_path}/utf8-train.{{0}}"
    copy = f"cp {tmp_path}/train.en {tmp_path}/utf8-train.en"
    commands = error.hint.removeprefix("if the text is Latin-1 or Windows-1252: ")
    assert commands == f"{convert.format('de')}; {copy}; then prepare the new files"
    subprocess.run(commands.removesuffix("; then prepare the new files"), shell=True, check=True)
    pairs = [(tmp_path / f"utf8-train.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de")]
    assert list(zip(*pairs, strict=True)) == umlauts
    windows_1252(tmp_path, "train.en", english)
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message == f"train.en and train.de are not UTF-8: {number} of {number} pairs cannot be read"
    commands = error.hint.removeprefix("if the text is Latin-1 or Windows-1252: ").removesuffix(
        "; then prepare the new files"
    )
    assert commands == f"{convert.format('en')}; {convert.format('de')}"
    subprocess.run(commands, shell=True, check=True)
    assert (tmp_path / "utf8-train.en").read_text(encoding="utf-8").splitlines() == english


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("Собака спит в саду.", "KOI8-R"), ("我的哥哥买了一辆新车。", "GB18030"), ("彼は車を買いました。", "SHIFT_JIS")],
)
def test_text_in_another_encoding_than_latin1_is_not_read_as_latin1(
    raw: Pairs, tmp_path: Path, text: str, encoding: str
) -> None:
    lines = [f"{text} {number}\n" for number in range(100)]
    located = corpus_of_pairs(tmp_path, train=raw[:100], valid=raw[500:])
    (tmp_path / "train.de").write_bytes("".join(lines).encode(encoding))
    hint = refusal(lambda: run(located, tmp_path / "data")).hint
    command = hint.partition(": ")[2].partition("; then")[0]
    assert command.startswith("iconv -f ENCODING")
    subprocess.run(command.replace("ENCODING", encoding), shell=True, check=True)
    assert (tmp_path / "utf8-train.de").read_text(encoding="utf-8") == "".join(lines)


def test_a_rule_that_drops_an_unusual_share_is_told(raw: Pairs, tmp_path: Path) -> None:
    long = [(src, f"{tgt} {tgt} {tgt} {tgt}") for src, tgt in raw[:60]]
    (warning,) = warnings_of(tmp_path, train=[*long, *raw[60:400]], valid=raw[900:])
    assert warning.startswith("60 of 400 training pairs are dropped for length ratio, first at train.en:1: ")
    assert "--set cleaning.max_length_ratio=null" in warning
    assert warnings_of(tmp_path, train=[*long[:30], *raw[60:400]], valid=raw[900:]) == []


def test_text_with_some_lines_in_latin1_and_none_beside_ascii_in_utf8_is_refused(raw: Pairs, tmp_path: Path) -> None:
    plain = [pair for pair in raw if pair[1].isascii()]
    latin = [pair for pair in raw if not pair[1].isascii()][: len(plain) // 10]
    located = corpus_of_pairs(tmp_path, train=[*plain, *latin], valid=raw[:100])
    wrong = windows_1252(tmp_path, "train.de", [tgt for _, tgt in [*plain, *latin]])
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message == (
        f"train.de is not UTF-8: {len(wrong):,} of {len(plain) + len(latin):,} pairs cannot be read"
    )
    assert error.where == f"train.de:{len(plain) + 1}"


def test_most_pairs_dropped_as_duplicates_are_told_with_what_to_do(raw: Pairs, tmp_path: Path) -> None:
    repeated = [*raw[:300], *raw[:300], *raw[:300]]
    (warning,) = warnings_of(tmp_path, train=repeated, valid=raw[900:])
    assert warning.startswith("600 of 900 training pairs are dropped for duplicate, first at train.en:301: ")
    assert warning.endswith("--set cleaning.duplicates=false keeps them")
    assert warnings_of(tmp_path, "cleaning.duplicates=false", train=repeated, valid=raw[900:]) == []


def test_mixed_encodings_are_told_with_a_command_that_converts_the_other_lines_only(raw: Pairs, tmp_path: Path) -> None:
    train = [(src, f"{tgt} Größe “{number}” – 5 €") for number, (src, tgt) in enumerate(raw[:600])]
    located = corpus_of_pairs(tmp_path, train=train, valid=raw[600:])
    lines = [tgt.encode("cp1252" if number % 10 == 0 else "utf-8") for number, (_, tgt) in enumerate(train)]
    (tmp_path / "train.de").write_bytes(b"".join(line + b"\n" for line in lines))
    (warning,) = run(located, tmp_path / "data").report["warnings"]
    assert "mixed encodings" in warning
    subprocess.run(re.search("python3.*", warning)[0], shell=True, check=True)  # type: ignore[index]  # it is there
    assert (tmp_path / "utf8-train.de").read_text(encoding="utf-8").splitlines() == [tgt for _, tgt in train]


def test_a_nearly_empty_validation_set_is_told(raw: Pairs, tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, train=raw, valid=[("", "")] * 3)
    assert warning.startswith("3 of 3 validation pairs have a blank side, and score nothing: ")
    (warning,) = warnings_of(tmp_path, train=raw[:800], valid=raw[800:819])
    assert warning.startswith("the validation text has 19 pairs, so its loss and BLEU say little: ")
    assert warnings_of(tmp_path, train=raw[:800], valid=raw[800:820]) == []
