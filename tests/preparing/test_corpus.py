from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.errors import NmtError, RecipeError, UsageError
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.preparing.corpus_loading import corpus_from_files, load_corpus
from nmt_cli.preparing.sources.archive import ArchiveSource
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
    assert {"demo", "iwslt14-de-en", "multi30k-en-de", "multi30k-en-fr", "wmt14-en-de", "wmt14-en-fr"} <= {*names}
    for name in names:
        corpus = load_corpus(name, overrides=[]).corpus
        assert corpus.name == name
        assert corpus.description
        assert corpus.licence
        assert corpus.name == "demo" or corpus.citation
        sources = [source for split in corpus.splits for source in corpus.sources(split)]
        sizes = {source.url: source.bytes for source in sources if isinstance(source, ArchiveSource)}
        if sizes and all(sizes.values()):
            assert corpus.bytes == sum(size or 0 for size in sizes.values())


def test_wmt14_is_described_as_in_the_paper() -> None:
    en_de, en_fr = (load_corpus(name, overrides=[]).corpus for name in ("wmt14-en-de", "wmt14-en-fr"))
    assert (en_de.tokenizer.vocab_size, en_fr.tokenizer.vocab_size) == (37_000, 32_000)  # section 5.1
    assert en_de.tokenizer.shared
    (train,) = en_fr.sources("train")
    assert isinstance(train, HubSource)
    assert (train.repository, train.subset, train.split) == ("wmt/wmt14", "fr-en", "train")
    assert en_de.splits == ["train", "valid", "test"]


def test_a_corpus_file_takes_every_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CORPUS)
    located = load_corpus(str(tmp_path / "mine.yaml"), overrides=["cleaning.max_words=null", "tokenizer.shared=false"])
    corpus = located.corpus
    assert located.folder == tmp_path
    (tmp_path / "mine.yaml").write_text(CORPUS.replace("target: no", "target: pt-BR"))
    assert load_corpus(str(tmp_path / "mine.yaml"), overrides=[]).corpus.directions.targets == ["pt-BR"]
    assert corpus.name == "mine"
    assert corpus.directions.targets == ["no"]  # Norwegian, not false
    assert [source.kind for source in corpus.sources("train")] == ["text", "tsv", "jsonl"]
    assert corpus.sources("test") == []
    assert corpus.splits == ["train", "valid"]
    assert corpus.cleaning.max_words is None
    assert not corpus.tokenizer.shared


