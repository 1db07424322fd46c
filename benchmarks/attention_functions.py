r"""Section 3.2.1 of the paper, measured: dot products with and without scaling, and additive attention.

nmt prepare --train multi30k/train --valid multi30k/val --valid multi30k/test_2016_flickr --languages en-de \
    --set tokenizer.vocab_size=4000 -o data/multi30k-4k
python benchmarks/attention_functions.py --data data/multi30k-4k | python benchmarks/charts.py --add attention-functions

Prints one JSON object with three tables for docs/paper-measured.md. *Costs* are time and memory of each function by
length. *Saturation* says how the softmax of random queries and keys narrows as they widen. *Losses* are those of small
models that differ in the function alone, after the same updates on the same batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, assert_never, get_args

import numpy as np
import torch
from measuring import Figures, argument_parser, circumstances, cost, markdown_table
from small_trainings import batch_of, nats_per_token, train
from torch import Tensor, nn

from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.memory import keep_freed_memory
from nmt_cli.model.attention import attend
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import CrossAttention, DecoderLayer, EncoderLayer, SelfAttention
from nmt_cli.model.packing import Packed, Projections, from_rectangle, pack, to_rectangle
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.initial_weights import build_model

Function = Literal["dot product, scaled", "dot product, not scaled", "additive"]
FUNCTIONS: tuple[Function, ...] = get_args(Function)
_SCALED, _NOT_SCALED, _ADDITIVE = FUNCTIONS
_HEADS, _NUM_KEYS = 1, 64


class OtherAttention(nn.Module):
    """A sub-layer of the Transformer with another function of queries and keys, and the matrices of `ours`."""

    def __init__(self, ours: SelfAttention | CrossAttention, function: Function) -> None:
        super().__init__()
        self.ours, self.output, self.function = ours, ours.output, function
        self.is_causal = isinstance(ours, SelfAttention) and ours.is_causal
        self.weight = score_weight(ours.heads, ours.d_k) if function == _ADDITIVE else None

    def forward(self, x: Tensor, layout: Packed, memory: Tensor | None = None, source: Packed | None = None) -> Tensor:
        """The attention output [N, H * V] for x [N, D], and memory [M, D] of the source if it attends to one."""
        if isinstance(self.ours, SelfAttention):
            q, k, v = self.ours.project(x, layout.positions)
        else:
            assert memory is not None
            q = self.ours.q(x).unflatten(-1, (self.ours.heads, self.ours.d_k))
            k, v = self.ours.keys_values(memory)
        keys = layout if source is None else source
        mixed = mix(
            self.function, q, k, v, queries=layout, keys=keys, is_causal=self.is_causal, score_weight=self.weight
        )
        return mixed.flatten(1)


def score_weight(heads: int, d_k: int) -> nn.Parameter:
    """The vector of each head in additive attention, [H, K], from Xavier's uniform distribution."""
    bound = (6 / (d_k + 1)) ** 0.5
    return nn.Parameter(torch.empty(heads, d_k).uniform_(-bound, bound))


def mix(
    function: Function,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    queries: Packed,
    keys: Packed,
    is_causal: bool,
    score_weight: Tensor | None,
) -> Tensor:
    """The values [M, H, V] that each query [N, H, K] attends to by its products with the keys [M, H, K], [N, H, V].

    Dot products go through nmt's own attention. Additive attention is w tanh(q + k): Bahdanau et al. 2014,
    arXiv:1409.0473, section A.1.2, with the matrices of the projections and w [H, K].
    """
    match function:
        case "dot product, scaled" | "dot product, not scaled":
            factor = 1.0 if function == _SCALED else q.size(-1) ** 0.5  # `attend` divides by it
            projections = Projections([(q * factor).flatten(1), k.flatten(1), v.flatten(1)], *q.shape[1:], v.size(-1))
            dropout = Dropout(0.0)
            return attend(projections, queries=queries, keys=keys, is_causal=is_causal, window=None, dropout=dropout)
        case "additive":
            assert score_weight is not None
            q_BTHK = to_rectangle(q, queries)
            k_BSHK, v_BSHV = to_rectangle(k, keys), to_rectangle(v, keys)
            scores_BTSH = ((q_BTHK[:, :, None] + k_BSHK[:, None]).tanh_() * score_weight).sum(-1)
            is_seen = keys.keep_mask[:, None]
            if is_causal:
                is_seen = is_seen & torch.ones(queries.max_len, keys.max_len, dtype=torch.bool).tril()
            weights_BTSH = scores_BTSH.masked_fill(~is_seen[..., None], -torch.inf).softmax(2)
            return from_rectangle(torch.einsum("btsh,bshv->bthv", weights_BTSH, v_BSHV), queries)
        case other:
            assert_never(other)


