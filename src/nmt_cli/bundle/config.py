"""What config.yaml of a model directory says: languages, vocabulary, updates, and the whole recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from nmt_cli import __version__
from nmt_cli.errors import ModelError, RecipeError
from nmt_cli.recipe.documents import parse_document, validate
from nmt_cli.recipe.schema import PositiveInt, Recipe, Section

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
DAMAGED = "copy the whole directory again from where it was made, or make it again: nmt average runs/NAME"


class Languages(Section):
    """The codes of the two languages, such as de."""

    source: Annotated[str, Field(min_length=1)]
    target: Annotated[str, Field(min_length=1)]


class Vocabulary(Section):
    """Pieces of source.spm and target.spm, and the ids of the special ones; a piece's id is SentencePiece's."""

    source: PositiveInt
    target: PositiveInt
    shared: bool = Field(description="source.spm and target.spm are one file")
    pad: Literal[0] = 0
    unk: Literal[1] = 1
    bos: Literal[2] = Field(2, description="what the decoder starts with; the source has none")
    eos: Literal[3] = Field(3, description="what ends the source and the target")


class Measurement(Section):
    """What training measured on the validation set after one update."""

    update: PositiveInt
    loss: float = Field(description="smoothed, nats per target token")
    perplexity: float | None = None
    bleu: float | None = None
    signature: str | None = Field(None, description="sacreBLEU's")


class BundleConfig(Section):
    """config.yaml: all that decoding, serving and exporting need besides weights and tokenizers."""

    format: Literal[1] = 1
    nmt_version: str
    languages: Languages
    vocabulary: Vocabulary
    updates: list[PositiveInt] = Field(
        description="updates of the checkpoints that were averaged, or of the single one, ascending; none: imported"
    )
    validation: list[Measurement] = Field([], description="what training measured at those updates")
    longest_source: PositiveInt | None = Field(
        None,
        description="pieces, EOS not counted, of the longest source sentence of its training data; none: not known",
    )
    recipe: Recipe

    @model_validator(mode="after")
    def _vocabulary_fits_tying(self) -> BundleConfig:
        source, target = self.vocabulary.source, self.vocabulary.target
        if self.recipe.model.tying == "all" and source != target:
            raise ValueError(f"tying: all needs one vocabulary, not {source} and {target} pieces")
        return self


def dump_config(config: BundleConfig) -> str:
    """The text of config.yaml, every value written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def load_config(path: Path) -> BundleConfig:
    """The configuration of the model directory `path`; ModelError names file and line of what cannot be read."""
    file = path / CONFIG
    values: dict[str, Any] = {}
    try:
        document = parse_document(file.read_text(encoding="utf-8"), source=str(file))
        values = document.values
        return validate(document, BundleConfig, source=str(file), fix=DAMAGED)
    except FileNotFoundError:
        raise ModelError(f"{CONFIG} is missing", where=str(file), hint=DAMAGED) from None
    except UnicodeDecodeError as problem:
        raise ModelError(f"{CONFIG} is damaged: {problem}", where=str(file), hint=DAMAGED) from None
    except RecipeError as problem:
        if _is_newer(values):
            writer = f"{CONFIG} was written by nmt {values.get('nmt_version')}, and this is {__version__}"
            hint = "pip install -U nmt-cli"
            raise ModelError(f"{writer}: {problem.message}", where=problem.where, hint=hint) from None
        raise ModelError(problem.message, where=problem.where, hint=problem.hint) from None


def _is_newer(values: Mapping[str, Any]) -> bool:
    """Whether config.yaml is of a later format, or from a later version, than this nmt's."""
    later_format = isinstance(values.get("format"), int) and values["format"] > 1
    numbers = [re.findall(r"\d+", str(version)) for version in (values.get("nmt_version", ""), __version__)]
    theirs, ours = (tuple(map(int, parts)) for parts in numbers)
    return later_format or theirs > ours
