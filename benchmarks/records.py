"""The time that one recipe takes to the quality of another, on the same data and device; prints one JSON object.

python benchmarks/records.py --data data/mix-en-de --updates 8000 --against-updates 4000 --seeds 1,2

`nmt train` trains both in turn, seed by seed, with validations. The target is the lowest validation perplexity of the
first recipe. The time of the second ends where its curve, straight between validations, first goes as low. Only
training counts as time: no start, validation or saving. If a test set is given, the last model of each run translates
it. With --train base or --train against one side is trained now, and compared once the metrics.jsonl of both are in
--folder. A finished run is not repeated.

For the number of updates of four minutes on a GPU, divide 240,000 ms by `milliseconds_an_update` of step_rate.py. If
the second recipe does not get there, give it as many updates as the first. On little text that both see many times,
--set model.dropout=0.3 may be fairer. A short training wants a shorter warm-up of the first recipe:
--base-set training.schedule.warmup_updates=1500. `row` is for docs/design/recipes.md#modern.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measuring import Figures, argument_parser, circumstances, nmt_decode, nmt_train, score

_SIDES = ("base", "against")


@dataclass(frozen=True, slots=True)
class Point:
    """A validation: updates, target tokens and seconds of training before it; its nats per token and its BLEU."""

    update: int
    tokens: int
    seconds: float
    nll: float
    bleu: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """A run by its validations, and sacreBLEU of its last model on the test set."""

    curve: list[Point]
    bleu: float | None

    @property
    def best(self) -> Point:
        """The first of the lowest validations."""
        return min(self.curve, key=lambda point: (point.nll, point.update))

    def reached(self, nll: float) -> Point | None:
        """The point at which the curve, straight between validations, first is as low; None if it never is."""
        before = None
        for point in self.curve:
            if point.nll <= nll:
                return point if before is None else _between(before, point, nll)
            before = point
        return None


def main() -> None:
    """Train all, and print the table."""
    arguments = _arguments()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for seed in seeds:
        for side in _SIDES if arguments.train == "both" else (arguments.train,):
            if side in _SIDES:
                _train(arguments, side, seed)
    runs = {side: [_read(arguments, side, seed) for seed in seeds] for side in _SIDES}
    pairs = [_compared(base, against) for base, against in zip(runs["base"], runs["against"], strict=True)]
    reached = [pair["ratio_of_seconds"] for pair in pairs if pair["ratio_of_seconds"] is not None]
    ratio = round(statistics.median(reached), 3) if len(reached) == len(pairs) else None
    facts = circumstances(arguments.device, commit=arguments.commit)
    result: Figures = {
        "benchmark": "seconds of training to the lowest validation perplexity of another recipe",
        **facts,
        "data": arguments.data,
        "base": {"recipe": arguments.base, "settings": _settings(arguments, "base", seed=None)},
        "against": {"recipe": arguments.against, "settings": _settings(arguments, "against", seed=None)},
        "seeds": seeds,
        "ratio_of_seconds": ratio,
        "runs": [{"seed": seed, **pair} for seed, pair in zip(seeds, pairs, strict=True)],
        "row": _row(arguments, facts, pairs, ratio),
    }
    print(json.dumps(result, indent=2))


def _train(arguments: argparse.Namespace, side: str, seed: int) -> None:
    directory = Path(arguments.folder) / f"{side}-{seed}"
    recipe, settings = vars(arguments)[side], _settings(arguments, side, seed=seed)
    nmt_train(recipe, data=arguments.data, output=directory, device=arguments.device, settings=settings)
    if arguments.test_source:
        nmt_decode(directory, arguments.test_source, directory / "test.hyp", "--device", arguments.device)


def _read(arguments: argparse.Namespace, side: str, seed: int) -> Trained | None:
    """Read a run from its folder; None if it was not trained yet."""
    directory = Path(arguments.folder) / f"{side}-{seed}"
    if not (directory / "metrics.jsonl").exists():
        return None
    hypothesis = directory / "test.hyp"
    is_scored = arguments.test_reference and hypothesis.exists()
    bleu = score(hypothesis, Path(arguments.test_reference)) if is_scored else None
    return Trained(curve_of(directory / "metrics.jsonl"), bleu)


def _settings(arguments: argparse.Namespace, side: str, *, seed: int | None) -> list[str]:
    updates = arguments.updates if side == "base" else arguments.against_updates or arguments.updates
    every = arguments.validate_every
    settings = [f"training.updates={updates}", f"validation.every={every}", f"training.log_every={every}"]
    settings += ["validation.bleu=false", "validation.metric=loss", f"training.checkpoint_every={updates}"]
    settings += [] if seed is None else [f"training.seed={seed}"]
    return [*settings, *arguments.settings, *vars(arguments)[f"{side}_settings"]]


def curve_of(metrics: Path) -> list[Point]:
    """The validations of a run, with the tokens and seconds of training that the log has for their updates."""
    curve, tokens, seconds = [], 0, {0: 0.0}
    so_far = {0: 0}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "train":
            tokens += event["target_tokens"]
            so_far[event["update"]], seconds[event["update"]] = tokens, event["seconds"]
        elif event["event"] == "validation" and event["update"] in seconds and event["update"]:
            update = event["update"]
            curve.append(Point(update, so_far[update], seconds[update], event["nll"], event.get("bleu")))
    if not curve:
        sys.exit(f"{metrics} has no validation: validation.every is more than the updates of the run")
    return curve


def _between(before: Point, after: Point, nll: float) -> Point:
    share = (before.nll - nll) / (before.nll - after.nll)
    update = before.update + share * (after.update - before.update)
    tokens = before.tokens + share * (after.tokens - before.tokens)
    return Point(round(update), round(tokens), before.seconds + share * (after.seconds - before.seconds), nll)


def _compared(base: Trained | None, against: Trained | None) -> Figures:
    target = None if base is None else base.best
    reached = None if against is None or target is None else against.reached(target.nll)
    return {
        "target_nll": None if target is None else round(target.nll, 4),
        "base": None if base is None else _figures(base, target),
        "against": None if against is None else _figures(against, reached),
        "ratio_of_seconds": round(reached.seconds / target.seconds, 3) if target and reached else None,
        "ratio_of_updates": round(reached.update / target.update, 3) if target and reached else None,
    }


def _figures(trained: Trained, reached: Point | None) -> Figures:
    last = trained.curve[-1]
    return {
        "to_target": None
        if reached is None
        else {"updates": reached.update, "tokens": reached.tokens, "seconds": round(reached.seconds, 1)},
        "last": {"updates": last.update, "seconds": round(last.seconds, 1), "nll": round(last.nll, 4)},
        "best_nll": round(trained.best.nll, 4),
        "bleu": trained.bleu,
        "curve": [[point.update, round(point.seconds, 1), round(point.nll, 4)] for point in trained.curve],
    }


def _row(arguments: argparse.Namespace, facts: Figures, pairs: list[Figures], ratio: float | None) -> str | None:
    """Date, recipe, target, data, hardware, minutes of both, ratio, seeds, commit; None before both are trained."""
    if any(pair["base"] is None or pair["against"] is None for pair in pairs):
        return None
    minutes = []
    for side in _SIDES:
        found = [pair[side]["to_target"] for pair in pairs]
        minutes.append(f"{statistics.median(one['seconds'] for one in found) / 60:.2f}" if all(found) else "never")
    target = statistics.median(pair["target_nll"] for pair in pairs)
    cells = [f"{datetime.now(UTC):%Y-%m-%d}", arguments.against, f"{arguments.base}: {target:.3f} nats a piece"]
    cells += [Path(arguments.data).name, facts["hardware"], *minutes, "-" if ratio is None else f"{ratio:.2f}"]
    return f"| {' | '.join([*cells, arguments.seeds, facts['commit']])} |"


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--base", default="base", metavar="RECIPE", help="the recipe that sets the target")
    parser.add_argument("--against", default="modern", metavar="RECIPE", help="the recipe that should reach it sooner")
    parser.add_argument("--train", choices=[*_SIDES, "both", "neither"], default="both", help="what to train now")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--against-updates", type=int, help="updates of the second recipe; its schedule ends with them")
    parser.add_argument("--validate-every", type=int, default=250, metavar="UPDATES")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for both; repeatable")
    parser.add_argument("--base-set", dest="base_settings", action="append", default=[])
    parser.add_argument("--against-set", dest="against_settings", action="append", default=[])
    parser.add_argument("--seeds", default="1", help="such as 1,2,3")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", default="runs/records", help="folder of the runs; finished runs are not repeated")
    parser.add_argument("--test-source", help="text that the last model of each run translates")
    parser.add_argument("--test-reference")
    return parser.parse_args()


if __name__ == "__main__":
    main()
