from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.preparing.clean_text import CleanText, clean, select
from nmt_cli.preparing.corpus_loading import load_corpus
from nmt_cli.preparing.encoding import write_tokens
from nmt_cli.preparing.inputs import fetch_inputs
from nmt_cli.preparing.vocabulary import find_vocabulary
from nmt_cli.preparing.work_folder import open_work_folder, work_path
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.preparing.corpus_files import (
    contents,
    corpus_of,
    corpus_of_pairs,
    invented_pairs,
    refusal,
    run,
    silent,
    small_corpus,
    training_pairs,
    write_prefix,
)


def test_the_same_input_gives_the_same_bytes_whatever_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 80)
    located = small_corpus(tmp_path, "tokenizer.sample_lines=700", "tokenizer.shared=false")
    alone, three = (run(located, tmp_path / str(number), num_workers=number) for number in (1, 3))
    assert contents(alone.directory) == contents(three.directory)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["1", "3"]


def test_training_text_is_the_cleaned_pairs_in_their_order(tmp_path: Path) -> None:
    pairs = invented_pairs(300, seed=2)
    broken = [("one\ntwo", "eins"), ("", "leer"), ("one", "eins\nzwei"), pairs[5]]
    records = [{"en": src, "de": tgt} for src, tgt in [*pairs[:200], *broken, *pairs[200:], ("a  b", " zwei b ")]]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    write_prefix(tmp_path / "valid", invented_pairs(5, seed=3))
    located = corpus_of(tmp_path, "{kind: jsonl, file: train.jsonl}", "cleaning.control_characters=false")
    prepared = run(located, tmp_path / "data")
    dropped = {reason: facts["count"] for reason, facts in prepared.report["cleaning"]["dropped"].items()}
    assert (dropped["line break"], dropped["empty"], dropped["duplicate"]) == (2, 1, 1)
    assert training_pairs(prepared) == [*pairs, ("a b", "zwei b")]


def test_the_source_text_is_described_and_has_known_characters(tmp_path: Path) -> None:
    pairs = invented_pairs(604, seed=5)
    odd = [
        (pairs[-3][0].replace(" ", "\u00a0"), "eins"),
        (f"\ufeff{pairs[-2][0]}", "zwei"),
        (f"u\u0308 {pairs[-1][0]}", "drei"),
    ]
    several = [(f"{first[0]} {second[0]}", first[1]) for first, second in zip(pairs[:60], pairs[60:120], strict=True)]
    located = corpus_of_pairs(
        tmp_path,
        "cleaning.max_length_ratio=null",
        "tokenizer.character_coverage=0.999",
        train=[*pairs[120:600], *several, *odd],
        valid=pairs[600:601],
    )
    prepared = run(located, tmp_path / "data")
    assert [src for src, _ in training_pairs(prepared)[-3:]] == [pairs[-3][0], pairs[-2][0], f"ü {pairs[-1][0]}"]
    manifest = open_prepared(prepared.directory).manifest
    assert manifest.several_sentences == pytest.approx(60 / 543)


def test_a_shared_vocabulary_is_one_file_and_separate_ones_are_two(tmp_path: Path) -> None:
    shared = open_prepared(run(small_corpus(tmp_path), tmp_path / "shared").directory)
    prepared = run(
        small_corpus(tmp_path, "tokenizer.shared=false", "tokenizer.sample_lines=400"), tmp_path / "separate"
    )
    for side in ("source", "target"):  # each is trained on its side
        facts = {"size": 400, "lines": 600, "sampled": 400, "skipped": 0}
        assert prepared.report["vocabulary"][side] == facts
    separate = open_prepared(prepared.directory)
    assert shared.manifest.shared_vocabulary
    assert not separate.manifest.shared_vocabulary
    for data, are_equal in ((shared, True), (separate, False)):
        files = (data.source_tokenizer_file, data.target_tokenizer_file)
        assert (files[0].read_bytes() == files[1].read_bytes()) == are_equal
        assert [Tokenizer.load(file).vocab_size for file in files] == [400, 400]
    # Only German text ends in "!" here: an English vocabulary has no piece for it.
    (ids,) = Tokenizer.load(separate.source_tokenizer_file).encode(["!"])
    assert "<0x21>" in Tokenizer.load(separate.source_tokenizer_file).pieces(ids)


