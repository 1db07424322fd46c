"""What each regulariser gains on little text, for the same updates and for the same time; prints one JSON object.

python benchmarks/regularisers.py --data data/multi30k-4k --data data/mix-200k --updates 10000 --seeds 1,2,3

`nmt train` trains --recipe without regularisers, and once with each of --rows, seed by seed. BLEU is of the whole
validation set, by single checkpoints. *The same time* is BLEU at the last validation within the seconds that the
training without regularisers of the same seed took; only training counts as time. A finished run is not repeated, so a
long measurement can be interrupted. `table` is for docs/design/recipes.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from measuring import Figures, argument_parser, circumstances, markdown_table, nmt_train
from records import Point, curve_of

_NONE = "none"
_SETTINGS = {
    _NONE: [],
    "R-Drop": ["training.consistency={name: r_drop}"],
    "SimCut": ["training.consistency={name: simcut}"],
    "sampled pieces": ["tokenizer.dropout=0.05"],
    "dropout of words": ["model.word_dropout={source: 0.1, target: 0.1}"],
    "dropout in attention": ["model.attention_dropout=0.1"],
    "dropout in feed-forward layers": ["model.ffn_dropout=0.1"],
}


def main() -> None:
    """Train all, and print the table of each data set."""
    arguments = _arguments()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    rows = [_NONE, *(row for row in arguments.rows.split(",") if row != _NONE)]
    results = [_measured(arguments, data, rows, seeds) for data in arguments.data]
    result: Figures = {
        "benchmark": "BLEU on the validation set with and without each regulariser",
        **circumstances(arguments.device, commit=arguments.commit),
        "recipe": arguments.recipe,
        "updates": arguments.updates,
        "seeds": seeds,
        "results": results,
        "table": markdown_table(
            ["data", "regulariser", "the same updates", "the same time"], [row for one in results for row in _rows(one)]
        ),
    }
    print(json.dumps(result, indent=2))


def _measured(arguments: argparse.Namespace, data: str, rows: Sequence[str], seeds: Sequence[int]) -> Figures:
    curves = {(row, seed): _trained(arguments, data, row, seed) for seed in seeds for row in rows}
    seconds = {seed: curves[_NONE, seed][-1].seconds for seed in seeds}
    return {
        "data": Path(data).name,
        "seconds": [round(seconds[seed], 1) for seed in seeds],
        "rows": {
            row: {
                "same_updates": [curves[row, seed][-1].bleu for seed in seeds],
                "same_time": [_bleu_within(curves[row, seed], seconds[seed]) for seed in seeds],
            }
            for row in rows
        },
    }


def _trained(arguments: argparse.Namespace, data: str, row: str, seed: int) -> list[Point]:
    """The validations of a training, which is run now unless it has finished already."""
    directory = Path(arguments.folder) / f"{Path(data).name}-{row.replace(' ', '-')}-{seed}"
    every = max(1, arguments.updates // arguments.validations)
    settings = [f"training.updates={arguments.updates}", f"training.seed={seed}", f"training.log_every={every}"]
    settings += [f"validation.every={every}", "validation.max_sentences=null", "training.patience=null"]
    settings += [*_SETTINGS[row], *arguments.settings]
    nmt_train(arguments.recipe, data=data, output=directory, device=arguments.device, settings=settings)
    return curve_of(directory / "metrics.jsonl")


def _bleu_within(curve: Sequence[Point], seconds: float) -> float | None:
    """BLEU of the last validation within `seconds` of training; None if the first one came later."""
    return next((point.bleu for point in reversed(curve) if point.seconds <= seconds), None)


def _rows(result: Figures) -> list[list[str]]:
    """The rows of a table: mean of the seeds, with the lowest and the highest."""
    return [
        [result["data"], row, _summed_up(figures["same_updates"]), _summed_up(figures["same_time"])]
        for row, figures in result["rows"].items()
    ]


def _summed_up(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return "not validated in this time"
    return f"{statistics.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", action="append", required=True, help="prepared data; repeatable")
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--rows", default=",".join(_SETTINGS), help=f"of: {', '.join(_SETTINGS)}")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--validations", type=int, default=20, metavar="N", help="validations of a run")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for all; repeatable")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", default="runs/regularisers", help="folder of the runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows.split(",")) - set(_SETTINGS):
        parser.error(f"there is no row {unknown.pop()!r}: take of {', '.join(_SETTINGS)}")
    return arguments


if __name__ == "__main__":
    main()
