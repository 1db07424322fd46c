"""Training speed of `nmt` on one device, beside the same model in an eager padded loop and a peer's script.

python benchmarks/step_rate.py --size base --data data/sample --source .gpu/sample.en --target .gpu/sample.fr \
    --peer benchmarks/peers/train.py

Sides take turns in one run: `nmt` as it trains (order of the data, loader, compiled updates); the same model as padded
rectangles in eager bf16 (padded_transformer.py); and the peer's script, which takes --src --tgt --spm
--size --precision --device --batch-tokens --dropout --windows --updates and prints a JSON line with `windows`, target
tokens a second with EOS. Between them the rate of a large bf16 matrix product is measured, and at the end those of the
model's own products. Without --peer that side is left out. With --profile DIR a few updates are profiled, into that
folder and in short into the result. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import Figures, argument_parser, circumstances, judged, run_peer, summed_up

_SIZES = {
    "small": ("base", ["encoder_layers=3", "decoder_layers=3", "d_model=256", "d_ff=1024", "heads=4"]),
    "base": ("base", []),
    "big": ("big", []),
}
# Model FLOP/s over the matrix rate, and times the eager loop and the peer: the bar, and the stretch.
_BARS = {
    "base": {"share_of_matrix_rate": (0.42, 0.5), "times_eager": (1.6, 2.0), "times_peer": (2.5, 3.0)},
    "big": {"share_of_matrix_rate": (0.55, 0.62), "times_eager": (1.4, 1.7), "times_peer": (2.5, 3.0)},
}
_TOLD = ("size", "batch_tokens", "settings", "rounds", "windows", "updates")
_DATA_COPY = "the text of the data, plain, for the peer"


def main() -> None:
    """Alternate the sides and print the figures."""
    arguments = _arguments()
    import torch
    from nmt_loop import NmtLoop
    from padded_transformer import PaddedLoop

    from nmt_cli.dataset.prepared_data import open_prepared
    from nmt_cli.training.reporting.training_metrics import matrix_rate

    data, device = open_prepared(Path(arguments.data)), arguments.device
    recipe = _recipe(arguments)
    vocab = data.manifest.tokenizers.target.vocab_size
    rates: dict[str, list[float]] = {"nmt": [], "eager": [], "peer": [], "matrix": []}
    with NmtLoop(recipe, data, device=device) as ours:
        eager = PaddedLoop(recipe, data.split("train"), vocab=vocab, device=device)
        for update in (ours.update, eager.update):
            _windows(update, arguments, number=1, updates=arguments.warm_up)
        for _ in range(arguments.rounds):
            rates["matrix"].append(matrix_rate(torch.device(device), torch.bfloat16))
            rates["nmt"] += _windows(ours.update, arguments, number=arguments.windows, updates=arguments.updates)
            rates["eager"] += _windows(eager.update, arguments, number=arguments.windows, updates=arguments.updates)
            rates["peer"] += _peer_windows(arguments, dropout=recipe.model.dropout)
        result: Figures = {
            "benchmark": "training steps, target tokens a second with EOS",
            **circumstances(device, commit=arguments.commit),
            **{key: vars(arguments)[key] for key in _TOLD},
            "pairs": data.manifest.splits["train"].pairs,
            "vocabulary": vocab,
            **_sides(rates),
            "facts": {"nmt": ours.facts(), "eager": {"padding": round(eager.padding, 4)}},
            **_figures(arguments, rates, ours, vocab=vocab),
        }
        if arguments.profile:
            result["profile"] = ours.profile(Path(arguments.profile), updates=arguments.profiled_updates)
    print(json.dumps(result, indent=2))


def _recipe(arguments: argparse.Namespace) -> Any:
    from nmt_cli.recipe.loading import load_recipe

    name, model = _SIZES[arguments.size]
    settings = [f"model.{setting}" for setting in model]
    settings += [f"training.batch_tokens={arguments.batch_tokens}", "training.precision=bf16"]
    settings += [f"training.max_tokens_per_device={arguments.batch_tokens + 128}"]
    settings += ["training.compile=false"] if arguments.no_compile else []
    return load_recipe(name, overrides=[*settings, *arguments.settings])


def _windows(update: Callable[[], int], arguments: argparse.Namespace, *, number: int, updates: int) -> list[float]:
    """Tokens a second of so many windows, each begun and ended with an idle device."""
    import time

    from measuring import wait_for

    rates = []
    for _ in range(number):
        wait_for(arguments.device)
        start = time.perf_counter()
        tokens = sum(update() for _ in range(updates))
        wait_for(arguments.device)
        rates.append(tokens / (time.perf_counter() - start))
    return rates


def _peer_windows(arguments: argparse.Namespace, *, dropout: float) -> list[float]:
    if not arguments.peer:
        return []
    command = [
        *(arguments.peer_python or sys.executable, arguments.peer),
        *("--src", arguments.source, "--tgt", arguments.target, "--spm", f"{arguments.data}/source.spm"),
        *("--size", arguments.size, "--precision", "bf16", "--device", arguments.device),
        *("--batch-tokens", str(arguments.batch_tokens), "--dropout", str(dropout)),
        *("--windows", str(arguments.windows), "--updates", str(arguments.updates)),
    ]
    return list(json.loads(run_peer(command).strip().splitlines()[-1])["windows"])


def _sides(rates: dict[str, list[float]]) -> Figures:
    sides = {side: summed_up(rates[side]) for side in ("nmt", "eager", "peer") if rates[side]}
    return {**sides, "matrix_rate_teraflops": summed_up([rate / 1e12 for rate in rates["matrix"]], digits=3)}


def _figures(arguments: argparse.Namespace, rates: dict[str, list[float]], ours: Any, *, vocab: int) -> Figures:
    """Shares, ratios, bars, and the products of the model by themselves."""
    from matrix_rates import products_of_step, rates_of_step

    medians = {side: statistics.median(windows) for side, windows in rates.items() if windows}
    flops = ours.flops_per_target_token * medians["nmt"]
    measured = {"share_of_matrix_rate": flops / medians["matrix"], "times_eager": medians["nmt"] / medians["eager"]}
    if "peer" in medians:
        measured["times_peer"] = medians["nmt"] / medians["peer"]
    source, target = ours.tokens_an_update
    step = products_of_step(ours.recipe.model, vocab=vocab, src_tokens=round(source), tgt_tokens=round(target))
    own = rates_of_step(step, device=arguments.device)
    milliseconds = 1000 * target / medians["nmt"]
    bars = _BARS.get(arguments.size, {})
    return {
        "model_teraflops_a_second": round(flops / 1e12, 3),
        "milliseconds_an_update": round(milliseconds, 3),
        "ratios": {name: round(value, 3) for name, value in measured.items()},
        "bars": {
            name: judged(value, bar=bars[name][0], stretch=bars[name][1])
            for name, value in measured.items()
            if name in bars
        },
        "own_products": own | {"share_of_an_update": round(own["milliseconds_a_step"] / milliseconds, 3)},
    }


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", required=True, help="prepared data with one shared vocabulary")
    parser.add_argument("--size", choices=_SIZES, default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--source", help=_DATA_COPY)
    parser.add_argument("--target", help=_DATA_COPY)
    parser.add_argument("--peer", help="the peer's script")
    parser.add_argument("--peer-python", help="the Python with the peer's packages; default: this one")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE; repeatable")
    parser.add_argument("--no-compile", action="store_true", help="nmt without compilation and CUDA graphs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=3, help="windows of each side per round")
    parser.add_argument("--updates", type=int, default=20, help="updates per window")
    parser.add_argument("--warm-up", type=int, default=5, help="updates of either loop before the first window")
    parser.add_argument("--profile", metavar="DIR", help="profile nmt at the end, into this folder")
    parser.add_argument("--profiled-updates", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.peer and not (arguments.source and arguments.target):
        parser.error("--peer needs --source and --target")
    return arguments


if __name__ == "__main__":
    main()
