"""Corpora of which only the lengths matter, and prepared data of random pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

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
    held_out_files,
    open_prepared,
)
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.sentencepiece_model import CONTROL, Piece, read_pieces, with_pieces
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer
from tests.artifacts.builders import single

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
        languages=single("en", "de"),
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


def in_two_directions(
    data: PreparedData,
    directory: Path,
    *,
    num_back: int,
    symbol_on: Literal["source", "target"] = "source",
    tags: Sequence[str] = (),
) -> PreparedData:
    """The data with a shared vocabulary in two directions: all of it in its own, and the first pairs backwards.

    Of the validation text, all is there in both. With `symbol_on="target"` each side begins with its own symbol.
    `tags` follow the symbol of each source.
    """
    directory.mkdir(parents=True)
    (pair,) = data.manifest.languages.pairs
    symbols = {code: f"<2{code}>" for code in (pair.source, pair.target)}
    model = data.source_tokenizer_file.read_bytes()
    pieces = [*read_pieces(model), *(Piece(symbol, 0.0, CONTROL) for symbol in [*symbols.values(), *tags])]
    model = with_pieces(model, pieces, has_bytes=True)
    ids = dict(zip(symbols, Tokenizer(model).symbol_ids([*symbols.values()]), strict=True))
    tag_ids = Tokenizer(model).symbol_ids(tags)
    for side in SIDES:
        (directory / f"{side}.spm").write_bytes(model)
    splits = {}
    for split, counts in data.manifest.splits.items():
        forwards = data.split(split)
        rows = {side: sentences(tokens) for side, tokens in zip(SIDES, (forwards.src, forwards.tgt), strict=True)}
        sizes = [counts.pairs, num_back if split == "train" else counts.pairs]
        here, there = (
            [pair.source] * sizes[0] + [pair.target] * sizes[1],
            [pair.target] * sizes[0] + [pair.source] * sizes[1],
        )
        sources = [row[:-1] for row in [*rows["source"], *rows["target"][: sizes[1]]]]
        targets = [row[:-1] for row in [*rows["target"], *rows["source"][: sizes[1]]]]
        on_source = there if symbol_on == "source" else here
        sources = [[ids[code], *tag_ids, *row] for code, row in zip(on_source, sources, strict=True)]
        if symbol_on == "target":
            targets = [[ids[code], *row] for code, row in zip(there, targets, strict=True)]
        tokens = {}
        for side, of_side in zip(SIDES, (sources, targets), strict=True):
            with TokenWriter(directory, split=split, side=side, dtype=data.manifest.dtype) as writer:
                append_rows(writer, of_side)
            tokens[f"{side}_tokens"] = writer.tokens
        splits[split] = SplitCounts(pairs=sum(sizes), by_direction=sizes, **tokens)
    pairs = [pair, LanguagePair(source=pair.target, target=pair.source)]
    if "valid" in splits:
        for names, texts in zip(
            held_out_files("valid", pairs), (data.texts("valid"), data.texts("valid")[::-1]), strict=True
        ):
            for name, lines in zip(names, texts, strict=True):
                (directory / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    record = TokenizerRecord(vocab_size=len(pieces), fingerprint=sha256(model).hexdigest())
    changes = {
        "languages": Directions(
            pairs=pairs,
            target_symbols=symbols,
            target_symbol_on=symbol_on,
            source_symbols=symbols if symbol_on == "target" else {},
        ),
        "tokenizers": Tokenizers(source=record, target=record),
        "splits": splits,
        "fingerprint": sha256(f"{data.manifest.fingerprint} {num_back}".encode()).hexdigest(),
        "files": {path.name: path.stat().st_size for path in sorted(directory.glob("*.ids"))},
    }
    manifest = data.manifest.model_copy(update=changes)
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
