"""The report of prepared data: lengths, use of the vocabulary, overlap, dropped pairs, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.manifest import PREPARE_AGAIN
from nmt_cli.dataset.store import SIDES, PreparedData
from nmt_cli.errors import DataError
from nmt_cli.files import read_json
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.recipe.schema import Section
from nmt_cli.tokenization.tokenizer import UNK, Tokenizer

if TYPE_CHECKING:
    from nmt_cli.preparing.encoding import TokenStatistics

REPORT = "report.json"
REPORT_PAGE = "report.html"

_NUM_EXAMPLES = 5
_MAX_BINS = 40


def build_report(
    data: PreparedData,
    corpus: Corpus,
    *,
    cleaning: Mapping[str, Any],
    tokenizers: Mapping[str, Any],
    statistics: Mapping[str, Mapping[str, TokenStatistics]],
) -> dict[str, Any]:
    """The report of prepared data, ready for JSON.

    `cleaning` holds the counts of the training pairs, the `overlap` of the other splits, and perhaps `warnings`.
    `tokenizers` says on what each side's tokenizer was trained; `statistics` are by split and side. Of the token files,
    only the examples are read.
    """
    manifest = data.manifest
    loaded = {
        "source": Tokenizer.load(data.source_tokenizer_file),
        "target": Tokenizer.load(data.target_tokenizer_file),
    }
    return {
        "name": manifest.name,
        "description": corpus.description,
        "licence": corpus.licence,
        "citation": corpus.citation,
        "nmt_version": manifest.nmt_version,
        "languages": manifest.languages.model_dump(),
        "warnings": list(cleaning.get("warnings", [])),
        "inputs": [record.model_dump() for record in manifest.inputs],
        "limit": corpus.limit,
        "settings": {"cleaning": _settings(corpus.cleaning), "tokenizer": _settings(corpus.tokenizer)},
        "pairs": {split: counts.pairs for split, counts in manifest.splits.items()},
        "cleaning": {key: cleaning[key] for key in ("read", "kept", "tidied", "dropped")},
        "overlap": cleaning["overlap"],
        "vocabulary": {
            "shared": manifest.shared_vocabulary,
            **{side: {"size": loaded[side].vocab_size, **tokenizers[side]} for side in SIDES},
        },
        "splits": {split: describe(statistics[split], loaded) for split in manifest.splits},
        "examples": _examples(data, loaded),
    }


def read_report(directory: Path) -> dict[str, Any]:
    """The report that lies in a directory of prepared data."""
    report: dict[str, Any] = read_json(directory / REPORT, error=DataError, hint=PREPARE_AGAIN)
    return report


def describe(sides: Mapping[str, TokenStatistics], loaded: Mapping[str, Tokenizer]) -> dict[str, Any]:
    """For each side of a split: lengths in words and in pieces without EOS, and the use of the vocabulary.

    The bins of a histogram are the same for both sides; rates are shares of the pieces.
    """
    widths = {
        unit: bin_width([getattr(statistics, unit) for statistics in sides.values()]) for unit in ("words", "pieces")
    }
    return {
        side: {
            **{unit: summarise(getattr(statistics, unit), width=width) for unit, width in widths.items()},
            **_usage(statistics, loaded[side]),
        }
        for side, statistics in sides.items()
    }


def summarise(sentences: NDArray[np.int64], *, width: int) -> dict[str, Any]:
    """Total, mean, percentiles, maximum and histogram of lengths; `sentences[n]` counts the sentences of length n."""
    total = int(sentences.sum())
    units = int(sentences @ np.arange(len(sentences)))
    percentiles = {name: _percentile(sentences, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    return {
        "total": units,
        "mean": round(units / max(total, 1), 2),
        **percentiles,
        "max": int(np.flatnonzero(sentences)[-1]) if total else 0,
        "histogram": _histogram(sentences, width),
    }


def bin_width(sides: list[NDArray[np.int64]]) -> int:
    """The smallest width of 1, 2, 5, 10, 20 and so on with which 40 bins hold 99 % of the sentences of each side."""
    longest = max(_percentile(sentences, 0.99) for sentences in sides)
    width, step = 1, 0
    while width * _MAX_BINS <= longest:
        width = width * 5 // 2 if step % 3 == 1 else width * 2
        step += 1
    return width


def _percentile(sentences: NDArray[np.int64], share: float) -> int:
    return int(np.searchsorted(np.cumsum(sentences), share * int(sentences.sum()))) if sentences.any() else 0


def _histogram(sentences: NDArray[np.int64], width: int) -> list[dict[str, int | None]]:
    """The sentences in each of 40 bins of lengths, `from` and `to` included; the last bin is open.

    Empty bins at the end are left out.
    """
    bins = np.minimum(np.arange(len(sentences)) // width, _MAX_BINS)
    counts = np.bincount(bins, weights=sentences, minlength=1).astype(np.int64)
    filled = np.flatnonzero(counts)
    return [
        {"from": place * width, "to": (place + 1) * width - 1 if place < _MAX_BINS else None, "sentences": int(count)}
        for place, count in enumerate(counts[: filled[-1] + 1 if len(filled) else 1])
    ]


def _usage(statistics: TokenStatistics, tokenizer: Tokenizer) -> dict[str, Any]:
    usage = statistics.usage
    num_words, num_pieces = (
        int(sentences @ np.arange(len(sentences))) for sentences in (statistics.words, statistics.pieces)
    )
    return {
        "pieces_per_word": round(num_pieces / max(num_words, 1), 3),
        "unknown_rate": round(int(usage[UNK]) / max(num_pieces, 1), 6),
        "byte_rate": round(int(usage[tokenizer.byte_ids].sum()) / max(num_pieces, 1), 6),
        "pieces_used": int(np.count_nonzero(usage)),
    }


def _settings(section: Section) -> dict[str, dict[str, Any]]:
    """The keys of a section with their values; `is_default` says whether a value is the default."""
    fields = type(section).model_fields
    return {
        key: {"value": value, "is_default": value == fields[key].default}
        for key, value in section.model_dump(mode="json").items()
    }


def _examples(data: PreparedData, loaded: Mapping[str, Tokenizer]) -> list[dict[str, Any]]:
    """A few training pairs, the same at every preparation, as text and in pieces."""
    train = data.split("train")
    chosen = sorted({int(place) for place in np.random.default_rng(len(train)).integers(len(train), size=50)})
    chosen = chosen[:: max(len(chosen) // _NUM_EXAMPLES, 1)][:_NUM_EXAMPLES]
    return [
        {
            side: {"text": loaded[side].decode([ids])[0], "pieces": loaded[side].pieces(ids)}
            for side, ids in (
                ("source", train.src[index][:-1].tolist()),
                ("target", train.tgt[index][:-1].tolist()),
            )
        }
        for index in chosen
    ]
