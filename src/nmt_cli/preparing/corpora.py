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

_CODE = r"^[A-Za-z][A-Za-z0-9_-]*$"
LanguageCode: TypeAlias = Annotated[str, Field(pattern=_CODE)]
Split: TypeAlias = Literal["train", "valid", "test"]


class LanguagePair(Section):
    """The codes of the two languages; they name the files of raw text in the prepared data."""

    source: LanguageCode = Field(description="code of the language that is translated from, such as en or pt-BR")
    target: LanguageCode = Field(description="code of the language that is translated into")

    @model_validator(mode="after")
    def _two_languages(self) -> LanguagePair:
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}", "give each language a code of its own")
        return self


class TextSource(Section):
    """Two aligned files, one sentence a line; plain, .gz or .zst."""

    kind: Literal["text"] = Field(description="text in two files")
    prefix: str | None = Field(None, description="PREFIX.en and PREFIX.de, each also with .gz or .zst")
    source: str | None = Field(None, description="or the file of the source")
    target: str | None = Field(None, description="and the file of the target")

    @model_validator(mode="after")
    def _prefix_or_files(self) -> TextSource:
        files = [file for file in (self.source, self.target) if file is not None]
        if len(files) != (0 if self.prefix is not None else 2):
            raise ValueError(
                "a text source needs either prefix, or both source and target",
                "write prefix: PREFIX for PREFIX.CODE, or source: FILE and target: FILE",
            )
        return self


class TsvSource(Section):
    """A file of tab-separated columns, without quoting; plain, .gz or .zst."""

    kind: Literal["tsv"] = Field(description="two columns of one file")
    file: str = Field(description="path of the file")
    source: PositiveInt = Field(1, description="column of the source, counted from 1")
    target: PositiveInt = Field(2, description="column of the target")
    header: bool = Field(False, description="the first line names the columns")


class JsonlSource(Section):
    """A file with one JSON object a line; plain, .gz or .zst."""

    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    file: str = Field(description="path of the file")
    source: str | None = Field(None, description="key of the source, dotted where nested; null: its language code")
    target: str | None = Field(None, description="key of the target; null: its language code")


class HubSource(Section):
    """A data set of the Hugging Face hub, or a directory laid out like one (starts with ./, ../ or /)."""

    kind: Literal["hub"] = Field(description="two columns of a data set")
    repository: str = Field(description="OWNER/NAME on the hub, or a directory")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = Field(description="split of the data set, such as train or validation")
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

    kind: Literal["demo"] = Field(description="the built-in grammar")
    seed: NonNegativeInt = Field(1, description="other sentences for each seed")
    train_pairs: PositiveInt = Field(20_000, description="pairs of training text")
    valid_pairs: PositiveInt = Field(500, description="pairs of validation text")
    test_pairs: PositiveInt = Field(1_000, description="pairs of test text")


class CleaningConfig(Section):
    """Which training pairs are dropped; null or false: the rule is off.

    Pairs with an empty side, invalid UTF-8 or a line break inside a side always are.
    """

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

    kind: TokenizerKind = Field("bpe", description="byte-pair encoding, as in the paper (5.1), or a unigram model")
    vocab_size: Annotated[int, Field(ge=300)] = Field(
        8000, description="pieces in all: 8,000 suit tens of thousands of pairs, the paper's 37,000 millions (5.1)"
    )
    shared: bool = Field(True, description="one vocabulary for both languages; false: one of vocab_size for each")
    character_coverage: Annotated[float, Field(gt=0.9, le=1)] = Field(
        0.9999, description="share of the text's characters that get pieces; the others are spelt in bytes"
    )
    sample_lines: PositiveInt = Field(5_000_000, description="train on at most so many lines, drawn by seed")
    seed: NonNegativeInt = Field(1, description="draws the lines, where there are more than sample_lines")


class Corpus(Section):
    """Parallel text and how to make training data of it: what a corpus file says."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="prepared data is data/NAME"
    )
    description: str = Field("", description="what the text is, for the report and the model card")
    licence: str | None = Field(None, description="terms of the text, for the report and the model card")
    languages: LanguagePair
    generator: DemoGenerator | None = Field(None, description="makes all splits, in place of train, valid and test")
    train: Sources | None = Field(None, description="sources of the training text, read in order and cleaned")
    valid: Sources | None = Field(None, description="sources of the validation text, of which every line is kept")
    test: Sources | None = Field(None, description="sources of the test text, of which every line is kept")
    limit: PositiveInt | None = Field(None, description="read only the first so many training pairs; null: all")
    cleaning: CleaningConfig = CleaningConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()

    @model_validator(mode="after")
    def _sources_are_complete(self) -> Corpus:
        if self.generator is None and (self.train is None or self.valid is None):
            raise ValueError(
                "a corpus needs train and valid, or a generator",
                "write a list of sources for each of them, or generator: {kind: demo}",
            )
        if self.generator is not None and (self.train or self.valid or self.test):
            raise ValueError(
                "a generator makes all splits, and sources are given as well",
                "remove train, valid and test, or remove generator",
            )
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
    """The corpus of text files PREFIX.LANGUAGE, one prefix a split; `languages` is SOURCE-TARGET.

    Raises UsageError where that is not two different codes.
    """
    source, target = _two_codes(languages)
    values: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "corpus",
        "languages": {"source": source, "target": target},
        **{split: [{"kind": "text", "prefix": prefix}] for split, prefix in prefixes.items()},
    }
    document = Document(values, {("languages",): "--languages"})
    return LocatedCorpus(_with_overrides(document, overrides, source="nmt prepare"), Path())


def _two_codes(languages: str) -> tuple[str, str]:
    codes = languages.split("-")
    hint = "for example --languages en-de"
    if len(codes) > 2:
        hint += "; a code with a hyphen takes a corpus file, with languages: {source: en, target: pt-BR} in it"
    if len(codes) != 2 or not all(re.fullmatch(_CODE, code) for code in codes):
        raise UsageError(f"--languages {languages!r} is not SOURCE-TARGET", where="--languages", hint=hint)
    if codes[0] == codes[1]:
        raise UsageError(f"--languages {languages!r} names one language twice", where="--languages", hint=hint)
    return codes[0], codes[1]


def _with_overrides(document: Document, overrides: Sequence[str], *, source: str) -> Corpus:
    for override in overrides:
        document = merge(document, parse_override(override))
    return validate(document, Corpus, source=source, fix="nmt prepare NAME --dry-run shows every key with its value")