def swap_attention(model: Transformer, function: Function) -> None:
    """Give every attention of the model another function of queries and keys; dot products with scaling are its own."""
    if function == _SCALED:
        return
    for layer in [*model.encoder, *model.decoder]:
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        for name, module in list(layer.named_children()):
            if isinstance(module, SelfAttention | CrossAttention):
                setattr(layer, name, OtherAttention(module, function))


def main() -> None:
    """Measure all three, and print the tables."""
    arguments, start = _arguments(), time.perf_counter()
    keep_freed_memory()
    facts = circumstances("cpu", commit=arguments.commit)
    costs = [
        {"function": function, "n": length, **_cost(function, length, arguments)}
        for length in arguments.lengths
        for function in FUNCTIONS
    ]
    saturation = [_saturation(function, d_k) for d_k in arguments.saturation_d_k for function in FUNCTIONS]
    data, trainings = open_prepared(arguments.data), []
    for d_k in arguments.d_k:
        for function in FUNCTIONS:
            losses = [_loss(data, function, d_k, seed, arguments) for seed in arguments.seeds]
            trainings.append({"function": function, "d_k": d_k, "nats_per_token": losses})
    deviations = {d_k: _score_deviation(data, d_k, arguments) for d_k in arguments.d_k}
    result: Figures = {
        "benchmark": "attention functions of section 3.2.1",
        **facts,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "tokens": arguments.tokens,
        "updates": arguments.updates,
        "seeds": arguments.seeds,
        "costs": costs,
        "saturation": saturation,
        "trainings": trainings,
        "initial_score_deviation": deviations,
    }
    print(json.dumps(result | {"tables": _tables(result)}, indent=2))


