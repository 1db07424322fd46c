"""Several directions in one corpus: their symbols, tags, splits, vocabularies, and what is refused."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.errors import NmtError, UsageError
from nmt_cli.preparing.corpus import LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files, load_corpus
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer
from tests.dataset.synthetic import sentences
from tests.preparing.corpus_files import invented_pairs, refusal, run, write_prefix

MANY = """
train:
  - {kind: text, prefix: news, languages: {source: en, target: de}, tags: {origin: web, domain: news}}
  - {kind: text, prefix: talks, languages: {source: en, target: fr}}
  - {kind: text, prefix: news, languages: {source: de, target: en}}
  - {kind: text, prefix: made, languages: {source: en, target: de}, tags: {origin: made}, synthetic: true}
valid_size: 30
test_size: 10
tokenizer: {vocab_size: 500, symbols: [<BT>]}
"""
PAIRS = invented_pairs(1000, seed=3)
NEWS, TALKS, MADE = PAIRS[:400], [(PAIRS[index][0], PAIRS[400 + index][1]) for index in range(400)], PAIRS[800:]


def corpus(folder: Path, text: str, *overrides: str) -> LocatedCorpus:
    (folder / "many.yaml").write_text(text)
    return load_corpus(str(folder / "many.yaml"), overrides=["cleaning.max_length_ratio=null", *overrides])


def write_texts(folder: Path) -> None:
    write_prefix(folder / "news", NEWS)
    write_prefix(folder / "made", MADE)
    write_prefix(folder / "talks", TALKS, languages=("en", "fr"))


def rows_in_pieces(data: PreparedData, split: str, side: str) -> list[list[str]]:
    """The rows of a side in pieces, without EOS."""
    pairs, tokenizer = data.split(split), Tokenizer.load(data.directory / f"{side}.spm")
    rows = sentences(pairs.src if side == "source" else pairs.tgt)
    assert all(row[-1] == EOS for row in rows)
    return [tokenizer.pieces(row[:-1]) for row in rows]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("many")
    write_texts(folder)
    return open_prepared(run(corpus(folder, MANY), folder / "data").directory)


def test_a_source_begins_with_its_target_language_and_its_tags(many: PreparedData) -> None:
    assert str(many.manifest.languages) == "en-de, en-fr, de-en"
    made, news = ["<2de>", "<origin:made>"], ["<2de>", "<domain:news>", "<origin:web>"]
    en_de, en_fr, de_en = many.manifest.splits["train"].ranges
    rows = rows_in_pieces(many, "train", "source")
    num_made = len(en_de) - len(de_en)  # the rest has lost the same pairs
    assert num_made == len(MADE)
    assert [row[:2] for row in rows[len(de_en) : en_de.stop]] == [made] * num_made
    assert [row[:3] for row in rows[: len(de_en)]] == [news] * len(de_en)
    assert {row[0] for row in rows[en_fr.start : en_fr.stop]} == {"<2fr>"}
    assert {row[0] for row in rows[de_en.start : de_en.stop]} == {"<2en>"}
    tokenizer, (texts, references) = Tokenizer.load(many.source_tokenizer_file), many.texts("valid")
    plain = [tokenizer.pieces(row) for row in tokenizer.encode(texts)]
    symbols = [news] * 30 + [["<2fr>"]] * 30 + [["<2en>"]] * 30  # what is set aside keeps the tags of its source
    assert rows_in_pieces(many, "valid", "source") == [first + row for first, row in zip(symbols, plain, strict=True)]
    targets = [tokenizer.pieces(row) for row in tokenizer.encode(references)]
    assert rows_in_pieces(many, "valid", "target") == targets


def test_no_sentence_is_in_the_training_text_of_one_direction_and_set_aside_by_another(many: PreparedData) -> None:
    tokenizer = Tokenizer.load(many.source_tokenizer_file)
    trained: dict[str, set[str]] = {code: set() for code in ("en", "de", "fr")}
    held_out: dict[str, set[str]] = {code: set() for code in trained}
    train = many.split("train")
    for pair, of_direction in zip(many.manifest.languages.pairs, many.manifest.splits["train"].ranges, strict=True):
        for code, side in ((pair.source, train.src), (pair.target, train.tgt)):
            rows = sentences(side)[of_direction.start : of_direction.stop]
            trained[code].update(tokenizer.decode(rows))
        for split in ("valid", "test"):
            for code in (pair.source, pair.target):
                held_out[code].update((many.directory / f"{split}.{pair}.{code}").read_text().splitlines())
    assert not any(trained[code] & held_out[code] for code in trained)
    # The directions set the same sentences aside, so little text is lost.
    assert (len(held_out["en"]), len(held_out["de"])) == (40, 40)
    for split in ("valid", "test"):  # and in the same split
        texts = [(many.directory / f"{split}.{pair}.en").read_text() for pair in many.manifest.languages.pairs]
        assert texts[0] == texts[2]
        assert {*texts[0].splitlines()} == {*texts[1].splitlines()}
    assert not held_out["en"] & {src for src, _ in MADE}
    assert [len(part) for part in many.manifest.splits["train"].ranges] == [560, 360, 360]


def test_the_report_describes_each_direction(many: PreparedData) -> None:
    report = json.loads((many.directory / "report.json").read_text())
    assert [part["pairs"] for part in report["directions"]] == [
        {"train": number, "valid": 30, "test": 10} for number in (560, 360, 360)
    ]
    page = (many.directory / "report.html").read_text()
    assert "many: en to de, en to fr, de to en</title>" in page
    assert page.count('<th scope="row">en to fr</th>') == 1


def test_one_command_takes_the_files_of_several_directions(tmp_path: Path) -> None:
    write_texts(tmp_path)
    files = {name: str(tmp_path / name) for name in ("news", "talks")}
    settings = ["tokenizer.vocab_size=500", "cleaning.max_length_ratio=null"]
    located = corpus_from_files(
        {"train": [files["news"], files["talks"], files["news"]], "valid": [files["talks"], files["news"]]},
        languages=["en-de", "en-fr", "en-de"],
        name="x",
        overrides=["valid=null", "cleaning.duplicates=false", *settings],
    )
    data = open_prepared(run(located, tmp_path / "data").directory)
    assert str(data.manifest.languages) == "en-de, en-fr"
    assert data.manifest.splits["train"].by_direction == [2 * 400 - 2 * 80, 400 - 80]  # sorted by direction
    for split in ("train", "valid"):
        with pytest.raises(UsageError, match=f"--{split} has 1 file, and there are en-de, en-fr") as caught:
            corpus_from_files(
                {"train": ["a", "b"], split: ["a"]}, languages=["en-de", "en-fr"], name="x", overrides=settings
            )
        assert f"give --{split} once for each" in caught.value.hint


def test_tags_need_no_second_direction_and_leave_word_alignments_as_they_are(tmp_path: Path) -> None:
    write_texts(tmp_path)
    (tmp_path / "news.align").write_text("0-0 1-1\n" * len(NEWS))
    text = "languages: {source: en, target: de}\ntrain: [{kind: text, prefix: news, alignments: news.align%s}]\n"
    both = {}
    for name, keys in (("plain", ""), ("tagged", ", tags: {domain: news}")):
        located = corpus(tmp_path, text % keys, "tokenizer.vocab_size=500")
        both[name] = open_prepared(run(located, tmp_path / name).directory)
    plain, tagged = both["plain"], both["tagged"]
    assert tagged.manifest.languages == plain.manifest.languages
    assert all(row[0] == "<domain:news>" for row in rows_in_pieces(tagged, "train", "source"))
    assert (tagged.directory / "valid.en").read_bytes() == (plain.directory / "valid.en").read_bytes()
    assert (tagged.directory / "train.links.ids").read_bytes() == (plain.directory / "train.links.ids").read_bytes()


def test_text_that_looks_like_a_symbol_stays_text_and_the_users_symbols_are_pieces(many: PreparedData) -> None:
    tokenizer = Tokenizer.load(many.source_tokenizer_file)
    controls = set(tokenizer.symbol_ids(["<2de>", "<2en>", "<2fr>", "<domain:news>", "<origin:made>", "<origin:web>"]))
    assert tokenizer.decode([list(controls)]) == [""]

    @given(st.lists(st.sampled_from(["<2de>", "<origin:made>", "<BT>", " ", "ba", "<"]), max_size=6).map("".join))
    def check(text: str) -> None:
        text = " ".join(text.split())
        (row,) = tokenizer.encode([text])
        assert not controls & set(row)
        assert tokenizer.decode([row]) == [text]
        assert tokenizer.pieces(row).count("<BT>") == text.count("<BT>")

    check()


def test_a_vocabulary_keeps_the_symbols_of_the_model_that_it_is_taken_from(many: PreparedData, tmp_path: Path) -> None:
    write_texts(tmp_path)
    one = "languages: {source: en, target: fr}\ntrain: [{kind: text, prefix: talks}]\n"
    data = open_prepared(
        run(corpus(tmp_path, one, f"tokenizer.taken_from={many.directory}"), tmp_path / "one").directory
    )
    assert data.manifest.languages.model_dump(mode="json")["target_symbols"] == {"fr": "<2fr>"}
    assert {row[0] for row in rows_in_pieces(data, "train", "source")} == {"<2fr>"}
    assert (data.directory / "valid.fr").exists()

    on_target = copytree(many.directory, tmp_path / "on-target")
    manifest = json.loads((on_target / "manifest.json").read_text())
    symbols = {"eng_Latn": "<2en>", "deu_Latn": "<2de>"}
    manifest["languages"] |= {"target_symbols": symbols, "source_symbols": symbols, "target_symbol_on": "target"}
    manifest["languages"]["pairs"] = []
    (on_target / "manifest.json").write_text(json.dumps(manifest))
    two = MANY.replace("  - {kind: text, prefix: talks, languages: {source: en, target: fr}}\n", "")
    located = corpus(tmp_path, two, f"tokenizer={{taken_from: {on_target}}}")
    data = open_prepared(run(located, tmp_path / "two").directory)
    assert data.manifest.languages.target_symbols == {"de": "<2de>", "en": "<2en>"}
    assert rows_in_pieces(data, "train", "source")[0][:3] == ["<2en>", "<domain:news>", "<origin:web>"]
    assert rows_in_pieces(data, "train", "target")[0][0] == "<2de>"
    assert rows_in_pieces(data, "train", "target")[-1][0] == "<2en>"
    error = refusal(lambda: run(corpus(tmp_path, MANY, f"tokenizer={{taken_from: {on_target}}}"), tmp_path / "three"))
    assert error.message == "the vocabulary has no symbol for fr: its languages are eng_Latn, deu_Latn"
    talks = "source: talks.en, target: talks.fr, languages: {source: en, target: de-AT}"
    alike = MANY.replace("prefix: talks, languages: {source: en, target: fr}", talks)
    error = refusal(lambda: run(corpus(tmp_path, alike, f"tokenizer={{taken_from: {on_target}}}"), tmp_path / "four"))
    assert error.message == "the vocabulary has one symbol for de and de-AT, <2de>"


def test_a_vocabulary_without_the_symbols_is_refused(many: PreparedData, tmp_path: Path) -> None:
    write_texts(tmp_path)
    text = "languages: {source: en, target: de}\ntrain: [{kind: text, prefix: news, tags: {a: b}}]\n"
    for place in (many.directory, many.source_tokenizer_file):
        located = corpus(tmp_path, text, f"tokenizer.taken_from={place}")
        error = refusal(partial(run, located, tmp_path / "x"))
        assert (error.message, error.where) == (
            f"the vocabulary of {place} has no symbol <a:b>",
            "tokenizer.taken_from",
        )
        assert "tags" in str(error.hint)


def test_a_small_direction_and_one_without_validation_text_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_prefix(tmp_path / "news", PAIRS)
    write_prefix(tmp_path / "talks", TALKS[:9], languages=("en", "fr"))
    write_prefix(tmp_path / "valid", [*invented_pairs(29, seed=9), PAIRS[20]])
    text = (
        "train:\n  - {kind: text, prefix: news, languages: {source: en, target: de}}\n"
        "  - {kind: text, prefix: talks, languages: {source: en, target: fr}}\n"
        "languages: {source: en, target: de}\nvalid: [{kind: text, prefix: valid}]\n"
    )
    with caplog.at_level(logging.WARNING):
        data = open_prepared(run(corpus(tmp_path, text, "tokenizer.vocab_size=500"), tmp_path / "data").directory)
    assert "en-de has 1,000 training pairs, and en-fr 9: a model learns little of so small a part" in caplog.text
    assert "there is no validation text of en-fr" in caplog.text
    assert data.manifest.splits["valid"].by_direction == [30, 0]
    report = json.loads((data.directory / "report.json").read_text())
    found = {"lines": 30, "pairs": 1, "sources": 1, "targets": 1}
    assert [part["overlap"] for part in report["directions"]] == [{"valid": found}, {}]
    assert report["overlap"] == {"valid": found}
    assert len(data.texts("valid")[0]) == len(data.split("valid")) == 30


def test_a_direction_of_nothing_but_synthetic_text_is_prepared_without_validation_text(tmp_path: Path) -> None:
    write_texts(tmp_path)
    text = (
        "train:\n  - {kind: text, prefix: news, languages: {source: en, target: de}}\n"
        "  - {kind: text, prefix: made, languages: {source: de, target: en}, synthetic: true}\n"
        "tokenizer: {vocab_size: 500}\n"
    )
    prepared = run(corpus(tmp_path, text, "test_size=50"), tmp_path / "data")
    splits = open_prepared(prepared.directory).manifest.splits
    assert {split: counts.by_direction for split, counts in splits.items()} == {
        "train": [320, 200],
        "valid": [40, 0],
        "test": [40, 0],
    }
    assert prepared.report["warnings"] == [
        "test_size is 50, but only 40 of en-de are set aside, a tenth of the text: lower test_size, or name test text "
        "in files of its own",
        "there is no validation text of de-en, so training does not measure it: add some to valid",
    ]
    all_synthetic = text.replace("target: de}}", "target: de}, synthetic: true}")
    write_prefix(tmp_path / "made", [*MADE, *MADE])  # what is dropped of de-en is no reason for en-de
    error = refusal(lambda: run(corpus(tmp_path, all_synthetic), tmp_path / "other"))
    assert error.message.endswith("more than half of the 0 clean training pairs of en-de, without synthetic ones")


def test_a_table_without_names_is_not_read_alike_in_both_directions(tmp_path: Path) -> None:
    (tmp_path / "news.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in NEWS))
    source = "  - {kind: tsv, file: news.tsv, languages: {source: %s, target: %s}%s}\n"
    text = "train:\n" + source % ("en", "de", "") + source % ("de", "en", "%s") + "tokenizer: {vocab_size: 500}\n"
    error = refusal(lambda: run(corpus(tmp_path, text % ""), tmp_path / "data"))
    assert (error.message[:44], error.where) == ("news.tsv is read alike for en-de and de-en: ", "news.tsv:1")
    data = open_prepared(run(corpus(tmp_path, text % ", source: 2, target: 1"), tmp_path / "data").directory)
    assert data.texts("valid")[0] == [*data.texts("valid")[1][40:], *data.texts("valid")[1][:40]]
    (tmp_path / "news.tsv").write_text("broken\n" * 9 + "one\teins\tx\n")  # no line is read for either direction
    far = ", source: 1, target: 4"
    text = "train:\n" + source % ("en", "de", far) + source % ("de", "en", far)
    error = refusal(lambda: run(corpus(tmp_path, text), tmp_path / "far"))
    assert error.message == "no training pair is left after cleaning: 20 of 20 dropped for malformed record"


@pytest.mark.parametrize("kind", ["text", "tsv"])
def test_text_whose_first_lines_are_equal_on_both_sides_is_prepared_in_two_directions(
    tmp_path: Path, kind: str
) -> None:
    pairs = [("London 2012", "London 2012"), *NEWS]
    write_prefix(tmp_path / "news", pairs)
    (tmp_path / "news.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    file, swap = ("prefix: news", "") if kind == "text" else ("file: news.tsv", ", source: 2, target: 1")
    text = (
        f"train:\n  - {{kind: {kind}, {file}, languages: {{source: en, target: de}}}}\n"
        f"  - {{kind: {kind}, {file}, languages: {{source: de, target: en}}{swap}}}\ntokenizer: {{vocab_size: 500}}\n"
    )
    prepared = run(corpus(tmp_path, text), tmp_path / "data")
    assert prepared.report["cleaning"]["dropped"]["identical sides"]["count"] == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{source: en, target: fr}", "{source: eng, target: fr}", "en and eng are the same language"),
        (", languages: {source: en, target: fr}", "", "train.1 has no languages"),
        ("valid_size: 30", "valid: [{kind: text, prefix: a, languages: {source: en, target: it}}]",
         "valid has text of en-it, and train has none"),
        ("valid_size: 30",
         "valid: [{kind: text, prefix: a, languages: {source: en, target: fr}, tags: {domain: nwes}}]",
         "no training text has the tag domain:nwes"),
        ("valid_size: 30",
         "valid: [{kind: text, prefix: a, languages: {source: en, target: fr}, synthetic: true}]",
         "only sources of training text are synthetic"),
        ("{origin: made}", "{Origin: made}", "Origin"),
        ("symbols: [<BT>]", "symbols: [<2en>]", "tokenizer.symbols has <2en>, which is the symbol of a language"),
        ("symbols: [<BT>]", "symbols: ['<origin:web>']", "tokenizer.symbols has <origin:web>, which is the symbol"),
        ("symbols: [<BT>]", "symbols: [<BT>, <BT>]", "tokenizer.symbols has <BT>, which is there twice"),
        ("{source: en, target: fr}", "{source: en, target: it}", "no such file"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_fix(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_texts(tmp_path)
    assert old in MANY
    with pytest.raises(NmtError, match=message) as caught:
        run(corpus(tmp_path, MANY.replace(old, new)), tmp_path / "data")
    assert caught.value.hint
