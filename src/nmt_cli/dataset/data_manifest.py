"""The manifest of prepared data: its inputs, its size, and its tokenizers.

`nmt info` reads it without numpy, so that it answers at once.
"""

from __future__ import annotations

import shlex
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from nmt_cli.errors import DataError
from nmt_cli.files import read_json
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.mistakes import first_mistake
from nmt_cli.recipe.section import Section

MANIFEST = "manifest.json"
FORMAT = 1
TokenDtype = Literal["uint16", "uint32"]
PREPARE_AGAIN = "prepare the data again: give the same nmt prepare command once more"


class SplitCounts(Section):
    """The size of a split; tokens with EOS."""

    pairs: int
    source_tokens: int
    target_tokens: int
    by_direction: list[int] | None = None
    """Pairs of each direction, in the order of the directions, which is that of the pairs; None: there is one."""

    @property
    def ranges(self) -> list[range]:
        """The indices of the pairs of each direction, in the order of the directions."""
        sizes = self.by_direction or [self.pairs]
        return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


class TokenizerRecord(Section):
    """A tokenizer by size and by the SHA-256 of its file."""

    vocab_size: int
    fingerprint: str


class Tokenizers(Section):
    """The tokenizers of the two sides; equal if the vocabulary is shared."""

    source: TokenizerRecord
    target: TokenizerRecord


class InputRecord(Section):
    """An input of a split, a file or generated text, with the SHA-256 of its bytes."""

    split: str
    name: str
    bytes: int
    sha256: str


class Manifest(Section):
    """The contents of `manifest.json` in a directory of prepared data."""

    kind: Literal["prepared data"] = "prepared data"
    format: int = FORMAT
    nmt_version: str
    name: str
    languages: Directions
    shared_vocabulary: bool
    tokenizers: Tokenizers
    dtype: TokenDtype
    splits: dict[str, SplitCounts]
    unique_pairs: int | None = None
    """The training pairs, each once, whatever the weight of its source."""
    several_sentences: float | None = None
    """The share of training lines whose source holds several sentences, of a sample."""
    in_capitals: float = 0.0
    """The share of these lines that are in capitals."""
    in_title_case: float = 0.0
    """The share of these lines that are in title case."""
    inputs: list[InputRecord]
    fingerprint: str
    """The hash of all that the contents depend on: inputs, languages, cleaning, tokenizer."""
    corpus: dict[str, Any]
    """The corpus file with all its defaults, as `nmt prepare` used it."""
    files: dict[str, int]
    """Size in bytes of every other file in the directory that readers need."""


def read_manifest(directory: Path) -> Manifest:
    """The manifest of prepared data; DataError if there is none, or if it is damaged or has another format."""
    where, file = str(directory), str(directory / MANIFEST)
    give_another = "give the directory that nmt prepare wrote (its -o)"
    if not directory.is_dir():
        hint = f"nmt prepare NAME -o {shlex.quote(where)}"
        raise DataError(f"there is no prepared data at {directory}", where=where, hint=hint)
    if not (directory / MANIFEST).exists():
        raise DataError(f"{directory} is not prepared data: it has no {MANIFEST}", where=where, hint=give_another)
    values = read_json(directory / MANIFEST, error=DataError, hint=PREPARE_AGAIN)
    if not isinstance(values, dict) or values.get("kind") != "prepared data":
        raise DataError(f"{directory} holds something other than prepared data", where=file, hint=give_another)
    if values.get("format") != FORMAT:
        message = f"this prepared data has format {values.get('format')}, and this nmt reads format {FORMAT}"
        raise DataError(message, where=file, hint="prepare the data again with this version of nmt")
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{MANIFEST} is damaged: {first_mistake(error)}", where=file, hint=PREPARE_AGAIN) from None


def describe_data(directory: Path) -> dict[str, Any]:
    """Prepared data for `nmt info`: languages, splits, tokenizers, lengths, inputs, size in bytes, damage.

    The lengths, by split, side and unit (words, pieces without EOS), are those of report.json without its histograms.
    """
    manifest, keys = read_manifest(directory), ("total", "mean", "p50", "p90", "p99", "max")
    sizes = {name: (directory / name).stat().st_size for name in manifest.files if (directory / name).is_file()}
    damaged_files = [name for name, size in manifest.files.items() if sizes.get(name) != size]
    lengths = None
    try:
        splits = read_json(directory / "report.json", error=DataError, hint=PREPARE_AGAIN)["splits"]
        lengths = {
            split: {
                side: {unit: {key: facts[unit][key] for key in keys} for unit in ("words", "pieces")}
                for side, facts in sides.items()
            }
            for split, sides in splits.items()
        }
    except DataError:
        damaged_files.append("report.json")
    fields = {"name", "nmt_version", "languages", "shared_vocabulary", "tokenizers", "splits"}
    return {
        "kind": "data",
        "path": str(directory),
        **manifest.model_dump(mode="json", include=fields),
        "lengths": lengths,
        **manifest.model_dump(mode="json", include={"inputs", "corpus"}),
        "bytes": sum(manifest.files.values()),
        "damage": f"missing, cut short or changed: {', '.join(damaged_files)}" if damaged_files else None,
    }