def test_held_out_text_is_kept_but_for_the_form_of_its_line_ends(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    raw = {"valid.en": b" \n\nsame\nsame\n", "valid.de": "\x07\r\nsame  spaces \n\u00a0\nsame\n".encode()}
    for name, data in raw.items():
        (tmp_path / name).write_bytes(data)
    prepared = run(located, tmp_path / "data")
    kept = {name: data.replace(b"\r\n", b"\n") for name, data in raw.items()}
    assert {name: (prepared.directory / name).read_bytes() for name in raw} == kept
    assert prepared.report["pairs"]["valid"] == 4


@pytest.mark.parametrize(("side", "name"), [("en", "source"), ("de", "target")])
def test_invalid_utf8_is_counted_in_training_and_refused_in_held_out_text(tmp_path: Path, side: str, name: str) -> None:
    located = small_corpus(tmp_path)
    valid = (tmp_path / f"valid.{side}").read_bytes()
    for split in ("train", "valid"):
        file = tmp_path / f"{split}.{side}"
        lines = file.read_bytes().split(b"\n")
        lines[4] = b"caf\xe9"
        file.write_bytes(b"\n".join(lines))
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert (error.message, error.where) == (f"the valid text has a {name} that is not valid UTF-8", f"valid.{side}:5")
    convert = f"iconv -f WINDOWS-1252 -t UTF-8 < {tmp_path}/valid.{side} > {tmp_path}/utf8-valid.{side}"
    other = "de" if side == "en" else "en"
    copy = f"cp {tmp_path}/valid.{other} {tmp_path}/utf8-valid.{other}"
    assert error.hint == f"if the text is Latin-1 or Windows-1252: {convert}; {copy}"
    (tmp_path / f"valid.{side}").write_bytes(valid)
    dropped = run(located, tmp_path / "data").report["cleaning"]["dropped"]["invalid UTF-8"]
    assert (dropped["count"], dropped["examples"][0]["where"]) == (1, f"train.{side}:5")


def test_held_out_text_with_a_line_break_inside_a_sentence_is_refused(tmp_path: Path) -> None:
    write_prefix(tmp_path / "train", invented_pairs(300, seed=2))
    (tmp_path / "valid.jsonl").write_text('{"en": "one\\ntwo", "de": "eins"}\n')
    located = corpus_of(tmp_path, "{kind: text, prefix: train}", valid="{kind: jsonl, file: valid.jsonl}")
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message == "the valid text has a line break inside a sentence"


def test_a_damaged_chunk_of_clean_text_is_refused(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    cleaned, selected, spm = (tmp_path / "work" / name for name in ("cleaned", "selected", "spm"))
    for folder in (cleaned, selected, spm):
        folder.mkdir(parents=True)
    sources = fetch_inputs(located, progress=silent).sources
    clean(located.corpus, sources, cleaned, num_workers=1, progress=silent)
    select(located.corpus, sources, cleaned, selected)
    text = CleanText(cleaned, selected)
    find_vocabulary(located).write(text, spm, num_workers=1, progress=silent)
    (chunk,) = cleaned.glob("0*")
    chunk.write_bytes(chunk.read_bytes()[:-100])
    error = refusal(lambda: write_tokens(text, spm, located.corpus.directions, num_workers=1, progress=silent))
    assert error.message == "000000.npz is damaged"
    assert error.where == str(chunk)
    assert error.hint == f"it was changed after it was written: rm -r {tmp_path / 'work'}, then run nmt prepare again"


def test_a_byte_order_mark_of_a_later_file_does_not_get_into_a_sentence(tmp_path: Path) -> None:
    write_prefix(tmp_path / "train", invented_pairs(300, seed=2))
    parts = [(b"\xef\xbb\xbfone\n", b"eins"), (b"\xef\xbb\xbftwo\n", b"\xef\xbb\xbfzwei\n"), (b"3", b"3\n")]
    for number, sides in enumerate(parts):
        for code, text in zip(("en", "de"), sides, strict=True):
            (tmp_path / f"valid{number}.{code}").write_bytes(text)
    valid = "{kind: text, prefix: valid0}, {kind: text, prefix: valid1}, {kind: text, prefix: valid2}"
    located = corpus_of(tmp_path, "{kind: text, prefix: train}", valid=valid)
    data = open_prepared(run(located, tmp_path / "data").directory)
    assert (data.directory / "valid.en").read_bytes() == b"one\ntwo\n3\n"
    assert data.texts("valid") == (["one", "two", "3"], ["eins", "zwei", "3"])


def test_finished_data_is_found_again_until_something_changes(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    run(located, tmp_path / "data")
    before = contents(tmp_path / "data")
    (tmp_path / "moved").mkdir()
    for same in (located, small_corpus(tmp_path / "moved")):
        again = run(same, tmp_path / "data")
        assert again.was_finished
        assert again.report["pairs"]["train"] == 600
    assert contents(tmp_path / "data") == before
    assert not work_path(tmp_path / "data").exists()

    other = small_corpus(tmp_path, "tokenizer.vocab_size=380")
    error = refusal(lambda: run(other, tmp_path / "data"))
    assert error.message == f"{tmp_path / 'data'} holds other data: tokenizer.vocab_size is 400 there, 380 here"
    assert "--overwrite" in error.hint
    error = refusal(lambda: run(small_corpus(tmp_path, "cleaning.url_only=true"), tmp_path / "data"))
    assert error.message.endswith("holds other data: cleaning.url_only is false there, true here")
    error = refusal(lambda: run(small_corpus(tmp_path, "cleaning.max_length_ratio=null"), tmp_path / "data"))
    assert error.message.endswith(" there, null here")
    assert not run(other, tmp_path / "data", overwrite=True).was_finished
    assert open_prepared(tmp_path / "data").manifest.tokenizers.source.vocab_size == 380

    (tmp_path / "train.en").write_text((tmp_path / "train.en").read_text().replace(".", "?", 1))
    error = refusal(lambda: run(other, tmp_path / "data"))
    assert error.message.endswith("holds other data: its sources differ, or another version of nmt prepared it")


def test_damaged_data_is_prepared_again_by_the_same_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    located = small_corpus(tmp_path)
    whole = contents(run(located, tmp_path / "data").directory)
    (tmp_path / "data" / "train.source.ids").write_bytes(b"cut")
    assert not run(located, tmp_path / "data").was_finished
    assert "is damaged (train.source.ids has 3 bytes" in caplog.text
    assert contents(tmp_path / "data") == whole
    for name in ("report.json", "source.spm"):
        (tmp_path / "data" / name).unlink()
        assert not run(located, tmp_path / "data").was_finished
        assert f"is damaged ({name} is missing): preparing it again" in caplog.text
        assert contents(tmp_path / "data") == whole
    (tmp_path / "data" / "manifest.json").write_text("{")
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert "manifest.json is damaged" in error.message
    assert error.hint == "add --overwrite to prepare it again"
    run(located, tmp_path / "data", overwrite=True)
    assert contents(tmp_path / "data") == whole


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "manifest.json").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("thesis", "file"):
        for overwrite in (False, True):
            error = refusal(partial(run, located, tmp_path / name, overwrite=overwrite))
            assert error.message == f"{tmp_path / name} exists and is not prepared data"
            assert error.hint == "choose another folder with -o"
    assert contents(tmp_path / "thesis") == {"manifest.json": b"mine"}
    (tmp_path / "empty").mkdir()
    assert run(located, tmp_path / "empty").directory == tmp_path / "empty"


def test_an_unwritable_place_is_an_error(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    (tmp_path / "file").touch()
    error = refusal(lambda: run(located, tmp_path / "file" / "data"))
    assert error.message == "cannot write data.partial: a file stands where a folder must be"
    assert error.hint == "choose another folder with -o"


def test_finished_data_leaves_the_work_of_others_alone(tmp_path: Path) -> None:
    located, output = small_corpus(tmp_path), tmp_path / "data"
    run(located, output)
    with open_work_folder(output) as work:  # as a second process does with --overwrite
        cleaned = work.stage("cleaned", key="x", build=lambda to: None)
        for overwrite in (False, True):
            error = refusal(partial(run, located, output, overwrite=overwrite))
            assert error.message.startswith(f"another nmt prepare is writing {output}: process {os.getpid()} on ")
            assert error.where == str(output)
            assert error.hint == "wait until it ends, or choose another folder with -o"
        assert cleaned.exists()
    assert not (tmp_path / ".data.lock").exists()
    assert run(located, output).was_finished
    assert not work_path(output).exists()
    work_path(output).mkdir()
    (work_path(output) / "notes").write_text("mine")
    assert run(located, output).was_finished
    assert contents(work_path(output)) == {"notes": b"mine"}


def test_an_output_that_is_a_link_stays_one(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to("disk", target_is_directory=True)
    run(located, tmp_path / "data")
    assert (tmp_path / "data").is_symlink()
    assert open_prepared(tmp_path / "disk").manifest.name == "small"
    assert run(located, tmp_path / "data").was_finished
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["data", "disk"]


def test_the_demo_needs_no_files_of_ones_own(tmp_path: Path) -> None:
    located = load_corpus("demo", overrides=["limit=400", "tokenizer.vocab_size=600"])
    data = open_prepared(run(located, tmp_path / "demo").directory)
    src, ref = data.texts("test")
    assert len(src) == len(ref) == 1_000
    names = [f"demo/{split}.tsv.zst" for split in ("train", "valid", "test")]
    assert [record.name for record in data.manifest.inputs] == names
    assert (data.manifest.splits["train"].pairs, data.manifest.splits["valid"].pairs) == (400, 500)
