"""Corpora: the typed schema of a corpus file, and its loading by name, by file, or from three prefixes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from nmt_cli.errors import UsageError
from nmt_cli.recipe.documents import Document, merge, read_document, validate
from nmt_cli.recipe.loading import find_packaged, parse_override
from nmt_cli.recipe.schema import NonNegativeInt, PositiveInt, Section
from nmt_cli.tokenization.training import TokenizerKind

LanguageCode: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
Split: TypeAlias = Literal["train", "valid", "test"]


class LanguagePair(Section):
    """The codes of the two languages; they name the files of raw text in the prepared data."""

    source: LanguageCode
    target: LanguageCode

    @model_validator(mode="after")
    def _two_languages(self) -> LanguagePair:
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}; give them two names")
        return self


class TextSource(Section):
    """Two aligned files, one sentence a line; plain, .gz or .zst."""

    kind: Literal["text"]
    prefix: str | None = Field(None, description="PREFIX.en and PREFIX.de, each also with .gz or .zst")
    source: str | None = Field(None, description="or the file of the source")
    target: str | None = Field(None, description="and the file of the target")

    @model_validator(mode="after")
    def _prefix_or_files(self) -> TextSource:
        files = [file for file in (self.source, self.target) if file is not None]
        if len(files) != (0 if self.prefix is not None else 2):
            raise ValueError("a text source needs either prefix, or both source and target")
        return self


class TsvSource(Section):
    """A file of tab-separated columns, without quoting; plain, .gz or .zst."""

    kind: Literal["tsv"]
    file: str
    source: PositiveInt = Field(1, description="column of the source, counted from 1")
    target: PositiveInt = Field(2, description="column of the target")
    header: bool = Field(False, description="the first line names the columns")


class JsonlSource(Section):
    """A file with one JSON object a line; plain, .gz or .zst."""

    kind: Literal["jsonl"]
    file: str
    source: str | None = Field(None, description="key of the source, dotted where nested; null: its language code")
    target: str | None = Field(None, description="key of the target; null: its language code")


class HubSource(Section):
    """A data set of the Hugging Face hub, or a directory laid out like one (starts with ./, ../ or /)."""

    kind: Literal["hub"]
    repository: str
    subset: str | None = Field(None, description="configuration of the data set")
    split: str
    revision: str | None = Field(None, description="commit, tag or branch; null: the newest")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")

    @property
    def is_local(self) -> bool:
        """True where `repository` is a directory."""
        return self.repository.startswith(("./", "../", "/"))


Source = Annotated[TextSource | TsvSource | JsonlSource | HubSource, Field(discriminator="kind")]
Sources = Annotated[list[Source], Field(min_length=1)]


class DemoGenerator(Section):
    """The English-German grammar that is built in: no word combination of the test is in the training text."""

    kind: Literal["demo"]
    seed: NonNegativeInt = 1
    train_pairs: PositiveInt = 20_000
    valid_pairs: PositiveInt = 500
    test_pairs: PositiveInt = 1_000


class CleaningConfig(Section):
    """Which training pairs are dropped; pairs with an empty side or invalid UTF-8 always are. null: the rule is off."""

    max_words: PositiveInt | None = Field(250, description="longest side in words")
    max_characters: PositiveInt | None = Field(2000, description="longest side in characters")
    max_length_ratio: Annotated[float, Field(ge=1)] | None = Field(
        3.0, description="longer side over shorter side, in characters; between alphabet and Han characters allow 9"
    )
    identical_sides: bool = Field(True, description="drop pairs whose sides are the same text")
    control_characters: bool = Field(True, description="drop pairs with control characters (Unicode Cc)")
    duplicates: bool = Field(True, description="drop all but the first of equal pairs")


class TokenizerConfig(Section):
    """The SentencePiece vocabulary, trained on the cleaned training text."""

    kind: TokenizerKind = "bpe"
    vocab_size: Annotated[int, Field(ge=300)] = Field(
        8000, description="pieces in all: 8,000 suit tens of thousands of pairs, the paper's 37,000 millions (5.1)"
    )
    shared: bool = Field(True, description="one vocabulary for both languages; false: one of vocab_size for each")
    character_coverage: Annotated[float, Field(gt=0.9, le=1)] = Field(
        0.9999, description="share of the text's characters that get pieces; the others are spelt in bytes"
    )
    sample_lines: PositiveInt = Field(5_000_000, description="train on at most so many lines, drawn by seed")
    seed: NonNegativeInt = 1


class Corpus(Section):
    """Parallel text and how to make training data of it: what a corpus file says."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="prepared data is data/NAME"
    )
    description: str = ""
    languages: LanguagePair
    generator: DemoGenerator | None = Field(None, description="makes all splits, in place of train, valid and test")
    train: Sources | None = None
    valid: Sources | None = None
    test: Sources | None = None
    limit: PositiveInt | None = Field(None, description="read only the first so many training pairs; null: all")
    cleaning: CleaningConfig = CleaningConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()

    @model_validator(mode="after")
    def _sources_are_complete(self) -> Corpus:
        if self.generator is None and (self.train is None or self.valid is None):
            raise ValueError("a corpus needs train and valid, or a generator")
        if self.generator is not None and (self.train or self.valid or self.test):
            raise ValueError("a generator makes all splits: remove train, valid and test")
        return self

    def sources(self, split: Split) -> list[Source]:
        """The sources of a split, in the order in which they are read; none for a generator or without a test."""
        chosen: list[Source] | None = getattr(self, split)
        return chosen or []

    @property
    def splits(self) -> list[Split]:
        """The splits that the corpus has."""
        if self.generator is not None:
            return ["train", "valid", "test"]
        return ["train", "valid", *(["test"] if self.test else [])]  # type: ignore[list-item]  # literals, to mypy str


@dataclass(frozen=True, slots=True)
class LocatedCorpus:
    """A corpus and the folder that its relative paths start from."""

    corpus: Corpus
    folder: Path


def load_corpus(reference: str, *, overrides: Sequence[str]) -> LocatedCorpus:
    """The corpus of a file, or of a name that travels with the package; `overrides` are `key.key=value`."""
    file = find_packaged(reference, kind="corpus")
    document = read_document(file)
    document.values.setdefault("name", file.stem)
    return LocatedCorpus(_with_overrides(document, overrides, source=str(file)), file.parent)


def corpus_of_prefixes(
    prefixes: dict[Split, str], *, languages: str, name: str, overrides: Sequence[str]
) -> LocatedCorpus:
    """The corpus of text files PREFIX.LANGUAGE, one prefix a split; `languages` is SOURCE-TARGET."""
    source, dash, target = languages.partition("-")
    if not (dash and source and target) or "-" in target:
        raise UsageError(
            f"--languages {languages!r} is not SOURCE-TARGET", where="--languages", hint="for example --languages en-de"
        )
    values: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "corpus",
        "languages": {"source": source, "target": target},
        **{split: [{"kind": "text", "prefix": prefix}] for split, prefix in prefixes.items()},
    }
    document = Document(values, {("languages",): "--languages"})
    return LocatedCorpus(_with_overrides(document, overrides, source="nmt prepare"), Path())


def _with_overrides(document: Document, overrides: Sequence[str], *, source: str) -> Corpus:
    for override in overrides:
        document = merge(document, parse_override(override))
    return validate(document, Corpus, source=source, fix="nmt prepare NAME --dry-run shows every key with its value")
