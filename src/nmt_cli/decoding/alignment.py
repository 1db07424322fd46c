"""Which source piece each target piece looks at most, from the attention of one decoder layer (section 3.2.3).

Shapes: N packed target tokens, M packed source tokens, T target tokens and S source tokens of a sentence, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.model.layers import CrossAttention, DecoderLayer
from nmt_cli.model.packing import Packed, pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.tokenization.tokenizer import BOS, EOS


def alignment_layer(model: Transformer) -> int:
    """The decoder layer whose attention is taken: the last but one, where there are two.

    Garg et al. 2019, arXiv:1909.02074, section 3.2: of six layers it has the lowest alignment error.
    """
    return max(len(model.decoder) - 2, 0)


@torch.inference_mode()
def align(
    models: Sequence[Transformer],
    rows: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device,
) -> list[list[int]]:
    """For each piece of each target the place of the source piece with the most attention, over all heads and models.

    Rows and targets are without EOS, to which a piece may attend but is not aligned.
    """
    source = pack([[*row, EOS] for row in rows], device=device)
    # The query that finds a piece stands at the piece before it, so that the last piece needs no position.
    target = pack([[BOS, *ids[:-1]] for ids in targets], device=device)
    summed = _attention(models[0], source, target)
    for model in models[1:]:
        summed = [first + other for first, other in zip(summed, _attention(model, source, target), strict=True)]
    return [
        weights_TS[: len(ids), :-1].argmax(dim=-1).tolist() for ids, weights_TS in zip(targets, summed, strict=True)
    ]


def _attention(model: Transformer, source: Packed, target: Packed) -> list[Tensor]:
    """The mean weights over heads of the alignment layer, [T, S] for each sentence."""
    number = alignment_layer(model)
    memory = model.encode(source)
    # The layers by hand: a hook would be handed the batches of other threads as well.
    x: Tensor = model.target_embedding(target.ids, target.positions)
    for before in model.decoder[:number]:
        x = before(x, target, memory, source)
    layer = model.decoder[number]
    assert isinstance(layer, DecoderLayer)
    around = layer.self_attention_residual
    x = around.leave(x, layer.self_attention.output, layer.self_attention(around.enter(x), target))
    x = layer.cross_attention_residual.enter(x)
    return _weights(layer.cross_attention, x, memory, source=source, target=target)


def _weights(module: CrossAttention, x: Tensor, memory: Tensor, *, source: Packed, target: Packed) -> list[Tensor]:
    q_NHK = module.q(x).unflatten(-1, (module.heads, module.d_k)).float()
    k_MHK = module.kv(memory)[:, : module.heads * module.d_k].unflatten(-1, (module.heads, module.d_k)).float()
    queries = q_NHK[: target.num_tokens].split(target.lengths.tolist())
    keys = k_MHK[: source.num_tokens].split(source.lengths.tolist())
    scale = module.d_k**-0.5
    return [
        (torch.einsum("thk,shk->hts", q, k) * scale).softmax(dim=-1).mean(dim=0)
        for q, k in zip(queries, keys, strict=True)
    ]
