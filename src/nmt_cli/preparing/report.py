"""What prepared data is like: lengths, use of the vocabulary, overlap, what cleaning dropped, and some pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.manifest import PREPARE_AGAIN
from nmt_cli.dataset.store import SIDES, PreparedData, TokenFile
from nmt_cli.errors import DataError
from nmt_cli.files import read_json
from nmt_cli.preparing.corpora import Corpus
from nmt_cli.tokenization.tokenizer import UNK, Tokenizer

REPORT = "report.json"
REPORT_PAGE = "report.md"

_NUM_EXAMPLES = 5
_BLOCK = 1 << 22
_EDGES = (0, 1, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 250)


class WordCounts:
    """How many sentences have how many words, a side, counted as they pass by."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {side: Counter() for side in SIDES}

    def add(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Count the words of both sides of pairs."""
        for index, counts in enumerate(self._counts.values()):
            counts.update(len(pair[index].split()) for pair in pairs)

    def report(self) -> dict[str, list[tuple[int, int]]]:
        """For each side, the lengths in words that occur, ascending, each with its number of sentences."""
        return {side: sorted(counts.items()) for side, counts in self._counts.items()}


def build_report(
    data: PreparedData, corpus: Corpus, *, cleaning: dict[str, Any], tokenizers: dict[str, Any]
) -> dict[str, Any]:
    """The report of prepared data, ready for JSON; `cleaning` and `tokenizers` are the counts that the stages kept."""
    manifest = data.manifest
    loaded = {
        "source": Tokenizer.load(data.source_tokenizer_file),
        "target": Tokenizer.load(data.target_tokenizer_file),
    }
    return {
        "name": manifest.name,
        "description": corpus.description,
        "licence": corpus.licence,
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
                side: _describe(_side(data, split, side), loaded[side], words=dict(cleaning["words"][split][side]))
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


def summarise(counts: Mapping[int, int]) -> dict[str, Any]:
    """Mean, percentiles, maximum and histogram of lengths, given how many sentences have each length."""
    lengths = np.array(sorted(counts), dtype=np.int64)
    numbers = np.array([counts[length] for length in lengths.tolist()], dtype=np.int64)
    total = int(numbers.sum())
    if total == 0:
        return {"mean": 0.0, "p50": 0, "p90": 0, "p99": 0, "max": 0, "histogram": _histogram(lengths, numbers)}
    cumulative = np.cumsum(numbers)
    percentiles = {
        name: int(lengths[np.searchsorted(cumulative, share * total)])
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    return {
        "mean": round(float(numbers @ lengths) / total, 2),
        **percentiles,
        "max": int(lengths[-1]),
        "histogram": _histogram(lengths, numbers),
    }


def _histogram(lengths: NDArray[np.int64], numbers: NDArray[np.int64]) -> list[dict[str, int | None]]:
    """The number of sentences from each edge (included) to the next (excluded); the last bin is open."""
    bin_of_length = np.searchsorted(_EDGES, lengths, side="right") - 1
    sentences = np.bincount(bin_of_length, weights=numbers, minlength=1)
    ends = [edge - 1 for edge in _EDGES[1:]]
    return [
        {"from": start, "to": end, "sentences": int(number)}
        for start, end, number in zip(_EDGES, [*ends, None], sentences, strict=False)
    ]


def _describe(tokens: TokenFile, tokenizer: Tokenizer, *, words: Mapping[int, int]) -> dict[str, Any]:
    """Lengths in words and in pieces without EOS, and how the vocabulary is used; rates are shares of the pieces."""
    lengths, numbers = np.unique(tokens.lengths - 1, return_counts=True)
    usage = _usage(tokens, tokenizer)
    num_words = sum(length * number for length, number in words.items())
    num_pieces = len(tokens.ids) - len(tokens)
    is_byte = np.zeros(tokenizer.vocab_size, dtype=bool)
    is_byte[tokenizer.byte_ids] = True
    return {
        "words": summarise(words),
        "pieces": summarise(dict(zip(lengths.tolist(), numbers.tolist(), strict=True))),
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
