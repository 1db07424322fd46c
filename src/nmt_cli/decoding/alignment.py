"""Alignments: the source piece with the most attention of each target piece (section 3.2.3).

Shapes: T target tokens and S source tokens of a sentence, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nmt_cli.model.forced import attention_weights
from nmt_cli.model.transformer import Transformer
from nmt_cli.tokenization.tokenizer import BOS, EOS


def alignment_layer(model: Transformer) -> int:
    """The decoder layer that gives alignments: the last but one, if there are two.

    Garg et al. 2019, arXiv:1909.02074, section 3.2: of six layers it has the lowest alignment error.
    """
    return max(len(model.decoder) - 2, 0)


def align(
    models: Sequence[Transformer],
    rows: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device,
) -> list[list[int]]:
    """The position of the source piece with the most attention, over all heads and models, for each target piece.

    Rows and targets are without EOS: a piece may attend to it, but is not aligned to it.
    """
    sources = [[*row, EOS] for row in rows]
    # The piece before predicts a piece, so the last piece needs no position.
    inputs = [[BOS, *ids[:-1]] for ids in targets]
    each = [
        attention_weights(model, sources, inputs, part="cross", layers=[alignment_layer(model)], device=device)[0]
        for model in models
    ]
    summed = [
        torch.stack([weights_HTS.mean(dim=0) for weights_HTS in of_models]).sum(dim=0)
        for of_models in zip(*each, strict=True)
    ]
    return [
        weights_TS[: len(ids), :-1].argmax(dim=-1).tolist() for ids, weights_TS in zip(targets, summed, strict=True)
    ]
