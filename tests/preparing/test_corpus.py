from __future__ import annotations

import os
from pathlib import Path

import pytest

from nmt_cli.errors import NmtError, RecipeError, UsageError
from nmt_cli.preparing.corpus import Corpus, corpus_from_prefixes, load_corpus
from nmt_cli.preparing.sources.archive import ArchiveSource
from nmt_cli.preparing.sources.base import Split
from nmt_cli.preparing.sources.hub import HubSource
from nmt_cli.preparing.sources.text import TextSource
from nmt_cli.recipe.loading import packaged_names

TSV = "{kind: tsv, file: b.tsv.gz, source: 2, target: 1}"
CORPUS = """\
languages: {source: en, target: no}
train:
  - {kind: text, prefix: parts/a}
  - {kind: tsv, file: b.tsv.gz, source: 2, target: 1}
  - {kind: jsonl, file: c.jsonl}
valid: [{kind: text, source: v.txt, target: w.txt}]
"""


def refusal(folder: Path, text: str, *overrides: str) -> NmtError:
    (folder / "corpus.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_corpus(str(folder / "corpus.yaml"), overrides=overrides)
    assert caught.value.exit_code == 3
    return caught.value


def test_every_packaged_corpus_is_valid_called_as_its_file_and_states_its_licence() -> None:
    names = packaged_names(kind="corpus")
    assert [name for name in names if not name.endswith("-archives")] == [
        *("demo", "iwslt14-de-en", "multi30k-en-de", "multi30k-en-fr", "wmt14-en-de", "wmt14-en-fr")
    ]
    for name in names:
        corpus = load_corpus(name, overrides=[]).corpus
        assert corpus.name == name
        assert corpus.description
        assert corpus.licence
        assert corpus.name == "demo" or corpus.citation


def test_wmt14_is_described_as_in_the_paper() -> None:
    en_de, en_fr = (load_corpus(name, overrides=[]).corpus for name in ("wmt14-en-de", "wmt14-en-fr"))
    assert (en_de.tokenizer.vocab_size, en_fr.tokenizer.vocab_size) == (37_000, 32_000)  # section 5.1
    assert en_de.tokenizer.shared
    (train,) = en_fr.sources("train")
    assert isinstance(train, HubSource)
    assert (train.repository, train.subset, train.split) == ("wmt/wmt14", "fr-en", "train")
    assert en_de.splits == ["train", "valid", "test"]
    parts = {}
    for name in ("en-de", "en-fr"):
        train_parts = load_corpus(f"wmt14-{name}-archives", overrides=[]).corpus.sources("train")
        archives = [one for one in train_parts if isinstance(one, ArchiveSource)]
        assert len(archives) == len(train_parts)
        parts[name] = [(one.url or "").rsplit("/", 1)[-1] for one in archives]
        for one in archives:
            assert one.source.removesuffix(".gz").endswith(".en")
    europarl, crawl, news = (f"training-parallel-{part}.tgz" for part in ("europarl-v7", "commoncrawl", "nc-v9"))
    assert parts["en-de"] == [europarl, crawl, news]
    assert parts["en-fr"] == [europarl, crawl, "training-parallel-un.tgz", news, "training-giga-fren.tar"]


def test_the_old_name_of_multi30k_is_answered_with_the_new_ones() -> None:
    with pytest.raises(RecipeError, match="there is no corpus 'multi30k'") as caught:
        load_corpus("multi30k", overrides=[])
    assert "multi30k-en-de" in caught.value.hint


def test_a_corpus_file_takes_every_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CORPUS)
    located = load_corpus(str(tmp_path / "mine.yaml"), overrides=["cleaning.max_words=null", "tokenizer.shared=false"])
    corpus = located.corpus
    assert located.folder == tmp_path
    assert corpus.name == "mine"
    assert corpus.languages.target == "no"  # Norwegian, not false
    assert [source.kind for source in corpus.sources("train")] == ["text", "tsv", "jsonl"]
    assert corpus.sources("test") == []
    assert corpus.splits == ["train", "valid"]
    assert corpus.cleaning.max_words is None
    assert not corpus.tokenizer.shared


