"""Corpora of which only the lengths matter, and prepared data of random pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import strategies as st

from nmt_cli.dataset.data_manifest import Manifest, SplitCounts, TokenDtype, TokenizerRecord, Tokenizers
from nmt_cli.dataset.plan_computation import EpochPlan, Mixture, compute_plan
from nmt_cli.dataset.prepared_data import (
    SIDES,
    Array,
    PreparedData,
    TokenizedSide,
    TokenPairs,
    TokenWriter,
    open_prepared,
)
from nmt_cli.recipe.directions import Directions
from nmt_cli.tokenization.tokenizer import EOS

_TOKENIZER = b"no model"
LONGEST = 300
_LENGTH = st.one_of(st.integers(1, 40), st.integers(1, LONGEST))


def write_prepared(directory: Path, *, num_pairs: int = 500) -> PreparedData:
    """Prepared data with one split, sentences of 1 to 40 pieces."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(5)
    tokens = {}
    for side in SIDES:
        with TokenWriter(directory, split="train", side=side, dtype="uint16") as writer:
            rows = [generator.integers(4, 9000, generator.integers(0, 40)).tolist() for _ in range(num_pairs)]
            append_rows(writer, rows)
        tokens[side] = writer.tokens
        (directory / f"{side}.spm").write_bytes(_TOKENIZER)
    record = TokenizerRecord(vocab_size=9000, fingerprint=sha256(_TOKENIZER).hexdigest())
    manifest = Manifest(
        nmt_version="0",
        name="random",
        languages=Directions.single("en", "de"),
        shared_vocabulary=True,
        tokenizers=Tokenizers(source=record, target=record),
        dtype="uint16",
        splits={"train": SplitCounts(pairs=num_pairs, source_tokens=tokens["source"], target_tokens=tokens["target"])},
        inputs=[],
        fingerprint="f" * 64,
        corpus={},
        files={path.name: path.stat().st_size for path in sorted(directory.glob("train.*"))},
    )
    (directory / "manifest.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    return open_prepared(directory)


def append_rows(writer: TokenWriter, rows: Sequence[Sequence[int]]) -> None:
    """Add sentences given without EOS."""
    ids = np.array([token for row in rows for token in (*row, EOS)], dtype=np.int64)
    writer.append(ids, np.array([len(row) + 1 for row in rows], dtype=np.int64))


@dataclass(frozen=True)
class Corpus:
    """Lengths of the two sides, in pieces with EOS."""

    src: Array
    tgt: Array

    def __len__(self) -> int:
        return len(self.src)

    @property
    def pairs(self) -> TokenPairs:
        """Sentences of these lengths."""
        return TokenPairs(*(tokenized_side(np.zeros(side.sum(), np.uint16), side) for side in (self.src, self.tgt)))

    @property
    def sizes(self) -> Array:
        """The longer side of each pair."""
        return np.maximum(self.src, self.tgt)

    def plan(
        self,
        *,
        batch_tokens: int,
        seed: int = 1,
        epoch: int = 0,
        max_positions: int = 1 << 20,
        mixture: Mixture | None = None,
    ) -> EpochPlan:
        """The plan of an epoch."""
        return compute_plan(
            self.pairs,
            batch_tokens=batch_tokens,
            max_positions=max_positions,
            seed=seed,
            epoch=epoch,
            invariants=None,
            mixture=mixture,
        )


def tokenized_side(ids: Array, lengths: Array, *, dtype: TokenDtype = "uint16") -> TokenizedSide:
    """Sentences given end to end, and their lengths; the files are open, so they may be removed."""
    with TemporaryDirectory() as folder:
        with TokenWriter(Path(folder), split="train", side="source", dtype=dtype) as writer:
            writer.append(ids, lengths)
        files = (Path(folder, f"train.source.{kind}") for kind in ("ids", "offsets"))
        return TokenizedSide(*files, dtype=np.dtype(dtype))


def sentences(side: TokenizedSide) -> list[list[int]]:
    """The ids of each sentence of a side."""
    return [side.ids(index, index + 1).tolist() for index in range(len(side))]


def as_corpus(pairs: list[tuple[int, int]]) -> Corpus:
    """A corpus of pairs given as (source length, target length)."""
    src, tgt = np.array(pairs, dtype=np.int64).T
    return Corpus(src, tgt)


def realistic(num_pairs: int, *, seed: int = 1, ratio: float = 1.0) -> Corpus:
    """Lengths like those of WMT14: 28 pieces on average, up to 256, targets `ratio` times as long as sources."""
    generator = np.random.default_rng(seed)
    src = np.clip(generator.lognormal(3.1, 0.7, num_pairs), 2, 256)
    tgt = np.clip(ratio * src * generator.lognormal(0.0, 0.2, num_pairs), 2, 256)
    return Corpus(src.astype(np.int64), tgt.astype(np.int64))


CORPORA = st.lists(st.tuples(_LENGTH, _LENGTH), min_size=1, max_size=80).map(as_corpus)
