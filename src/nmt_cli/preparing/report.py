"""The report of prepared data: lengths, use of the vocabulary, overlap, dropped pairs, examples; and its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.console import size_text
from nmt_cli.dataset.data_manifest import PREPARE_AGAIN
from nmt_cli.dataset.prepared_data import SIDES, PreparedData, TokenPairs
from nmt_cli.errors import DataError
from nmt_cli.files import read_json
from nmt_cli.preparing.cleaning.rules import REASONS
from nmt_cli.preparing.corpus import DEFAULT_VOCAB_SIZE, Corpus
from nmt_cli.preparing.encoding import SideStatistics, TokenStatistics, sum_of_directions
from nmt_cli.preparing.sources.base import SPLIT_NAMES, Split
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.few_pairs import few_pairs_warning
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.recipe.section import Section
from nmt_cli.templates.charts import axis_ticks, short_number
from nmt_cli.templates.render import render
from nmt_cli.tokenization.tokenizer import UNK, Tokenizer

REPORT = "report.json"
REPORT_PAGE = "report.html"

_NUM_EXAMPLES = 5
_MUCH_OVERLAP_SHARE = 0.01
_MAX_BINS = 40


def build_report(
    data: PreparedData,
    corpus: Corpus,
    *,
    cleaning: Mapping[str, Any],
    tokenizers: Mapping[str, Any],
    statistics: Mapping[str, Sequence[SideStatistics]],
) -> dict[str, Any]:
    """The report of prepared data, ready for JSON.

    `cleaning` is what `CleanText.counts` gives. `tokenizers` says on what each side's tokenizer was trained, and
    `statistics` are by split, direction and side. Of the token files, only the examples are read.
    """
    manifest = data.manifest
    loaded = {side: Tokenizer.load(data.directory / f"{side}.spm") for side in SIDES}
    totals = {split: sum_of_directions(of_split) for split, of_split in statistics.items()}
    train, pairs = data.split("train"), manifest.languages.pairs
    examples = [_examples(train, of_direction, loaded) for of_direction in manifest.splits["train"].ranges]
    directions = [
        {
            "languages": pair.model_dump(),
            **cleaning["directions"][index],
            "pairs": {split: of_split[index]["source"].pairs for split, of_split in statistics.items()},
            "splits": {
                split: describe_split(of_split[index], loaded)
                for split, of_split in statistics.items()
                if of_split[index]["source"].pairs
            },
            "examples": examples[index],
        }
        for index, pair in enumerate(pairs)
    ]
    return {
        "name": manifest.name,
        "description": corpus.description,
        "licence": corpus.licence,
        "citation": corpus.citation,
        "nmt_version": manifest.nmt_version,
        "languages": (pairs[0] if len(pairs) == 1 else manifest.languages).model_dump(),
        "warnings": cleaning["warnings"],
        "inputs": [record.model_dump() for record in manifest.inputs],
        "limit": corpus.limit,
        "settings": {"cleaning": _settings(corpus.cleaning), "tokenizer": _settings(corpus.tokenizer)},
        "pairs": {split: counts.pairs for split, counts in manifest.splits.items()},
        "unique_pairs": manifest.unique_pairs,
        "cleaning": {key: cleaning[key] for key in ("read", "kept", "tidied", "dropped")},
        "overlap": cleaning["overlap"],
        "several_translations": cleaning["several_translations"],
        "vocabulary": {
            "shared": manifest.shared_vocabulary,
            **{side: {"size": loaded[side].vocab_size, **tokenizers[side]} for side in SIDES},
        },
        "splits": {split: describe_split(totals[split], loaded) for split in manifest.splits},
        **({"directions": directions} if len(pairs) > 1 else {}),
        "examples": list(chain.from_iterable(examples)),
    }


def read_report(directory: Path) -> dict[str, Any]:
    """The report that lies in a directory of prepared data."""
    report: dict[str, Any] = read_json(directory / REPORT, error=DataError, hint=PREPARE_AGAIN)
    return report


def describe_split(sides: Mapping[str, TokenStatistics], loaded: Mapping[str, Tokenizer]) -> dict[str, Any]:
    """For each side of a split: lengths in words and in pieces without EOS, and the use of the vocabulary.

    The bins of a histogram are the same for both sides; rates are shares of the pieces.
    """
    widths = {
        unit: bin_width([getattr(statistics, unit) for statistics in sides.values()]) for unit in ("words", "pieces")
    }
    described = {}
    for side, statistics in sides.items():
        lengths = {unit: summarise_lengths(getattr(statistics, unit), width=width) for unit, width in widths.items()}
        num_words, num_pieces = (lengths[unit]["total"] for unit in ("words", "pieces"))
        byte_ids, usage = loaded[side].byte_ids, statistics.usage
        described[side] = {
            **lengths,
            "pieces_per_word": round(num_pieces / max(num_words, 1), 3),
            "unknown_rate": round(int(usage[UNK]) / max(num_pieces, 1), 6),
            "byte_rate": round(int(usage[byte_ids].sum()) / max(num_pieces, 1), 6),
            "pieces_used": int(np.count_nonzero(usage)),
        }
    return described


def summarise_lengths(sentences: NDArray[np.int64], *, width: int) -> dict[str, Any]:
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
    """The smallest width with which 40 bins hold 99 % of the sentences of each side."""
    longest = max(_percentile(sentences, 0.99) for sentences in sides)
    return longest // _MAX_BINS + 1


def render_page(report: Mapping[str, Any]) -> str:
    """The whole report as HTML; every text in it is escaped."""
    languages, train = side_names(report), report["splits"]["train"]
    bins = {unit: {side: train[side][unit]["histogram"] for side in train} for unit in ("words", "pieces")}
    charts = [length_chart(sides, languages=languages, unit=unit) for unit, sides in bins.items()]
    findings = [*report["warnings"], *_findings(report)]
    return render(
        "data_report.html",
        report=report,
        title=Directions.model_validate(report["languages"]).title if "directions" in report else "",
        languages=languages,
        findings=findings,
        default_vocab_size=DEFAULT_VOCAB_SIZE,
        charts=charts,
        cleaning_rules=REASONS,
        percent_text=percent_text,
        size_text=size_text,
    )


def side_names(report: Mapping[str, Any]) -> Mapping[str, str]:
    """What the two sides are called: the codes of the languages, if the data has one direction."""
    languages: Mapping[str, str] = report["languages"]
    return dict(zip(SIDES, SIDES, strict=True)) if "directions" in report else languages


def overlap_finding(split: Split, facts: Mapping[str, int], *, setting: str) -> tuple[str, bool]:
    """The overlap of a split with the training text, and whether training keeps more than 1 % of its lines.

    `setting` is the value of `cleaning.overlap`.
    """
    text = (
        f"of {facts['lines']:,} {SPLIT_NAMES[split]} lines, training contains {facts['pairs']:,} as pairs, "
        f"{facts['sources']:,} as sources, {facts['targets']:,} as targets"
    )
    num_overlapping = max(facts["sources"], facts["targets"])
    num_kept = {"report": num_overlapping, "pairs": num_overlapping - facts["pairs"], "sides": 0}[setting]
    if num_kept > _MUCH_OVERLAP_SHARE * facts["lines"]:
        return f"{text}: scores on them may be too good; --set cleaning.overlap=sides drops them", True
    return text if setting == "report" else f"{text}, before cleaning.overlap={setting} dropped them", False


def few_pairs_finding(report: Mapping[str, Any], *, prepare: str | None = None) -> tuple[str, str] | None:
    """The warning of too few pairs for random weights; None if the vocabulary is taken, for fine-tuning for example."""
    if report["settings"]["tokenizer"]["taken_from"]["value"] is not None:
        return None
    pair = None if "directions" in report else LanguagePair.model_construct(**report["languages"])
    return few_pairs_warning(report["name"], num_pairs=report["unique_pairs"], pair=pair, prepare=prepare)


def percent_text(part: float, whole: float) -> str:
    """A part as a percentage of the whole, with three digits: 41.3%, 2.66%, 0.0031%."""
    return f"{100 * part / whole if whole else 0:.3g}%"


def length_chart(sides: Mapping[str, Sequence[Mapping[str, Any]]], *, languages: Mapping[str, str], unit: str) -> str:
    """A histogram of the lengths of `source` and `target` as SVG with bars side by side; each bin tells its counts.

    A side is a list of bins `from`, `to`, `sentences`; the bins of both are the same up to the end of the shorter list.
    """
    longest = max(sides.values(), key=len)
    bins = [
        {**edges, "counts": {side: own[index]["sentences"] if index < len(own) else 0 for side, own in sides.items()}}
        for index, edges in enumerate(longest)
    ]
    ticks = axis_ticks(0, max(max(length_bin["counts"].values()) for length_bin in bins), least_step=1)
    return render(
        "length_chart.html", unit=unit, languages=languages, bins=bins, ticks=ticks, short_number=short_number
    )


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
        {"from": index * width, "to": (index + 1) * width - 1 if index < _MAX_BINS else None, "sentences": int(count)}
        for index, count in enumerate(counts[: filled[-1] + 1 if len(filled) else 1])
    ]


def _settings(section: Section) -> dict[str, dict[str, Any]]:
    """The keys of a section with their values; `is_default` says whether a value is the default."""
    fields = type(section).model_fields
    return {
        key: {"value": value, "is_default": value == fields[key].default}
        for key, value in section.model_dump(mode="json").items()
    }


def _examples(train: TokenPairs, of_direction: range, loaded: Mapping[str, Tokenizer]) -> list[dict[str, Any]]:
    """A few training pairs of a direction, the same at every preparation, as text and in pieces."""
    number = len(of_direction)
    chosen = sorted({of_direction[index] for index in np.random.default_rng(number).integers(number, size=50)})
    chosen = chosen[:: max(len(chosen) // _NUM_EXAMPLES, 1)][:_NUM_EXAMPLES]
    sentences = {"source": train.src, "target": train.tgt}

    def describe(side: str, index: int) -> dict[str, Any]:
        ids = sentences[side].ids(index, index + 1)[:-1].tolist()
        return {"text": loaded[side].decode([ids])[0], "pieces": loaded[side].pieces(ids)}

    return [{side: describe(side, index) for side in SIDES} for index in chosen]


def _findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Reasons to doubt the data, found in the report's figures."""
    if warning := few_pairs_finding(report):
        yield " ".join(warning)
    limit, splits_with_inputs = report["limit"], {record["split"] for record in report["inputs"]}
    num_set_aside = sum(pairs for split, pairs in report["pairs"].items() if split not in splits_with_inputs)
    num_directions = len(report.get("directions", [report]))
    if limit is not None and report["cleaning"]["read"] + num_set_aside == limit * num_directions:
        of_each = " of each direction" if num_directions > 1 else ""
        yield f"This is a try: no more than the first {limit:,} training pairs{of_each} were read (limit)."
    setting = report["settings"]["cleaning"]["overlap"]["value"]
    for split, facts in report["overlap"].items():
        finding, is_much = overlap_finding(split, facts, setting=setting)
        if is_much:
            yield finding[0].upper() + finding[1:]
