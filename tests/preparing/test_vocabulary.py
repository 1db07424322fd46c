"""The sample of lines that a vocabulary is trained on, and vocabularies of each origin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import yaml

from nmt_cli.dataset.prepared_data import SIDES, PreparedData, open_prepared
from nmt_cli.errors import RecipeError
from nmt_cli.preparing.clean_text import CleanText, clean, select
from nmt_cli.preparing.corpus import Corpus, LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files, load_corpus
from nmt_cli.preparing.inputs import fetch_inputs
from nmt_cli.preparing.sources.base import Split
from nmt_cli.preparing.vocabulary import sample_lines
from nmt_cli.recipe.yaml_files import dump_values
from nmt_cli.tokenization.sentencepiece_model import tokenizer_kind
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from tests.dataset.synthetic import sentences
from tests.preparing.corpus_files import corpus_of, invented_pairs, refusal, run, silent, small_corpus, write_prefix
from tests.tokenization.models import train_spm
from tests.training.tiny import train

PAIRS = invented_pairs(640, seed=7)[40:]  # the training text of `small_corpus`


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> CleanText:
    """600 pairs in 8 pieces, without duplicates."""
    folder = tmp_path_factory.mktemp("text")
    located = small_corpus(folder)
    for name in ("cleaned", "selected"):
        (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 80)
        sources = fetch_inputs(located, progress=silent).sources
        clean(located.corpus, sources, folder / "cleaned", num_workers=1, progress=silent)
        select(located.corpus, sources, folder / "cleaned", folder / "selected")
    return CleanText(folder / "cleaned", folder / "selected")


def test_a_sample_of_everything_is_the_text(text: CleanText) -> None:
    lines = [line.decode() for line in sample_lines(text, SIDES, size=1200, seed=1)]
    assert lines == [src for src, _ in PAIRS] + [tgt for _, tgt in PAIRS]


def test_sampled_lines_are_distinct_ordered_and_keyed_by_the_seed(text: CleanText) -> None:
    sampled = list(sample_lines(text, SIDES, size=301, seed=1))
    assert len(sampled) == len(set(sampled)) == 301
    order = {src: place for place, src in enumerate([src for src, _ in PAIRS] + [tgt for _, tgt in PAIRS])}
    places = [order[line.decode()] for line in sampled]
    assert places == sorted(places)
    assert sampled == list(sample_lines(text, SIDES, size=301, seed=1))
    assert sampled != list(sample_lines(text, SIDES, size=301, seed=2))


def test_every_line_is_sampled_with_equal_probability(text: CleanText) -> None:
    num_samples, size = 100, 60
    samples = (sample_lines(text, ["target"], size=size, seed=seed) for seed in range(num_samples))
    counts = Counter(line for sample in samples for line in sample)
    expected = num_samples * size / 600
    numbers = np.array([counts[tgt.encode()] for _, tgt in PAIRS])
    # The sum of squared standard scores has a mean of about 600 and a standard deviation of about 35.
    assert ((numbers - expected) ** 2 / (expected * 0.9)).sum() == pytest.approx(600, abs=140)


def test_lines_that_are_taken_twice_can_be_sampled_twice(text: CleanText, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [np.zeros_like(array) for array in map(text.copies(), range(8))]
    copies[3][[5, 9]] = (2, 1)  # piece 3 begins at pair 240
    monkeypatch.setattr(CleanText, "copies", lambda self: copies.__getitem__)
    whole = [PAIRS[245][0].encode(), PAIRS[245][0].encode(), PAIRS[249][0].encode()]
    assert list(sample_lines(text, ["source"], size=3, seed=1)) == whole
    samples = {tuple(sample_lines(text, ["source"], size=2, seed=seed)) for seed in range(30)}
    assert samples == {tuple(whole[:2]), tuple(whole[1:])}


def test_a_vocabulary_is_taken_as_it_is_and_its_contents_tell_preparations_apart(tmp_path: Path) -> None:
    first = run(small_corpus(tmp_path, "tokenizer.shared=false"), tmp_path / "first").directory
    taken = f"tokenizer.taken_from={first}"
    second = run(small_corpus(tmp_path, taken, pairs=300), tmp_path / "second").directory
    for side in SIDES:
        assert (second / f"{side}.spm").read_bytes() == (first / f"{side}.spm").read_bytes()
    assert not open_prepared(second).manifest.shared_vocabulary
    assert "taken from elsewhere, not trained on this text" in (second / "report.html").read_text(encoding="utf-8")
    sources, _ = open_prepared(second).texts("valid")
    encoded = Tokenizer.load(first / "source.spm").encode(sources)
    assert [row[:-1] for row in sentences(open_prepared(second).split("valid").src)] == encoded
    assert run(small_corpus(tmp_path, taken, pairs=300), second).was_finished
    other = run(small_corpus(tmp_path, "tokenizer.vocab_size=500"), tmp_path / "other").directory
    from_other = small_corpus(tmp_path, f"tokenizer.taken_from={other}", pairs=300)
    assert "holds other data" in refusal(lambda: run(from_other, second)).message


def too_small_text(folder: Path, *settings: str) -> LocatedCorpus:
    """60 pairs, without a size of the vocabulary unless the settings have one."""
    small_corpus(folder, pairs=60)
    files: dict[Split, list[str]] = {"train": [str(folder / "train")], "valid": [str(folder / "valid")]}
    return corpus_from_files(files, languages="en-de", name="small", overrides=settings)


@pytest.mark.parametrize("is_shared", [True, False])
def test_text_too_small_for_the_default_vocabulary_gets_a_smaller_one_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_shared: bool
) -> None:
    located = too_small_text(tmp_path, f"tokenizer.shared={json.dumps(is_shared)}")
    with caplog.at_level("INFO", logger="nmt_cli"):
        prepared = run(located, tmp_path / "data")
    sizes = sizes_of(prepared.directory)
    assert all(300 <= size < 8000 for size in sizes)
    assert [Tokenizer.load(prepared.directory / f"{side}.spm").vocab_size for side in SIDES] == sizes
    assert "tokenizer: the text is too small for 8,000, the default; --set tokenizer.vocab_size=N" in caplog.text
    assert f"tokenizer: {' and '.join(f'{size:,}' for size in dict.fromkeys(sizes))} " in caplog.text
    page = (prepared.directory / "report.html").read_text(encoding="utf-8")
    assert "The text is too small for the default size." in page


def test_the_smaller_vocabulary_comes_again_and_a_given_size_stays(tmp_path: Path) -> None:
    run(too_small_text(tmp_path), tmp_path / "data")
    assert run(too_small_text(tmp_path), tmp_path / "data").was_finished
    default_size = too_small_text(tmp_path, "tokenizer.vocab_size=8000")
    error = refusal(lambda: run(default_size, tmp_path / "data"))
    assert error.message.endswith(" holds other data: tokenizer.vocab_size is null there, 8000 here")
    error = refusal(lambda: run(default_size, tmp_path / "other"))
    assert error.message.startswith("a vocabulary of 8,000 pieces is more than this text yields: at most ")
    assert error.hint.startswith("--set tokenizer.vocab_size=null takes ")
    as_the_hint_says = too_small_text(tmp_path, "tokenizer.vocab_size=8000", "tokenizer.vocab_size=null")
    assert run(as_the_hint_says, tmp_path / "data").was_finished


def sizes_of(directory: Path) -> list[int]:
    """The sizes of both vocabularies in the manifest of prepared data."""
    tokenizers = open_prepared(directory).manifest.tokenizers
    return [tokenizers.source.vocab_size, tokenizers.target.vocab_size]


def test_small_text_gets_only_pieces_that_training_sees(tmp_path: Path) -> None:
    pairs = invented_pairs(900, seed=2)
    files: dict[Split, list[str]] = {
        "train": [write_prefix(tmp_path / "train", pairs[:600])],
        "valid": [write_prefix(tmp_path / "valid", pairs[600:])],
    }
    located = corpus_from_files(files, languages="en-de", name="small", overrides=["cleaning.max_length_ratio=null"])
    data = open_prepared(run(located, tmp_path / "data").directory)
    assert data.manifest.tokenizers.source.vocab_size < 2000
    train, valid = data.split("train"), data.split("valid")
    sides = ((split.src, split.tgt) for split in (train, valid))
    train_ids, valid_ids = (np.concatenate([side.ids(0, len(side)) for side in pair]) for pair in sides)
    occurrences = np.bincount(train_ids, minlength=8000)
    assert (
        np.mean(occurrences[valid_ids] < 5) < 0.03
    )  # with 8,000 pieces, which SentencePiece makes of this text, two thirds


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    located = small_corpus(tmp_path, "tokenizer.taken_from=nowhere")
    error = refusal(lambda: run(located, tmp_path / "out"))
    assert error.message == "there is no source.spm in nowhere, from which the vocabulary is to be taken"
    assert error.where == "tokenizer.taken_from"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, from which the paths of such a corpus start."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own_model(path: Path, *, model_type: str = "unigram", side: int | None = None, **options: Any) -> Path:
    """A SentencePiece model of the corpus's text as `spm_train` writes it: other ids, and no bytes."""
    lines = [line for pair in PAIRS for line in (pair if side is None else [pair[side]])]
    options = {"model_type": model_type, "vocab_size": 300, "normalization_rule_name": "identity", **options}
    path.write_bytes(train_spm(lines, **options))
    return path


