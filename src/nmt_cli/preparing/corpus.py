"""The schema of a corpus file: the sources of its text, and how training data is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator, model_validator

from nmt_cli.languages import script_of, standard_code
from nmt_cli.preparing.sources.archive import ArchiveSource
from nmt_cli.preparing.sources.base import (
    SPLIT_NAMES,
    CorpusContext,
    CorpusLanguages,
    Source,
    Split,
    is_address,
    kind_of_file,
    name_of_kind,
    sources_in_yaml,
    without_query,
)
from nmt_cli.preparing.sources.hub import HubSource
from nmt_cli.preparing.sources.jsonl_parquet import JsonlSource, ParquetSource
from nmt_cli.preparing.sources.po import PoSource
from nmt_cli.preparing.sources.text import TestsetSource, TextSource
from nmt_cli.preparing.sources.tmx_xliff import TmxSource, XliffSource
from nmt_cli.preparing.sources.tsv_csv import CsvSource, TsvSource
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.recipe.section import Name, NonNegativeInt, PositiveInt, Section, SettingError
from nmt_cli.tokenization.tokenizer import MIN_VOCAB_SIZE, TokenizerKind

AnySource: TypeAlias = Annotated[
    TextSource
    | TsvSource
    | CsvSource
    | TmxSource
    | XliffSource
    | PoSource
    | JsonlSource
    | ParquetSource
    | ArchiveSource
    | TestsetSource
    | HubSource,
    Field(discriminator="kind"),
]
Sources: TypeAlias = Annotated[list[AnySource], Field(min_length=1)]

DESCRIPTIVE_KEYS = frozenset({"description", "licence", "citation", "pairs", "bytes"})
"""The keys of a corpus file that do not change its text."""

DEFAULT_VOCAB_SIZE = 8_000
"""The pieces of a vocabulary, unless the corpus gives a size or has little text."""

_VALID_SIZE = 2_000
_PATH_KEYS = {"file", "prefix", "source", "target", "taken_from", "alignments"}
_SCRIPTS_OF_SHORT_TEXT = ("Hani", "Hans", "Hant", "Jpan", "Kore")


class CleaningConfig(Section):
    """Which training pairs are dropped; null or false: the rule is off.

    Pairs with an empty side, invalid UTF-8 or a line break inside a side are always dropped.
    """

    min_words: PositiveInt | None = Field(None, description="shortest side in words")
    max_words: PositiveInt | None = Field(250, description="longest side in words")
    min_characters: PositiveInt | None = Field(None, description="shortest side in characters")
    max_characters: PositiveInt | None = Field(2000, description="longest side in characters")
    max_length_ratio: Literal["auto"] | Annotated[float, Field(ge=1)] | None = Field(
        "auto",
        description="largest ratio of the sides' lengths in characters; auto: 9 if only one side is in Han, Kana or "
        "Hangul, or else 3",
    )
    max_word_ratio: Annotated[float, Field(ge=1)] | None = Field(
        None, description="the same in words, for two languages that are written with spaces"
    )
    identical_sides: bool = Field(True, description="drop pairs whose sides are the same text")
    control_characters: bool = Field(True, description="drop pairs with control characters (Unicode Cc)")
    punctuation_only: bool = Field(False, description="drop pairs with a side without letters and digits")
    url_only: bool = Field(False, description="drop pairs with a side that is nothing but web addresses")
    max_repeated_characters: PositiveInt | None = Field(
        None, description="longest run of one character, as in ..... or aaaaa"
    )
    other_script: bool = Field(
        False, description="drop pairs with a side whose letters are mostly in another script than its language's"
    )
    other_language: bool = Field(
        False, description="drop pairs with a longer side that is identified as another language; needs nmt-cli[langid]"
    )
    duplicates: bool = Field(True, description="drop all but the first of equal pairs")
    several_translations: Literal["all", "first", "newest"] = Field(
        "all",
        description="translations to keep of a source text that has several different ones; newest goes by the dates "
        "of TMX, else by the order of the sources and of their lines",
    )
    overlap: Literal["report", "pairs", "sides"] = Field(
        "report",
        description="training pairs that validation or test text has too: report counts them, pairs drops them if the "
        "whole pair is there, sides drops them if one side is there",
    )

    def length_ratio(self, languages: LanguagePair) -> float | None:
        """The largest ratio of the sides' lengths in characters, or None if the rule is off."""
        if self.max_length_ratio != "auto":
            return self.max_length_ratio
        source, target = (script_of(code) in _SCRIPTS_OF_SHORT_TEXT for code in (languages.source, languages.target))
        return 3.0 if source == target else 9.0

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> CleaningConfig:
        for unit in ("words", "characters"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                problem = f"min_{unit} is {least}, above max_{unit}, which is {most}"
                settings = (f"cleaning.min_{unit}", f"cleaning.max_{unit}")
                raise SettingError(problem, f"lower min_{unit} or raise max_{unit}", settings=settings)
        return self


class SideModels(Section):
    """A SentencePiece model for each language."""

    source: str = Field(description="file of the source's model")
    target: str = Field(description="file of the target's model")


class TokenizerConfig(Section):
    """The SentencePiece vocabulary: trained on the cleaned training text, your own, or taken from a model."""

    kind: TokenizerKind | None = Field(
        None, description="bpe: byte-pair encoding, as in the paper (5.1); unigram: a unigram model; null: bpe"
    )
    vocab_size: Annotated[int, Field(ge=MIN_VOCAB_SIZE)] | None = Field(
        None,
        description="pieces in all: 8,000 suit tens of thousands of pairs; the paper has 37,000 for 4.5 million (5.1); "
        f"null: {DEFAULT_VOCAB_SIZE:,}, or fewer for text below 480 KB",
    )
    shared: bool = Field(True, description="one vocabulary for both languages; false: one of vocab_size for each")
    character_coverage: Annotated[float, Field(gt=0.9, le=1)] = Field(
        0.9999, description="share of the text's characters that get pieces; the others are spelt in bytes"
    )
    sample_lines: PositiveInt = Field(5_000_000, description="most lines to train on, sampled by seed")
    seed: NonNegativeInt = Field(1, description="seed of the sample, if there are more than sample_lines")
    symbols: list[Annotated[str, Field(pattern=r"^[^\s\u2581]+$")]] = Field(
        [], description="your own symbols, each of which stays one piece wherever it stands in the text"
    )
    taken_from: SideModels | str | None = Field(
        None,
        description="a vocabulary that is used unchanged, with its own kind and size: a model, a run, prepared data, "
        "or your own SentencePiece model, unigram or BPE, with any ids: a file for both languages, or "
        "{source: FILE, target: FILE}; null: train a vocabulary",
    )


class ExpectedPairs(Section):
    """Pairs by split, as published."""

    train: PositiveInt | None = Field(None, description="pairs of training text")
    valid: PositiveInt | None = Field(None, description="pairs of validation text")
    test: PositiveInt | None = Field(None, description="pairs of test text")


class Corpus(Section):
    """A corpus file: parallel text, and how training data is made of it."""

    name: Name = Field(
        description="prepared data is data/NAME; if left out, the file's name without its ending",
        json_schema_extra={"shown_default": "the file's name"},
    )
    description: str = Field("", description="what the text is, for the report and the model card")
    licence: str | None = Field(None, description="terms of the text, for the report and the model card")
    citation: str | None = Field(None, description="the paper to cite, as BibTeX or in words")
    languages: CorpusLanguages | None = Field(
        None,
        description="the two languages of each source that names none",
        json_schema_extra={"shown_default": "required, unless each source has its own"},
    )
    pairs: ExpectedPairs | None = Field(None, description="how many pairs the sources have, for nmt corpora")
    bytes: PositiveInt | None = Field(None, description="how much is downloaded in all, for nmt corpora")
    train: Sources | None = Field(
        None,
        description="sources of the training text, read in order and cleaned",
        json_schema_extra={"shown_default": "required"},
    )
    valid: Sources | None = Field(None, description="sources of the validation text, of which every line is kept")
    test: Sources | None = Field(None, description="sources of the test text, of which every line is kept")
    valid_size: PositiveInt | None = Field(
        None,
        description="without valid: number of clean training pairs of each direction to set aside as validation text, "
        f"chosen by seed; null: {_VALID_SIZE:,}, or a tenth of the text if that is less; with several directions, at "
        "most a tenth of a direction's text",
    )
    test_size: PositiveInt | None = Field(
        None, description="without test: this many clean training pairs are set aside as test text; null: none"
    )
    split_seed: NonNegativeInt = Field(1, description="seed of the choice for valid_size and test_size")
    limit: PositiveInt | None = Field(
        None, description="read only this number of training pairs of each direction, from the start; null: all"
    )
    cleaning: CleaningConfig = CleaningConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()

    @field_validator("languages", mode="before")
    @classmethod
    def _languages_are_two_codes(cls, value: Any) -> Any:
        if isinstance(value, str):
            source, _, target = value.partition("-")
            codes = f"{{source: {source or 'en'}, target: {target or 'de'}}}"
            raise SettingError(f"languages is {value!r}, but should be two codes", f"write languages: {codes}")
        return value

    @field_validator("train", "valid", "test", mode="before")
    @classmethod
    def _sources_are_sections(cls, value: Any, info: ValidationInfo) -> Any:
        split = info.field_name
        if value == [] and split == "train":
            raise SettingError("train is empty", "name a source: train: [{kind: tsv, file: FILE}]")
        names = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        if names or isinstance(value, Mapping):
            source = source_of(names[0]) if names else value
            found = f"names {names[0]}, but no kind of source" if names else "is one source, and not a list of sources"
            raise SettingError(f"{split} {found}", f"write {split}: {sources_in_yaml([source])}")
        return value

    @model_validator(mode="after")
    def _sources_are_complete(self) -> Corpus:
        if self.train is None:
            raise SettingError("a corpus needs train", "write a list of sources for it")
        for split in ("valid", "test"):
            size = getattr(self, f"{split}_size")
            if getattr(self, split) is not None and size is not None:
                message = f"{split}_size is {size:,}, and {split} names text as well"
                raise SettingError(message, f"leave out {split}_size, or {split}", settings=(f"{split}_size", split))
        held_out = [*(self.valid or []), *(self.test or [])]
        for key, usual, what in (
            ("alignments", None, "have alignments"),
            ("weight", 1, "have a weight: every line of validation and test text is taken once"),
            ("synthetic", False, "are synthetic"),
        ):
            if any(getattr(source, key) != usual for source in held_out):
                raise SettingError(f"only sources of training text {what}", f"remove {key} there")
        tags = {symbol for source in self.train for symbol in source.tag_symbols}
        for symbol in (symbol for source in held_out for symbol in source.tag_symbols if symbol not in tags):
            raise SettingError(f"no training text has the tag {symbol[1:-1]}", "write it as a source of train has it")
        return self

    @model_validator(mode="after")
    def _languages_are_known(self) -> Corpus:
        for split in ("train", "valid", "test"):
            for number, source in enumerate(getattr(self, split) or []):
                if source.languages is None and self.languages is None:
                    place = f"{split}.{number}"
                    fix = "write languages: {source: en, target: de} there, or for the whole corpus"
                    raise SettingError(f"{place} has no languages", fix)
        pairs = self.directions.pairs
        spellings: dict[str, str] = {}
        for code in (code for pair in pairs for code in (pair.source, pair.target)) if len(pairs) > 1 else ():
            if (other := spellings.setdefault(standard_code(code), code)) != code:
                raise SettingError(f"{other} and {code} are the same language", f"write {other} in both places")
        for split in ("valid", "test"):
            for pair in [self._pair_of(source) for source in getattr(self, split) or []]:
                if pair not in pairs:
                    raise SettingError(f"{split} has text of {pair}, and train has none", f"add {pair} to train")
        return self

    @model_validator(mode="after")
    def _symbols_are_different(self) -> Corpus:
        own = [*self.directions.target_symbols.values(), *self.tag_symbols]
        counts = Counter([*self.tokenizer.symbols, *own])
        for symbol in self.tokenizer.symbols:
            if counts[symbol] > 1:
                problem = "is the symbol of a language or of a tag" if symbol in own else "is there twice"
                message = f"tokenizer.symbols has {symbol}, which {problem}"
                raise SettingError(message, "take it out", settings=("tokenizer.symbols",))
        return self

    @cached_property
    def directions(self) -> Directions:
        """The directions of the training text, in the order of their first sources; several have our symbols."""
        pairs = list(dict.fromkeys(map(self._pair_of, self.train or [])))
        targets = [pair.target for pair in pairs] if len(pairs) > 1 else []
        return Directions(pairs=pairs, target_symbols={code: f"<2{code}>" for code in targets})

    def direction_of(self, source: Source) -> int:
        """The index of a source's direction."""
        return self.directions.pairs.index(self._pair_of(source))

    def _pair_of(self, source: Source) -> LanguagePair:
        languages = source.languages or self.languages
        assert languages is not None
        return LanguagePair(source=languages.source, target=languages.target)

    def sources(self, split: Split) -> Sequence[Source]:
        """The sources of a split direction by direction, in reading order; empty for a test that is not there."""
        return sorted(getattr(self, split) or [], key=self.direction_of)

    @property
    def tag_symbols(self) -> list[str]:
        """The symbols of all tags, sorted."""
        return sorted({symbol for source in self.sources("train") for symbol in source.tag_symbols})

    @property
    def splits(self) -> list[Split]:
        """The splits that the corpus has."""
        return [split for split in SPLIT_NAMES if self.sources(split) or split in self.set_aside]

    @property
    def set_aside(self) -> list[Split]:
        """The splits that are taken from training text."""
        splits: list[Split] = [] if self.valid else ["valid"]
        return [*splits, "test"] if self.test_size else splits

    def size_of(self, split: Split, *, clean_pairs: int) -> int:
        """The number of pairs to set aside for a split, out of this number of clean training pairs of a direction."""
        size: int | None = getattr(self, f"{split}_size")
        if size is None or len(self.directions.pairs) > 1:
            return min(size or _VALID_SIZE, max(1, clean_pairs // 10))
        return size


@dataclass(frozen=True, slots=True)
class LocatedCorpus:
    """A corpus and the folder that its relative paths start from."""

    corpus: Corpus
    folder: Path

    def context(self, source: Source, *, downloads_newer_than: float = 0.0) -> CorpusContext:
        """The context of a source of the corpus; `downloads_newer_than` is as there."""
        pair = self.corpus.directions.pairs[self.corpus.direction_of(source)]
        return CorpusContext(self.folder, (pair.source, pair.target), downloads_newer_than)

    def values_here(self) -> dict[str, Any]:
        """The values of a file in the working folder that is the same corpus: local paths are whole in another one."""
        values, folder = self.corpus.model_dump(mode="json"), self.folder.resolve()
        if folder != Path.cwd():
            tokenizer = values["tokenizer"]
            models = tokenizer["taken_from"] if isinstance(tokenizer["taken_from"], dict) else tokenizer
            paths = [(models, key) for key in models if key in _PATH_KEYS and (folder / (models[key] or "")).exists()]
            for split in self.corpus.splits:
                for written, source in zip(values[split] or (), getattr(self.corpus, split) or (), strict=True):
                    paths += [(written, key) for key in _PATH_KEYS.intersection([*source.place_keys, "alignments"])]
                    if isinstance(source, HubSource) and source.is_local:
                        paths.append((written, "repository"))
            for section, key in paths:
                if section.get(key) is not None and not is_address(section[key]):
                    section[key] = str(folder / section[key])
        return values


def source_of(path: str) -> dict[str, str]:
    """The keys of a source for a file of pairs, or for a prefix."""
    kind = kind_of_file(without_query(path))
    if kind is None:
        return {"kind": "text", "prefix": path}
    place = "url" if kind is ArchiveSource and is_address(path) else "file"
    return {"kind": name_of_kind(kind), place: path}
