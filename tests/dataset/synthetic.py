"""Prepared data of random pieces, written without a preparation."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from nmt_cli.dataset.manifest import Languages, Manifest, SplitCounts, TokenizerRecord, Tokenizers
from nmt_cli.dataset.plan import PlanKey
from nmt_cli.dataset.store import SIDES, PreparedData, TokenWriter, open_prepared
from nmt_cli.tokenization.tokenizer import EOS

_TOKENIZER = b"no model"


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
        languages=Languages(source="en", target="de"),
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


def key_of(data: PreparedData, *, epoch: int = 0, seed: int = 1, batch_tokens: int = 500) -> PlanKey:
    """The key of a plan of such data."""
    counts = data.manifest.splits["train"]
    return PlanKey(
        data=data.manifest.fingerprint,
        num_pairs=counts.pairs,
        src_tokens=counts.source_tokens,
        tgt_tokens=counts.target_tokens,
        batch_tokens=batch_tokens,
        max_positions=64,
        seed=seed,
        epoch=epoch,
    )


def append_rows(writer: TokenWriter, rows: Sequence[Sequence[int]]) -> None:
    """Add sentences given without EOS."""
    ids = np.array([token for row in rows for token in (*row, EOS)], dtype=np.int64)
    writer.append(ids, np.array([len(row) + 1 for row in rows], dtype=np.int64))
