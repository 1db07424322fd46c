"""What prepared data is like: lengths, use of the vocabulary, overlap, what cleaning dropped, and some pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.manifest import PREPARE_AGAIN
from nmt_cli.dataset.store import SIDES, PreparedData, TokenFile
from nmt_cli.errors import DataError
from nmt_cli.files import read_json
from nmt_cli.preparing.lengths import MAX_COUNTED, summarise
from nmt_cli.tokenization.tokenizer import UNK, Tokenizer

REPORT = "report.json"
REPORT_PAGE = "report.md"

_NUM_EXAMPLES = 5
_BLOCK = 1 << 22


def build_report(data: PreparedData, *, cleaning: dict[str, Any], tokenizers: dict[str, Any]) -> dict[str, Any]:
    """The report of prepared data, ready for JSON; `cleaning` and `tokenizers` are the counts that the stages kept."""
    manifest = data.manifest
    loaded = {
        "source": Tokenizer.load(data.source_tokenizer_file),
        "target": Tokenizer.load(data.target_tokenizer_file),
    }
    return {
        "name": manifest.name,
        "languages": manifest.languages.model_dump(),
        "pairs": {split: counts.pairs for split, counts in manifest.splits.items()},
        "cleaning": {key: cleaning[key] for key in ("read", "kept", "tidied", "dropped")},
        "overlap": cleaning["overlap"],
        "vocabulary": {
            "shared": manifest.shared_vocabulary,
            **{side: {"size": loaded[side].vocab_size, **tokenizers[side]} for side in SIDES},
        },
        "splits": {
            split: {
                side: _describe(_side(data, split, side), loaded[side], words=cleaning["words"][split][side])
                for side in SIDES
            }
            for split in manifest.splits
        },
        "examples": _examples(data, loaded),
    }


def read_report(directory: Path) -> dict[str, Any]:
    """The report that lies in a directory of prepared data."""
    report: dict[str, Any] = read_json(directory / REPORT, error=DataError, hint=PREPARE_AGAIN)
    return report


def _side(data: PreparedData, split: str, side: str) -> TokenFile:
    pairs = data.split(split)
    return pairs.src if side == "source" else pairs.tgt


def _describe(tokens: TokenFile, tokenizer: Tokenizer, *, words: list[int]) -> dict[str, Any]:
    """Lengths in words and in pieces without EOS, and how the vocabulary is used; rates are shares of the pieces."""
    word_counts = np.asarray(words, dtype=np.int64)
    piece_counts = np.bincount(np.minimum(tokens.lengths - 1, MAX_COUNTED))
    usage = _usage(tokens, tokenizer)
    num_words = int(word_counts @ np.arange(len(word_counts)))
    num_pieces = len(tokens.ids) - len(tokens)
    is_byte = np.zeros(tokenizer.vocab_size, dtype=bool)
    is_byte[tokenizer.byte_ids] = True
    return {
        "words": summarise(word_counts),
        "pieces": summarise(piece_counts),
        "pieces_per_word": round(num_pieces / max(num_words, 1), 3),
        "unknown_rate": round(int(usage[UNK]) / max(num_pieces, 1), 6),
        "byte_rate": round(int(usage[is_byte].sum()) / max(num_pieces, 1), 6),
        "pieces_used": int(np.count_nonzero(usage)),
    }


def _usage(tokens: TokenFile, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """How often each id occurs, [V]; read in blocks, so that the token file need not fit into memory."""
    usage = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for start in range(0, len(tokens.ids), _BLOCK):
        usage += np.bincount(tokens.ids[start : start + _BLOCK], minlength=len(usage))
    return usage


def _examples(data: PreparedData, loaded: dict[str, Tokenizer]) -> list[dict[str, Any]]:
    """A few training pairs, the same at every preparation, as text and in pieces."""
    train = data.split("train")
    chosen = np.random.default_rng(len(train)).permutation(len(train))[:_NUM_EXAMPLES]
    return [
        {
            side: {"text": loaded[side].decode([ids])[0], "pieces": loaded[side].pieces(ids)}
            for side, ids in (
                ("source", train.src[int(index)][:-1].tolist()),
                ("target", train.tgt[int(index)][:-1].tolist()),
            )
        }
        for index in chosen
    ]
