"""The order of the paper's Table 3 in models of a quarter of its sizes; prints one JSON object.

python benchmarks/table3_small.py --data data/mix-100k --updates 6000 --seeds 1,2,3

`nmt train` trains rows A to E of recipes/table3 with a quarter of d_model, d_ff, d_k and d_v, and a third of the
layers, on any prepared data. Left out are the rows that this makes impossible or equal (32 heads, 4 layers), and big.
Perplexity and BLEU are of the last validation; of several seeds, their means. Spearman's rank correlation with the
paper's figures says whether the order is the same: 1 is the paper's order, 0 none. A finished run is not repeated, so a
long measurement can be interrupted. `nmt report FOLDER` draws the runs. `minutes` is the time of the trainings.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from measuring import Figures, argument_parser, circumstances, markdown_table, nmt_train
from records import Point, curve_of

from nmt_cli.cli.reproduce import experiments
from nmt_cli.recipe.loading import load_recipe

_ROWS = (
    *("base", "a-h1", "a-h4", "a-h16", "b-dk16", "b-dk32", "c-n2", "c-n8", "c-d256", "c-d1024", "c-ff1024", "c-ff4096"),
    *("d-drop0", "d-drop02", "d-ls0", "d-ls02", "e-learned"),
)
_FIGURES = {"perplexity": "perplexity", "BLEU": "newstest2013 paper BLEU"}
_SCALE, _LAYER_SCALE = 4, 3


def main() -> None:
    """Train all rows, and print their figures beside the paper's."""
    arguments = _arguments()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    rows = arguments.rows.split(",")
    last = {row: [_trained(arguments, row, seed) for seed in seeds] for row in rows}
    ours = {row: _measured(points) for row, points in last.items()}
    paper = {row: {each.figure: each.low for each in experiments()[f"table3/{row}"]} for row in rows}
    result: Figures = {
        "benchmark": "Table 3 in models of a quarter of its sizes",
        **circumstances(arguments.device, commit=arguments.commit),
        "minutes": round(sum(point.seconds for points in last.values() for point in points) / 60, 1),
        "data": Path(arguments.data).name,
        "updates": arguments.updates,
        "batch_tokens": arguments.batch_tokens,
        "warmup_updates": arguments.warmup_updates,
        "seeds": seeds,
        "rows": {row: {"paper": paper[row], "here": ours[row]} for row in rows},
        "rank_correlation": {
            name: rank_correlation(
                [paper[row][figure] for row in rows], [statistics.fmean(ours[row][name]) for row in rows]
            )
            for name, figure in _FIGURES.items()
        },
        "tables": {"rows": _table(paper, ours)},
    }
    print(json.dumps(result, indent=2))


def small_settings(row: str) -> list[str]:
    """The settings that make a row of Table 3 small."""
    model = load_recipe(f"table3/{row}").model
    widths = {name: getattr(model, name) // _SCALE for name in ("d_model", "d_ff", "d_k", "d_v")}
    layers = {name: max(1, round(getattr(model, name) / _LAYER_SCALE)) for name in ("encoder_layers", "decoder_layers")}
    return [f"model.{name}={value}" for name, value in {**widths, **layers}.items()]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None if all values of a side are equal."""
    ranks = [_ranks(values) for values in (one, other)]
    return None if any(len(set(side)) < 2 for side in ranks) else round(statistics.correlation(*ranks), 3)


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    return [sum(other < value for other in values) + values.count(value) / 2 for value in values]


def _trained(arguments: argparse.Namespace, row: str, seed: int) -> Point:
    """The last validation of a row's model; a training that has not finished is run now."""
    every = max(1, arguments.updates // arguments.validations)
    directory = Path(arguments.folder) / f"{row}-{seed}"
    settings = [*small_settings(row), f"training.seed={seed}", f"training.updates={arguments.updates}"]
    settings += [f"training.batch_tokens={arguments.batch_tokens}", f"training.log_every={every}"]
    settings += [f"training.schedule.warmup_updates={arguments.warmup_updates}", f"validation.every={every}"]
    settings += [f"training.checkpoint_every={every}", "validation.max_sentences=1000", *arguments.settings]
    nmt_train(f"table3/{row}", data=arguments.data, output=directory, device=arguments.device, settings=settings)
    return curve_of(directory / "metrics.jsonl")[-1]


def _measured(points: Sequence[Point]) -> Figures:
    """Perplexity and BLEU of each seed."""
    return {
        "perplexity": [round(math.exp(point.nll), 3) for point in points],
        "BLEU": [round(point.bleu or 0.0, 2) for point in points],
    }


def _table(paper: Mapping[str, Mapping[str, float]], ours: Mapping[str, Figures]) -> list[str]:
    """A Markdown table: the paper's figures, and the means of ours with the lowest and the highest seed."""
    rows = []
    for row, figures in ours.items():
        cells = [row]
        for name, figure in _FIGURES.items():
            values = figures[name]
            spread = f" ({min(values)} to {max(values)})" if len(values) > 1 else ""
            cells += [f"{paper[row][figure]}", f"{statistics.fmean(values):.2f}{spread}"]
        rows.append(cells)
    return markdown_table(["row", *(f"{name}, {whose}" for name in _FIGURES for whose in ("paper", "here"))], rows)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--rows", default=",".join(_ROWS), help=f"of: {', '.join(_ROWS)}")
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--batch-tokens", type=int, default=4000)
    parser.add_argument("--warmup-updates", type=int, default=1000)
    parser.add_argument("--validations", type=int, default=4, metavar="N", help="validations of a run")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for all; repeatable")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", default="runs/table3-small", help="folder of the runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows.split(",")) - set(_ROWS):
        parser.error(f"there is no row {unknown.pop()!r}: take of {', '.join(_ROWS)}")
    return arguments


if __name__ == "__main__":
    main()
