r"""Section 3.5 of the paper, measured: positions that no training sentence has, by kind of positions.

nmt prepare --train multi30k/train --valid multi30k/val --valid multi30k/test_2016_flickr --languages en-de \
    --set tokenizer.vocab_size=4000 -o data/multi30k-4k
python benchmarks/position_lengths.py --data data/multi30k-4k | python benchmarks/charts.py --add position-lengths

Small models train on pairs of at most 20 pieces per side, and are scored on the validation pairs by the pieces of their
longer side. A model that trains on pairs of all lengths says how hard the long pairs are. Prints one JSON object with a
table for docs/paper-measured.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from measuring import Figures, argument_parser, circumstances, markdown_table
from small_trainings import nats_per_token, train

from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.training.initial_weights import build_model

_SHORT = 20
_LENGTHS = ((1, _SHORT), (21, 30), (31, 45))
_TRAININGS = {
    "sinusoidal": ("sinusoidal", True),
    "learned": ("learned", True),
    "rotary": ("rotary", True),
    "sinusoidal, trained on all lengths": ("sinusoidal", False),
}


def main() -> None:
    """Train and score all, and print the table."""
    arguments, start = _arguments(), time.perf_counter()
    facts, data = circumstances("cpu", commit=arguments.commit), open_prepared(arguments.data)
    losses = {name: [_losses(data, name, seed, arguments) for seed in arguments.seeds] for name in _TRAININGS}
    names = [f"{first} to {last}" for first, last in _LENGTHS]
    by_length = {
        name: {length: [found[place] for found in of_seeds] for place, length in enumerate(names)}
        for name, of_seeds in losses.items()
    }
    rows = [
        [
            name,
            *(f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in found.values()),
        ]
        for name, found in by_length.items()
    ]
    result: Figures = {
        "benchmark": "nats per token by length and kind of positions, section 3.5",
        **facts,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "updates": arguments.updates,
        "seeds": arguments.seeds,
        "scored_pairs": {name: len(pairs) for name, pairs in zip(names, _pairs_by_length(data), strict=True)},
        "nats_per_token": by_length,
        "tables": {"lengths": markdown_table(["positions", *(f"{name} pieces" for name in names)], rows)},
    }
    print(json.dumps(result, indent=2))


def _losses(data: PreparedData, name: str, seed: int, arguments: argparse.Namespace) -> list[float]:
    """Nats per token of the validation pairs of each range of lengths, after a training."""
    positions, is_short = _TRAININGS[name]
    settings = ["model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=128", "model.d_ff=512"]
    settings += ["model.dropout=0.1", f"model.positions={positions}", f"training.seed={seed}"]
    settings += [f"training.updates={arguments.updates}", f"training.batch_tokens={arguments.batch_tokens}"]
    settings += ["training.schedule={name: noam, factor: 0.4, warmup_updates: 200}"]
    recipe = load_recipe("small", overrides=settings)
    model, num_eos = build_model(recipe, data), 1
    longest = _SHORT + num_eos if is_short else recipe.model.max_positions
    train(recipe, model, data.split("train"), longest=longest, precision="auto")
    valid = data.split("valid")
    return [round(nats_per_token(model, valid, chosen), 3) for chosen in _pairs_by_length(data)]


def _pairs_by_length(data: PreparedData) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The validation pairs of each range, by the pieces of the longer side."""
    valid = data.split("valid")
    pieces = np.maximum(valid.src.lengths, valid.tgt.lengths) - 1  # lengths count EOS
    return [np.flatnonzero((first <= pieces) & (pieces <= last)) for first, last in _LENGTHS]


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="prepared data")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--batch-tokens", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    return parser.parse_args()


if __name__ == "__main__":
    main()