def test_an_unknown_key_is_named_with_its_line_and_a_near_match(tmp_path: Path) -> None:
    error = refusal(tmp_path, CORPUS + "tokenizer:\n  vocab_sise: 9000\n")
    assert "tokenizer.vocab_sise" in error.message
    assert error.where == f"{tmp_path / 'corpus.yaml'}:8"
    assert "vocab_size" in error.hint


def test_a_key_of_a_source_is_checked_as_well(tmp_path: Path) -> None:
    error = refusal(tmp_path, CORPUS.replace("prefix: parts/a", "prefx: parts/a"))
    assert "prefx" in error.message
    assert error.where == f"{tmp_path / 'corpus.yaml'}:3"
    assert "prefix" in error.hint
    error = refusal(tmp_path, CORPUS.replace("kind: jsonl", "kind: json"))
    assert "jsonl" in f"{error.message} {error.hint}"
    assert error.where == f"{tmp_path / 'corpus.yaml'}:5"


def test_a_wrong_value_is_named_with_its_flag(tmp_path: Path) -> None:
    error = refusal(tmp_path, CORPUS, "tokenizer.vocab_size=many")
    assert "tokenizer.vocab_size" in error.message
    assert "many" in error.message
    assert error.where == "--set tokenizer.vocab_size=many"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "languages: {source: en, target: de}\n",
            "a corpus needs train and valid",
            "write a list of sources for each of them",
        ),
        (
            CORPUS.replace("valid:", "test:"),
            "a corpus needs train and valid",
            "write a list of sources for each of them",
        ),
        (
            CORPUS.replace("source: v.txt, ", ""),
            "a text source needs either prefix, or both source and target",
            "write prefix: PREFIX for PREFIX.CODE, or source: FILE and target: FILE",
        ),
        (
            CORPUS.replace("target: w.txt", "target: w.txt, weight: 2"),
            "only sources of training text have a weight: every line of validation and test text is taken once",
            "remove weight there",
        ),
        (
            CORPUS.replace(TSV, "{kind: archive, source: a, target: b}"),
            "an archive needs either file or url",
            "write file: PATH, or url: https://HOST/PATH",
        ),
        (
            CORPUS.replace(
                TSV,
                "{kind: archive, url: statmt.org/a.tgz, source: a, target: b}",
            ),
            "'statmt.org/a.tgz' is not the address of a file",
            "write the whole address of the file, with http:// or https://",
        ),
        (
            CORPUS.replace(
                TSV,
                "{kind: archive, file: a.tgz, sha256: 12AB, source: a, target: b}",
            ),
            "sha256 is '12AB', not 64 hexadecimal digits in lower case",
            "write what sha256sum prints for the file, or null",
        ),
        (
            CORPUS.replace(TSV, "{kind: archive, file: https://host/a.tgz, source: a, target: b}"),
            "the file of an archive is an address",
            "write url: https://host/a.tgz",
        ),
        *(
            (
                CORPUS.replace(TSV, f"{{kind: text, {files}}}"),
                "a text source is two files, or two whole addresses",
                "write source: https://HOST/FILE and target: https://HOST/FILE, or fetch the other file as well",
            )
            for files in (
                "source: https://host/a.en, target: a.de",
                "source: a.en, target: https://host/a.de",
                "prefix: https://host/a",
            )
        ),
        (
            CORPUS.replace("target: no}", "target: en}"),
            "source and target are both 'en'",
            "give each language a code of its own",
        ),
    ],
)
def test_what_does_not_make_sense_together_is_said(tmp_path: Path, text: str, message: str, hint: str) -> None:
    error = refusal(tmp_path, text)
    assert (error.message, error.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "overrides", "key", "where", "hint"),
    [
        ("mirror: archives\n", [], "mirror", "corpus.yaml:7", "write file: PATH in place of url:"),
        ("", ["mirror=archives"], "mirror", "--set mirror=archives", "write file: PATH in place of url:"),
        ("generator: {kind: demo}\n", [], "generator", "corpus.yaml:7", "nmt prepare demo"),
        (
            "test: [{kind: hub, repository: a/b, split: x, otherwise: [{kind: text, prefix: x}]}]\n",
            [],
            "otherwise",
            "corpus.yaml:7",
            "in place of the source that has it",
        ),
    ],
)
def test_a_key_that_went_is_answered_with_what_takes_its_place(
    tmp_path: Path, text: str, overrides: list[str], key: str, where: str, hint: str
) -> None:
    error = refusal(tmp_path, CORPUS + text, *overrides)
    assert error.message == f"corpus files no longer have the key {key}"
    assert (error.where or "").endswith(where)
    assert hint in error.hint


