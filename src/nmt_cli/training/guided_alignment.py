"""Guided alignment: a loss that teaches one head of the attention to the source to align words.

Chen et al. 2016, arXiv:1607.01628; Garg et al. 2019, arXiv:1909.02074, section 3.3. The head is the first of the layer
that gives alignments. It aligns a target token where the decoder reads it, one place after it was predicted: there it
knows what to align (Chen et al. 2020, arXiv:2004.14837).

Shapes: N target and M source slots, B sentences, T and S the longest of them, D d_model, K d_k.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.links import has_links
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.decoding.attention_maps import alignment_layer
from nmt_cli.errors import RecipeError
from nmt_cli.model.layers import CrossAttention
from nmt_cli.model.packing import to_rectangle
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe


def check_alignments(data: PreparedData, recipe: Recipe) -> None:
    """Raise RecipeError if the recipe guides alignments, and the data has none."""
    weight = recipe.training.guided_alignment
    if weight and not has_links(data):
        raise RecipeError(
            f"training.guided_alignment is {weight:g}, but the data has no word alignments",
            where=str(data.directory),
            hint="prepare the data again with --alignments FILE, or --set training.guided_alignment=null",
        )


def decode_with_alignment_loss(model: Transformer, batch: Batch, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The decoder's output [N, D] as `Transformer.decode` gives it, and the loss of alignment; memory is [M, D]."""
    guided, losses = model.decoder[alignment_layer(model)].get_submodule("cross_attention"), list[Tensor]()
    hook = guided.register_forward_pre_hook(
        lambda module, inputs: losses.append(alignment_loss(module, inputs[0], memory, batch))
    )
    try:
        return model.decode(batch.target, memory, batch.source), losses[0]
    finally:
        hook.remove()


def alignment_loss(module: CrossAttention, x: Tensor, memory: Tensor, batch: Batch) -> Tensor:
    """The cross-entropy between the first head's attention and the links of each token, summed, a float32 scalar.

    The attention of x [N, D] to memory [M, D] is without dropout. Tokens without links do not count.
    """
    assert batch.links is not None
    q, k = (
        F.linear(inputs, linear.weight[: module.d_k], None if linear.bias is None else linear.bias[: module.d_k])
        for inputs, linear in ((x, module.q), (memory, module.kv))
    )
    q_BTK, k_BSK = to_rectangle(q, batch.target), to_rectangle(k, batch.source)
    scores_BTS = (q_BTK @ k_BSK.mT).to(torch.promote_types(q.dtype, torch.float32)) * module.d_k**-0.5
    log_probs_BTS = scores_BTS.masked_fill(~batch.source.keep_mask[:, None], -torch.inf).log_softmax(-1)
    sentences, targets, sources = batch.links.places
    loss: Tensor = -(log_probs_BTS[sentences, targets + 1, sources] * batch.links.shares).sum()
    return loss
