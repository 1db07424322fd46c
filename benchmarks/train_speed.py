"""Training speed of `nmt` beside a baseline script, both sides in turn in one run; prints one JSON object.

python benchmarks/train_speed.py --source train.en --target train.de --baseline benchmarks/peers/train.py

The baseline takes --src --tgt --spm --size --precision --batch-tokens --dropout --windows --updates and prints a JSON
line with `windows`, target tokens a second with EOS. Ours runs the same architecture on the same pieces: 3 + 3 layers
of 256, 1,024 inner, 4 heads (small), or the paper's base; forward, backward, clipping, Adam, without validation and
checkpoints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from measuring import Figures, argument_parser, circumstances, run, summed_up, wait_for

_SIZES = {
    "small": {"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {},
}
_WARM_UP = 5


def main() -> None:
    """Alternate both sides and print medians, quartiles and the ratio."""
    arguments = _arguments()
    if arguments.ours:
        print(json.dumps({"windows": _our_windows(arguments)}))
        return
    sides: dict[str, list[float]] = {"nmt": [], "baseline": []}
    for _ in range(arguments.rounds):
        sides["nmt"] += _run([sys.executable, __file__, "--ours", *sys.argv[1:]])
        sides["baseline"] += _run(
            [
                *(arguments.baseline_python or sys.executable, arguments.baseline),
                *("--src", arguments.source, "--tgt", arguments.target, "--spm", f"{arguments.data}/source.spm"),
                *("--size", arguments.size, "--precision", {"bf16": "bf16", "fp32": "float32"}[arguments.precision]),
                *("--batch-tokens", str(arguments.batch_tokens), "--dropout", "0.1"),
                *("--windows", str(arguments.windows), "--updates", str(arguments.updates)),
            ]
        )
    medians = {side: statistics.median(rates) for side, rates in sides.items()}
    result: Figures = {
        "benchmark": "training, target tokens a second with EOS",
        **circumstances(arguments.device, commit=arguments.commit),
        "size": arguments.size,
        "precision": arguments.precision,
        "batch_tokens": arguments.batch_tokens,
        "warm_up_updates": _WARM_UP,
        "updates_a_window": arguments.updates,
        "ratio": round(medians["nmt"] / medians["baseline"], 2),
        **{side: summed_up(rates) for side, rates in sides.items()},
    }
    print(json.dumps(result, indent=2))


def _run(command: list[str]) -> list[float]:
    return list(json.loads(run(command).strip().splitlines()[-1])["windows"])


def _our_windows(arguments: argparse.Namespace) -> list[float]:
    from nmt_loop import NmtLoop

    from nmt_cli.dataset.prepared_data import open_prepared
    from nmt_cli.recipe.loading import load_recipe

    overrides = [f"model.{key}={value}" for key, value in _SIZES[arguments.size].items()]
    overrides += ["model.attention_bias=true", "model.embedding_multiple=8", "training.clip_norm=1"]
    overrides += [f"training.batch_tokens={arguments.batch_tokens}", f"training.precision={arguments.precision}"]
    recipe = load_recipe("base", overrides=overrides)
    rates = []
    with NmtLoop(recipe, open_prepared(Path(arguments.data)), device=arguments.device) as loop:
        for window in range(arguments.windows + 1):
            wait_for(arguments.device)
            start = time.perf_counter()
            tokens = sum(loop.update() for _ in range(arguments.updates if window else _WARM_UP))
            wait_for(arguments.device)
            rates.append(tokens / (time.perf_counter() - start))
    return rates[1:]


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", default="data/multi30k-en-de", help="prepared data, one shared vocabulary")
    parser.add_argument("--source", required=True, help="the training text that the data was prepared from")
    parser.add_argument("--target", required=True)
    parser.add_argument("--baseline", required=True, help="the baseline's script")
    parser.add_argument("--baseline-python", help="the Python with the baseline's packages; default: this one")
    parser.add_argument("--size", choices=_SIZES, default="small")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--updates", type=int, default=20, help="updates per window")
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