def _cost(function: Function, length: int, arguments: argparse.Namespace) -> Figures:
    """Milliseconds and megabytes of forward and backward pass over sentences of one length."""
    torch.manual_seed(1)
    layout = pack([[0] * length] * max(1, arguments.tokens // length), device=torch.device("cpu"))
    q, k, v = (torch.randn(layout.num_tokens, _HEADS, arguments.cost_d_k, requires_grad=True) for _ in range(3))
    weight = score_weight(_HEADS, arguments.cost_d_k)

    def forward() -> Tensor:
        return mix(function, q, k, v, queries=layout, keys=layout, is_causal=False, score_weight=weight)

    return cost(forward, repeats=arguments.repeats)


def _saturation(function: Function, d_k: int) -> Figures:
    """What the softmax over 64 keys is like, for queries and keys whose components have the variance 1.

    Entropy is a share of its maximum. The gradient is the median of the norm of the Jacobian of the weights with
    respect to the scores.
    """
    torch.manual_seed(d_k)
    q, k = torch.randn(256, 1, d_k), torch.randn(256, _NUM_KEYS, d_k)
    if function == _ADDITIVE:
        scores = ((q + k).tanh() * score_weight(1, d_k).detach()).sum(-1)
    else:
        scores = (q * k).sum(-1) * (d_k**-0.5 if function == _SCALED else 1.0)
    weights = scores.double().softmax(-1)
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean() / np.log(_NUM_KEYS)
    jacobian = weights.diag_embed() - weights[:, :, None] * weights[:, None]
    return {
        "function": function,
        "d_k": d_k,
        "entropy": round(entropy.item(), 4),
        "largest_weight": round(weights.amax(-1).mean().item(), 4),
        "gradient": float(f"{jacobian.flatten(1).norm(dim=1).median().item():.3g}"),
    }


def _loss(data: PreparedData, function: Function, d_k: int, seed: int, arguments: argparse.Namespace) -> float:
    """Nats per token of the validation set after a training."""
    recipe = _recipe(d_k, seed, arguments)
    model = build_model(recipe, data)
    swap_attention(model, function)
    train(recipe, model, data.split("train"), longest=recipe.model.max_positions, precision="fp32")
    valid = data.split("valid")
    return round(nats_per_token(model, valid, np.arange(len(valid))), 3)


@torch.no_grad()
def _score_deviation(data: PreparedData, d_k: int, arguments: argparse.Namespace) -> float:
    """The standard deviation of the products of queries and keys, not scaled, in the first layer of a new model."""
    model = build_model(_recipe(d_k, arguments.seeds[0], arguments), data).eval()
    valid = data.split("valid")
    source = batch_of(valid, np.arange(min(len(valid), 64))).source
    attention = model.encoder[0].self_attention
    tokens = slice(source.num_tokens)
    q, k, _ = attention.project(model.source_embedding(source)[tokens], source.positions[tokens])
    return round((q[:, 0] @ k[:, 0].mT).std().item(), 2)


def _recipe(d_k: int, seed: int, arguments: argparse.Namespace) -> Recipe:
    settings = ["model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=128", "model.d_ff=512"]
    settings += [f"model.heads={_HEADS}", f"model.d_k={d_k}", "model.d_v=64", "model.dropout=0.1"]
    settings += [f"training.updates={arguments.updates}", f"training.batch_tokens={arguments.batch_tokens}"]
    settings += ["training.schedule={name: noam, factor: 0.4, warmup_updates: 250}", f"training.seed={seed}"]
    return load_recipe("small", overrides=settings)


def _tables(result: Figures) -> dict[str, list[str]]:
    lengths = sorted({row["n"] for row in result["costs"]})
    by_length = {(row["function"], row["n"]): row for row in result["costs"]}
    saturation = {(row["function"], row["d_k"]): row for row in result["saturation"]}
    trainings = {(row["function"], row["d_k"]): row["nats_per_token"] for row in result["trainings"]}
    d_ks, trained = (sorted({d_k for _, d_k in found}) for found in (saturation, trainings))
    kinds = {"entropy": "entropy", "largest_weight": "largest weight", "gradient": "gradient"}
    return {
        "costs": markdown_table(
            ["function", *(f"n = {n}" for n in lengths)],
            [
                [function, *(_milliseconds_and_megabytes(by_length[function, n]) for n in lengths)]
                for function in FUNCTIONS
            ],
        ),
        "saturation": markdown_table(
            ["function", "of the softmax", *(f"d_k = {d_k}" for d_k in d_ks)],
            [
                [function, name, *(f"{saturation[function, d_k][key]:.2g}" for d_k in d_ks)]
                for function in FUNCTIONS
                for key, name in kinds.items()
            ],
        ),
        "losses": markdown_table(
            ["function", *(f"d_k = {d_k}" for d_k in trained)],
            [
                *(
                    [function, *(_mean_and_range(trainings[function, d_k]) for d_k in trained)]
                    for function in FUNCTIONS
                ),
                [
                    "deviation of products at the start",
                    *(str(result["initial_score_deviation"][d_k]) for d_k in trained),
                ],
            ],
        ),
    }


def _milliseconds_and_megabytes(row: Figures) -> str:
    return f"{1000 * row['seconds']:.0f} ms, {row['peak_bytes'] / 1e6:.0f} MB"


def _mean_and_range(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="prepared data")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--batch-tokens", type=int, default=1000)
    parser.add_argument("--d-k", type=int, nargs="+", default=[16, 64, 256], help="widths of the trained models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of the sentences whose attention is timed")
    parser.add_argument("--cost-d-k", type=int, default=64, help="width of queries and keys that are timed")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--saturation-d-k", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    return parser.parse_args()


if __name__ == "__main__":
    main()
