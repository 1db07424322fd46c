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
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

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
    result = {
        "benchmark": "training, target tokens a second with EOS",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "hardware": platform.processor() or platform.machine(),
        "size": arguments.size,
        "precision": arguments.precision,
        "batch_tokens": arguments.batch_tokens,
        "warm_up_updates": _WARM_UP,
        "updates_a_window": arguments.updates,
        "ratio": round(medians["nmt"] / medians["baseline"], 2),
    }
    for side, rates in sides.items():
        quartiles = statistics.quantiles(rates, n=4) if len(rates) > 1 else [rates[0]] * 3
        result[side] = {"median": round(medians[side]), "quartiles": [round(quartiles[0]), round(quartiles[2])]}
    print(json.dumps(result, indent=2))


def _run(command: list[str]) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return list(json.loads(done.stdout.strip().splitlines()[-1])["windows"])


def _our_windows(arguments: argparse.Namespace) -> list[float]:
    import torch

    from nmt_cli.dataset.batches import make_batch
    from nmt_cli.dataset.prepared_data import open_prepared
    from nmt_cli.devices import choose_device, multiply_float32_fast
    from nmt_cli.memory import keep_freed_memory
    from nmt_cli.recipe.loading import load_recipe
    from nmt_cli.training.data_order import DataOrder
    from nmt_cli.training.initial_weights import build_model
    from nmt_cli.training.ranks.ranks import Ranks
    from nmt_cli.training.update import Updater

    keep_freed_memory()
    multiply_float32_fast(choose_device(arguments.device))
    overrides = [f"model.{key}={value}" for key, value in _SIZES[arguments.size].items()]
    overrides += [f"training.batch_tokens={arguments.batch_tokens}", "training.clip_norm=1"]
    overrides += ["model.attention_bias=true", "model.embedding_multiple=8"]
    recipe = load_recipe("base", overrides=overrides)
    data = open_prepared(Path(arguments.data))
    ranks = Ranks(0, 1, choose_device(arguments.device))
    pairs = data.split("train")
    max_tokens = arguments.batch_tokens + 256
    order = DataOrder(
        data,
        recipe,
        world_size=1,
        max_tokens=max_tokens,
        run_directory=Path("."),
        beat=lambda: None,
    )
    model = build_model(recipe, data).to(ranks.device)
    updater = Updater(recipe, model, precision=arguments.precision, ranks=ranks)
    rates, number = [], 0
    for window in range(arguments.windows + 1):
        start, tokens = time.perf_counter(), 0
        for _ in range(_WARM_UP if window == 0 else arguments.updates):
            update, number = order.next(), number + 1
            batches = [
                (index, make_batch(rows, pairs, device=ranks.device, shape=order.shape, pinned=False))
                for index, rows in enumerate(update.micro_batches)
            ]
            updater.launch(
                batches,
                number=number,
                num_micro_batches=len(batches),
                target_tokens=update.target_tokens,
                received_signal=lambda: None,
            ).result()
            tokens += update.target_tokens
        if ranks.device.type == "cuda":
            torch.cuda.synchronize()
        if window > 0:
            rates.append(tokens / (time.perf_counter() - start))
    return rates


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