def test_a_key_that_went_may_stand_there_empty(tmp_path: Path) -> None:
    sources = "test: [{kind: hub, repository: a/b, split: x, otherwise: []}]\n"
    (tmp_path / "c.yaml").write_text(CORPUS + "mirror: null\ngenerator: null\n" + sources)
    assert len(load_corpus(str(tmp_path / "c.yaml"), overrides=[]).corpus.sources("test")) == 1


@pytest.mark.parametrize("weight", ["0", "-1", "many", ".nan"])
def test_a_weight_is_a_positive_number(tmp_path: Path, weight: str) -> None:
    error = refusal(tmp_path, CORPUS.replace("prefix: parts/a", f"prefix: parts/a, weight: {weight}"))
    assert error.message.startswith("train.0.weight is ")
    assert error.message.endswith(("should be greater than 0", "should be a number", "should be a finite number"))
    assert error.where == f"{tmp_path / 'corpus.yaml'}:3"


def test_an_unknown_corpus_is_answered_with_near_names() -> None:
    with pytest.raises(RecipeError, match="there is no corpus 'wmt14-de-en'") as caught:
        load_corpus("wmt14-de-en", overrides=[])
    assert "wmt14-en-de" in caught.value.hint


def test_prefixes_make_a_corpus_of_text() -> None:
    located = corpus_from_prefixes(
        {"train": "data/train", "valid": "data/val"}, languages="en-de", name="my data", overrides=["limit=10"]
    )
    assert located.corpus.name == "my-data"
    assert located.corpus.sources("train") == [TextSource(kind="text", prefix="data/train")]
    assert (located.corpus.languages.source, located.corpus.languages.target) == ("en", "de")
    assert located.corpus.limit == 10
    assert located.folder == Path()


IS_NOT, FOR_EXAMPLE = "is not SOURCE-TARGET", "for example --languages en-de"
NEEDS_A_FILE = "; a code with a hyphen takes a corpus file, with languages: {source: en, target: pt-BR} in it"


@pytest.mark.parametrize(
    ("languages", "message", "hint"),
    [
        *((languages, IS_NOT, FOR_EXAMPLE) for languages in ("ende", "en-", "-de", "", "e n-de", "en-de\n")),
        ("en-pt-BR", IS_NOT, FOR_EXAMPLE + NEEDS_A_FILE),
        ("en-en", "names one language twice", FOR_EXAMPLE),
    ],
)
def test_languages_must_be_two_codes(languages: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        corpus_from_prefixes({"train": "a", "valid": "b"}, languages=languages, name="x", overrides=[])
    assert caught.value.message == f"`languages` {languages!r} {message}"
    assert caught.value.hint == hint
    assert caught.value.exit_code == 2


def test_names_of_files_that_are_not_utf8_are_refused() -> None:
    prefixes: dict[Split, str] = {"train": os.fsdecode(b"tr\xe4in"), "valid": "valid"}
    with pytest.raises(RecipeError, match="a text or the name of a file in it is not valid Unicode") as caught:
        corpus_from_prefixes(prefixes, languages="en-de", name="x", overrides=[])
    assert caught.value.hint == "give files names in UTF-8"


def test_a_code_with_a_hyphen_stands_in_a_corpus_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CORPUS.replace("target: no", "target: pt-BR"))
    assert load_corpus(str(tmp_path / "mine.yaml"), overrides=[]).corpus.languages.target == "pt-BR"


def test_every_key_says_what_it_means() -> None:
    schema = Corpus.model_json_schema()
    sections = {"": schema, **schema["$defs"]}
    unsaid = [
        f"{section}.{key}"
        for section, values in sections.items()
        for key, value in values["properties"].items()
        if "description" not in value and "$ref" not in value  # a section says it in its docstring
    ]
    assert unsaid == []
