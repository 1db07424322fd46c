"""Draws the measurements in benchmarks/results/*.json as SVG files in docs/images, readable on white and on black.

python benchmarks/charts.py                                                        # draws all charts again
python benchmarks/step_rate.py ... | python benchmarks/charts.py --add training    # keeps a result, then draws

A file of results is a list of what a benchmark has printed, the oldest first: of step_rate.py in training.json, of
decode.py --json - in decoding.json, of serve_load.py in serving.json, of layer_complexity.py in layer-complexity.json,
of attention_functions.py in attention-functions.json, of position_lengths.py in position-lengths.json, of
table3_small.py in table3-small.json. A chart shows the newest result of each system. A result that is marked as
transcribed was taken from a page, because its JSON was not kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS, _IMAGES = _ROOT / "benchmarks" / "results", _ROOT / "docs" / "images"
# Half-way between black and white, so that they can be read on both.
_TEXT, _GRID = "#768089", "#76808955"
_COLOURS = ("#2f81d7", "#a0783c", "#8a6fc4", "#3f9142", "#c4566a", "#1f9a9a")

Result = Mapping[str, Any]


def main() -> None:
    """Keep the result on stdin if there is one to keep, and draw all charts."""
    arguments = _arguments()
    if arguments.add:
        file = _RESULTS / f"{arguments.add}.json"
        results = [*(_results(arguments.add) if file.exists() else []), json.load(sys.stdin)]
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name, draw in _CHARTS.items():
        _write(name, draw)


def training(results: Sequence[Result]) -> dict[str, list[float]]:
    """Target tokens per second by side, small before base."""
    newest = {result["size"]: result for result in results}
    found = [newest[size] for size in ("small", "base")]
    sides = {"nmt": "nmt", "Hugging Face": "peer"}
    return {name: [result[side]["median"] for result in found] for name, side in sides.items()}


def decoding(results: Sequence[Result], model: str, systems: Mapping[str, str]) -> dict[str, list[float]]:
    """Sentences per second with beam 4 and greedy by system: the newest result of the model that has all of them."""
    keys = {name: [f"{system} beam {beam}" for beam in (4, 1)] for name, system in systems.items()}
    of_model = (
        {name.partition(" batch")[0]: figures["sentences_per_second"] for name, figures in result["systems"].items()}
        for result in results
        if result["model"] == model and result["input"] == "test_2016_flickr"
    )
    (*_, newest) = (rates for rates in of_model if rates.keys() >= {key for both in keys.values() for key in both})
    return {name: [newest[key] for key in both] for name, both in keys.items()}


def serving(results: Sequence[Result], engine: str) -> dict[str, dict[int, float]]:
    """Answers per second by number of clients, in batches and with each sentence alone: the newest with both."""
    newest = [result["engines"][engine] for result in results if "off" in result["engines"].get(engine, {})][-1]
    ways = {"in batches": "on", "each sentence alone": "off"}
    return {
        name: {
            int(clients.removesuffix(" clients")): figures["answers a second"]["median"]
            for clients, figures in newest[way].items()
            if clients.endswith(" clients")
        }
        for name, way in ways.items()
    }


def _speed(axes: Sequence[Axes]) -> None:
    _bars(axes[0], ("small", "base"), training(_results("training")), label="target tokens per second")
    axes[0].set_title("training, bf16")
    systems = {"nmt": "nmt torch:fp32", "Hugging Face": "hf float32 1 x 2"}
    _bars(axes[1], ("beam 4", "greedy"), decoding(_results("decoding"), "base", systems), label="sentences per second")
    axes[1].set_title("translating, base, float32")


def _decoding(axes: Sequence[Axes]) -> None:
    systems = {"nmt": "nmt torch:int8", "CTranslate2, called directly": "ctranslate2 int8 2 x 1"}
    for axis, model in zip(axes, ("small", "base"), strict=True):
        rates = decoding(_results("decoding"), model, systems)
        _bars(axis, ("beam 4", "greedy"), rates, label="sentences per second")
        axis.set_title(f"{model}, int8")


def _serving(axes: Sequence[Axes]) -> None:
    engines = {"torch": "PyTorch, float32", "ctranslate2": "CTranslate2, int8"}
    for axis, (engine, title) in zip(axes, engines.items(), strict=True):
        _lines(axis, serving(_results("serving"), engine))
        axis.set_ylim(bottom=0)
        axis.set_xlabel("clients")
        axis.set_ylabel("answers per second")
        axis.set_title(title)


def _layer_complexity(axes: Sequence[Axes]) -> None:
    result = _results("layer-complexity")[-1]
    by_place = {(row["layer"], row["d"], row["n"]): row for row in result["costs"]}
    milliseconds = {place: 1e6 * row["seconds"] / (row["sentences"] * row["n"]) for place, row in by_place.items()}
    lengths, widths = (sorted({row[key] for row in result["costs"]}) for key in ("n", "d"))
    layers = [name for name in result["sequential_operations"] if name != "self-attention"]
    _lines(axes[0], {name: {n: milliseconds[name, widths[-1], n] for n in lengths} for name in layers})
    axes[0].set_yscale("log")
    axes[0].set_ylabel("ms per 1,000 tokens")
    axes[0].set_xlabel("length n")
    axes[0].set_title(f"forward and backward, d = {widths[-1]}")
    ours, recurrent, of_16 = "self-attention with its matrices", "recurrent", "recurrent, 16 sentences of any length"
    for colour, d in zip(_COLOURS, widths, strict=False):
        for other, style in ((of_16, "-"), (recurrent, ":")):
            ratios = [milliseconds[ours, d, n] / milliseconds[other, d, n] for n in lengths]
            label = f"time, d = {d}" if other == of_16 else None
            axes[1].plot([n / d for n in lengths], ratios, color=colour, linestyle=style, marker=".", label=label)
    ratios = [
        by_place[ours, widths[0], n]["multiplications"] / by_place[recurrent, widths[0], n]["multiplications"]
        for n in lengths
    ]
    axes[1].plot([n / widths[0] for n in lengths], ratios, color=_TEXT, linestyle="--", label="multiplications")
    axes[1].axhline(1, color=_GRID)
    axes[1].axvline(1, color=_GRID)
    axes[1].set_xscale("log", base=2)
    axes[1].set_yscale("log", base=2)
    axes[1].set_xlabel("n / d")
    axes[1].set_title("self-attention with its matrices / recurrent")
    axes[1].xaxis.set_major_formatter("{x:g}")
    axes[1].yaxis.set_major_formatter("{x:g}")
    axes[1].legend(frameon=False, labelcolor=_TEXT, fontsize=8)


def _attention_functions(axes: Sequence[Axes]) -> None:
    result = _results("attention-functions")[-1]
    functions = dict.fromkeys(row["function"] for row in result["saturation"])
    gradients, losses = (
        {name: {row["d_k"]: value(row) for row in result[key] if row["function"] == name} for name in functions}
        for key, value in (
            ("saturation", lambda row: row["gradient"]),
            ("trainings", lambda row: sum(row["nats_per_token"]) / len(row["nats_per_token"])),
        )
    )
    _lines(axes[0], gradients)
    axes[0].set_yscale("log")
    axes[0].set_title("gradient of the softmax, random queries and keys")
    _lines(axes[1], losses)
    axes[1].set_title(f"loss of small models after {result['updates']} updates")
    axes[1].set_ylabel("nats per token")
    for axis in axes:
        axis.set_xlabel("d_k")


def _position_lengths(axes: Sequence[Axes]) -> None:
    found = _results("position-lengths")[-1]["nats_per_token"]
    means = {
        name: {length: sum(values) / len(values) for length, values in by_length.items()}
        for name, by_length in found.items()
    }
    _lines(axes[0], means)
    axes[0].set_ylabel("nats per token")
    axes[0].set_title("loss by length")
    (control,) = (name for name in means if "all lengths" in name)
    differences = {
        name: {length: value - means[control][length] for length, value in by_length.items()}
        for name, by_length in means.items()
    }
    _lines(axes[1], differences)
    axes[1].set_title("above the training on all lengths")
    for axis in axes:
        axis.set_xlabel("pieces")


def _table3_small(axes: Sequence[Axes]) -> None:
    rows = _results("table3-small")[-1]["rows"]
    groups = dict.fromkeys(name.partition("-")[0] for name in rows)
    for axis, (figure, of_paper, sign) in zip(
        axes, (("perplexity", "perplexity", 1), ("BLEU", "newstest2013 paper BLEU", -1)), strict=True
    ):
        values = {
            name: (sign * row["paper"][of_paper], sign * sum(row["here"][figure]) / len(row["here"][figure]))
            for name, row in rows.items()
        }
        places = {
            name: [1 + sum(other[side] < own[side] for other in values.values()) for side in (0, 1)]
            for name, own in values.items()
        }
        for colour, group in zip(_COLOURS, groups, strict=True):
            own = {name: place for name, place in places.items() if name.partition("-")[0] == group}
            label = group if group in rows else f"rows {group.upper()}"
            axis.plot(*zip(*own.values(), strict=True), color=colour, marker="o", linestyle="", label=label)
            for name, place in own.items():
                axis.annotate(name, place, xytext=(4, 3), textcoords="offset points", color=colour, fontsize=7)
        axis.plot([1, len(rows)], [1, len(rows)], color=_GRID)
        axis.set_title(f"places by {figure}, 1 is the best")
        axis.set_xlabel("paper")
        axis.set_ylabel("here")


_CHARTS = {
    "speed": _speed,
    "decoding": _decoding,
    "serving": _serving,
    "layer-complexity": _layer_complexity,
    "attention-functions": _attention_functions,
    "position-lengths": _position_lengths,
    "table3-small": _table3_small,
}


def _lines(axis: Axes, sides: Mapping[str, Mapping[Any, float]]) -> None:
    """A line for each side over the same equally spaced places."""
    for colour, (name, values) in zip(_COLOURS, sides.items(), strict=False):
        axis.plot(range(len(values)), list(values.values()), color=colour, marker="o", label=name)
        axis.set_xticks(range(len(values)), [str(place) for place in values])
    axis.grid(axis="y", color=_GRID, linewidth=0.6)


def _bars(axis: Axes, groups: Sequence[str], sides: Mapping[str, Sequence[float]], *, label: str) -> None:
    """A group of bars for each name in `groups`; the number above each side's bar makes grid lines needless."""
    width = 0.8 / len(sides)
    for number, (colour, (name, rates)) in enumerate(zip(_COLOURS, sides.items(), strict=False)):
        places = [group + (number - (len(sides) - 1) / 2) * width for group in range(len(groups))]
        bars = axis.bar(places, list(rates), width=0.92 * width, color=colour, label=name)
        axis.bar_label(bars, labels=[f"{rate:,.0f}" for rate in rates], color=_TEXT, padding=2, fontsize=9)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_ylabel(label)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.margins(y=0.12)


def _write(name: str, draw: Any) -> None:
    """Draw one chart of up to two panels into docs/images; the same results give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    coloured = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "axes.edgecolor")
    plt.rcParams |= {"svg.hashsalt": name, "font.size": 10, "axes.titlesize": 10} | dict.fromkeys(coloured, _TEXT)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    draw(axes)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    ncols = len(labels) if len(labels) < 5 else 3
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols, frameon=False, labelcolor=_TEXT)
    figure.savefig(_IMAGES / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def _results(name: str) -> list[Result]:
    results: list[Result] = json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", metavar="SUBJECT", help="append the JSON object on stdin to results/SUBJECT.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