@pytest.mark.parametrize(
    ("text", "overrides", "where", "parts"),
    [
        (CORPUS + "tokenizer:\n  vocab_sise: 9000\n", [], "corpus.yaml:8", ["tokenizer.vocab_sise", "vocab_size"]),
        (CORPUS.replace("prefix:", "prefx:"), [], "corpus.yaml:3", ["prefx", "prefix"]),
        (CORPUS.replace("kind: jsonl", "kind: json"), [], "corpus.yaml:5", ["jsonl"]),
        (CORPUS, ["tokenizer.vocab_size=many"], "--set tokenizer.vocab_size=many", ["tokenizer.vocab_size", "many"]),
        (
            CORPUS.replace("parts/a", "parts/a, weight: 0"),
            [],
            "corpus.yaml:3",
            ["train.0.weight", "greater than 0"],
        ),
        (CORPUS, ["test=a.tsv"], "--set test=a.tsv", ["write test: [{kind: tsv, file: a.tsv}]"]),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_to_write(
    tmp_path: Path, text: str, overrides: list[str], where: str, parts: list[str]
) -> None:
    error = refusal(tmp_path, text, *overrides)
    assert (error.where or "").endswith(where)
    for part in parts:
        assert part in f"{error.message}; {error.hint}"


def test_a_key_of_a_source_is_not_suggested_for_the_top_of_the_file(tmp_path: Path) -> None:
    error = refusal(tmp_path, f"{CORPUS}markup: seg\n")
    assert error.message == "unknown key 'markup'"
    assert error.hint.startswith("allowed here: name, ")
    error = refusal(tmp_path, CORPUS.replace("source: 2", "source: {a: 1}"))
    assert error.message == "train.1.source is a section, but should be a whole number"
    assert error.hint == "write a whole number greater than 0 or text or null"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("languages: {source: en, target: de}\n", "a corpus needs train", "write a list of sources for it"),
        (f"{CORPUS}test: []", "test is empty", "nmt prepare NAME --dry-run shows every key with its value"),
        (
            f"{CORPUS.partition('train:')[0]}train: []",
            "train is empty",
            "name a source: train: [{kind: tsv, file: FILE}]",
        ),
        (
            f"{CORPUS}test: {{kind: text, prefix: 'a: b'}}",
            "test is one source, and not a list of sources",
            "write test: [{kind: text, prefix: 'a: b'}]",
        ),
        (
            f"{CORPUS}test: 5",
            "test is 5, but should be a list",
            "nmt prepare NAME --dry-run shows every key with its value",
        ),
        (
            CORPUS.replace("{source: en, target: no}", "en-no"),
            "languages is 'en-no', but should be two codes",
            "write languages: {source: en, target: no}",
        ),
        (
            CORPUS.replace("[{kind: text, source: v.txt, target: w.txt}]", "my.tmx"),
            "valid names my.tmx, but no kind of source",
            "write valid: [{kind: tmx, file: my.tmx}]",
        ),
        (
            f"{CORPUS}valid_size: 300\n",
            "valid_size is 300, and valid names text as well",
            "leave out valid_size, or valid",
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
            CORPUS.replace("target: no}", "target: en}"),
            "source and target are both 'en'",
            "give each language a code of its own",
        ),
        *(
            (
                CORPUS.replace(TSV, f"{{kind: archive, source: a, target: b{keys}}}"),
                "an archive needs either file or url",
                "write file: PATH, or url: https://HOST/PATH",
            )
            for keys in ("", ", file: https://host/a.tgz")
        ),
        (
            CORPUS.replace(TSV, "{kind: text, source: https://host/a.en, target: a.de}"),
            "a text source is two files, or two addresses",
            "write source: https://HOST/FILE and target: https://HOST/FILE",
        ),
    ],
)
def test_what_does_not_make_sense_together_is_said(tmp_path: Path, text: str, message: str, hint: str) -> None:
    error = refusal(tmp_path, text)
    assert (error.message, error.hint) == (message, hint)


NEAR_NAMES = [("multi30k", "multi30k-en-de"), ("qqqqqqqq", "take a file, or demo")]


@pytest.mark.parametrize(("name", "near"), NEAR_NAMES)
def test_an_unknown_corpus_is_answered_with_near_names(name: str, near: str) -> None:
    with pytest.raises(RecipeError, match=f"there is no corpus '{name}'") as caught:
        load_corpus(name, overrides=[])
    assert near in caught.value.hint


def test_prefixes_make_a_corpus_of_text() -> None:
    located = corpus_from_files(
        {"train": ["data/train"], "valid": ["data/val"]}, languages="en-de", name="my data", overrides=["limit=10"]
    )
    assert located.corpus.name == "my-data"
    assert located.corpus.sources("train") == [TextSource(kind="text", prefix="data/train")]
    assert str(located.corpus.directions) == "en-de"
    assert located.corpus.limit == 10
    assert located.folder == Path()


@pytest.mark.parametrize("languages", ["ende", "en-", "", "e n-de", "en-de\n", "en--de", "en-de-CH", "en-en"])
def test_languages_must_be_two_codes(languages: str) -> None:
    with pytest.raises(UsageError, match=r"is not SOURCE-TARGET|names one language twice") as caught:
        corpus_from_files({"train": ["a"], "valid": ["b"]}, languages=languages, name="x", overrides=[])
    assert caught.value.hint.startswith("for example --languages en-de")


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