def assert_cut_as_by(data: PreparedData, models: Sequence[Path]) -> None:
    """Every sentence of the data is cut as SentencePiece cuts it with these models; ends are EOS, and only ends."""
    valid = data.split("valid")
    for name, lines, tokens, model in zip(SIDES, data.texts("valid"), (valid.src, valid.tgt), models, strict=True):
        original = sentencepiece.SentencePieceProcessor(model_file=str(model))
        tokenizer = Tokenizer.load(data.directory / f"{name}.spm")
        rows = sentences(tokens)
        assert all(row[-1] == EOS and not {PAD, UNK, BOS, EOS}.intersection(row[:-1]) for row in rows)
        assert [tokenizer.pieces(row[:-1]) for row in rows] == [original.encode_as_pieces(line) for line in lines]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_an_own_sentencepiece_model_cuts_the_text_as_it_always_does(
    here: Path, model_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = own_model(here / "own.model", model_type=model_type)
    settings = ("tokenizer.taken_from=own.model",)
    data = open_prepared(run(small_corpus(here, *settings), here / "data").directory)
    assert caplog.text.count(f"own.model, a {model_type} model of 300 pieces") == 1  # though it is for both sides
    assert_cut_as_by(data, [model, model])
    assert data.manifest.shared_vocabulary
    assert data.manifest.tokenizers.source.vocab_size == 300 + 1 + 256
    assert tokenizer_kind((data.directory / "source.spm").read_bytes()) == model_type  # for its encoder
    assert run(small_corpus(here, *settings), here / "data").was_finished
    own_model(model, model_type=model_type, vocab_size=300, pad_id=3)
    changed = refusal(lambda: run(small_corpus(here, *settings), here / "data"))
    assert "holds other data" in changed.message


def test_each_language_can_have_an_own_model(here: Path) -> None:
    models = [own_model(here / f"{side}.model", side=place) for place, side in enumerate(SIDES)]
    setting = "tokenizer.taken_from={source: source.model, target: target.model}"
    data = open_prepared(run(small_corpus(here, setting), here / "data").directory)
    assert_cut_as_by(data, models)
    assert not data.manifest.shared_vocabulary


def test_a_folder_of_models_with_other_ids_is_adapted_and_trains(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "own").mkdir()
    models = [own_model(here / "own" / f"{side}.spm", side=place) for place, side in enumerate(SIDES)]
    caplog.set_level("INFO")
    prepared = run(small_corpus(here, "tokenizer.taken_from=own"), here / "data").directory
    assert "source.spm, a unigram model of 300 pieces; 257 pieces added that nmt needs" in caplog.text
    assert_cut_as_by(open_prepared(prepared), models)
    with pytest.raises(RecipeError, match="the prepared data has a vocabulary for each language"):
        train(open_prepared(prepared), here / "run", "training.updates=2")
    assert train(open_prepared(prepared), here / "run2", "training.updates=2", "model.tying=target") == 0


@pytest.mark.parametrize(
    ("file", "message", "hint"),
    [
        ("own.vocab", "own.vocab is no SentencePiece model", "--set tokenizer.taken_from=own.model"),
        ("words.model", "words.model is a word model, not unigram or BPE", "with --model_type=unigram or bpe"),
        ("train.en", "train.en is no SentencePiece model", "name the file that spm_train wrote"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_with_what_to_type(
    here: Path, file: str, message: str, hint: str
) -> None:
    own_model(here / "own.model")
    own_model(here / "words.model", model_type="word", vocab_size=100)
    (here / "own.vocab").write_text("<unk>\t0\n", encoding="utf-8")
    located = small_corpus(here, f"tokenizer.taken_from={file}")
    error = refusal(lambda: run(located, here / "out"))
    assert error.message == message
    assert hint in error.hint
    assert not (here / "out").exists()


def test_the_corpus_file_that_a_dry_run_prints_is_the_same_corpus(here: Path) -> None:
    located = too_small_text(here)
    printed = Corpus.model_validate(yaml.safe_load(dump_values(located.values_here())))
    assert printed == located.corpus
    first = run(located, here / "data")
    assert run(LocatedCorpus(printed, located.folder), first.directory).was_finished


@pytest.mark.parametrize("models", ["own.model", "{source: own.model, target: own.model}"])
def test_a_corpus_file_of_another_folder_is_printed_as_the_same_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: str
) -> None:
    own_model(tmp_path / "own.model")
    for number in range(2):
        write_prefix(tmp_path / f"part{number}", PAIRS[200 * number :][:200])
    rows = "".join(f"x\t{src}\t{tgt}\n" for src, tgt in PAIRS[400:])
    (tmp_path / "a.tsv").write_text(rows, encoding="utf-8")
    located = corpus_of(
        tmp_path,
        "{kind: text, prefix: part0}, {kind: text, source: 'part1*.en', target: 'part1*.de'}, "
        "{kind: tsv, file: a.tsv, source: 2, target: 3}",
        f"tokenizer={{taken_from: {models}}}",
        valid="{kind: text, prefix: part0}",
    )
    first = run(located, tmp_path / "data").directory
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Path("printed.yaml").write_text(dump_values(located.values_here()), encoding="utf-8")
    assert run(load_corpus("printed.yaml", overrides=[]), first).was_finished
