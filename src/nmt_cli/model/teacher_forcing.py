"""A model that is given its target (teacher forcing): log-probabilities and attention weights.

Shapes: N packed target tokens, D d_model, H heads, V vocabulary, T queries and S keys of a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from nmt_cli.model.layers import CrossAttention, SelfAttention
from nmt_cli.model.packing import Packed, pack
from nmt_cli.model.transformer import Transformer

AttentionPart = Literal["cross", "encoder", "decoder"]

_CPU_LOGITS, _CUDA_LOGITS = 1 << 22, 1 << 28  # at a time


def forced_log_probs(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    bos: int,
    device: torch.device,
) -> list[list[float]]:
    """The natural log-probability of each id of each target, in float32 whatever the model's precision.

    Sources end in EOS. A target ends in EOS if its end is scored too; the translation of a search that reached its
    limit has no EOS. No row is empty. The model is in evaluation mode, on `device`.
    """
    with torch.inference_mode():
        source, gold = pack(sources, device=device), pack(targets, device=device)
        inputs = gold.ids.roll(1)
        inputs[gold.cu_seqlens[:-1].long()] = bos
        hidden_ND = model.decode(replace(gold, ids=inputs), model.encode(source), source)
        values = _gold_log_probs(model, hidden_ND, gold.ids).tolist()
    return [values[start:end] for start, end in pairwise(gold.cu_seqlens.tolist())]


@torch.inference_mode()
def next_log_probs(model: Transformer, source: Sequence[int], prefix: Sequence[int], *, device: torch.device) -> Tensor:
    """The natural log-probabilities [V] of the piece after a prefix; it begins with BOS, and the source ends in EOS."""
    packed = pack([source], device=device)
    hidden_ND = model.decode(pack([prefix], device=device), model.encode(packed), packed)
    return model.logits(hidden_ND[-1:])[0].log_softmax(dim=-1, dtype=torch.float32)


@torch.inference_mode()
def attention_weights(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    part: AttentionPart,
    layers: Sequence[int],
    device: torch.device,
) -> list[list[Tensor]]:
    """softmax(Q K^T / sqrt(d_k)) (equation 1) [H, T, S] in float32, by layer and sentence; `layers` must ascend.

    `part` is the decoder's attention to the source, or the self-attention of encoder or decoder. Sources end in EOS,
    and targets begin with BOS.
    """
    source, target = pack(sources, device=device), pack(targets, device=device)
    self_layout, stack = (source, model.encoder) if part == "encoder" else (target, model.decoder)
    name = "cross_attention" if part == "cross" else "self_attention"
    modules = [stack[layer].get_submodule(name) for layer in layers]
    weights: list[list[Tensor]] = []

    # No hooks: a hook on a module also sees other threads' batches.
    def self_attend(module: SelfAttention, x: Tensor) -> Tensor:
        if module in modules:
            q, k, _ = module.project(x, self_layout.positions)
            weights.append(
                _weights(q, k, queries=self_layout, keys=self_layout, is_causal=module.is_causal, window=module.window)
            )
        return module.forward(x, self_layout)

    def cross_attend(module: CrossAttention, x: Tensor) -> Tensor:
        if module in modules:
            q = module.q(x).unflatten(-1, (module.heads, module.d_k))
            k, _ = module.keys_values(memory)
            weights.append(_weights(q, k, queries=target, keys=source, is_causal=False, window=None))
        return module.forward(x, target, memory, source)

    if part == "encoder":
        x: Tensor = model.source_embedding(source)
        for layer in model.encoder[: layers[-1] + 1]:
            x = layer(x, self_attend=self_attend)
        return weights
    memory = model.encode(source)
    x = model.target_embedding(target)
    for layer in model.decoder[: layers[-1] + 1]:
        x = layer(x, self_attend=self_attend, cross_attend=cross_attend)
    return weights


def _gold_log_probs(model: Transformer, hidden_ND: Tensor, gold_N: Tensor) -> Tensor:
    """The log-probabilities [N] of the gold ids; logits exist for a block of rows at a time."""
    rows_per_block = max(1, (_CUDA_LOGITS if hidden_ND.is_cuda else _CPU_LOGITS) // model.target_vocab)
    blocks = []
    for hidden, gold in zip(hidden_ND.split(rows_per_block), gold_N.split(rows_per_block), strict=True):
        log_probs = model.logits(hidden).log_softmax(dim=-1, dtype=torch.float32)
        blocks.append(log_probs.gather(1, gold[:, None])[:, 0])
    return torch.cat(blocks)


def _weights(
    q_NHK: Tensor, k_MHK: Tensor, *, queries: Packed, keys: Packed, is_causal: bool, window: int | None
) -> list[Tensor]:
    """The attention weights [H, T, S] of each sentence."""
    weights = []
    by_sentence = (x.float().split(layout.lengths.tolist()) for x, layout in ((q_NHK, queries), (k_MHK, keys)))
    for q_THK, k_SHK in zip(*by_sentence, strict=True):
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK) * q_THK.size(-1) ** -0.5
        positions_T, positions_S = (torch.arange(len(x), device=x.device) for x in (q_THK, k_SHK))
        distance_TS = positions_T[:, None] - positions_S
        if is_causal:
            scores_HTS = scores_HTS.masked_fill(distance_TS < 0, -torch.inf)
        if window is not None:
            scores_HTS = scores_HTS.masked_fill(distance_TS.abs() > window // 2, -torch.inf)
        weights.append(scores_HTS.softmax(-1))
    return weights
