"""Sources of any number and length, searched in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nmt_cli.decoding.search import Hypothesis, search
from nmt_cli.errors import DeviceError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig


def search_batches(
    model: Transformer, rows: Sequence[Sequence[int]], *, config: DecodingConfig, nbest: int, device: torch.device
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source, in input order, as `search` finds them; rows are pieces without EOS.

    A row without pieces is not searched: its only hypothesis is the empty one. DeviceError where the memory of a GPU
    does not suffice.
    """
    found = [[Hypothesis([], 0.0, 0.0)] for _ in rows]
    lengths = [len(row) for row in rows]
    for batch in plan_batches(lengths, max_tokens=config.batch_tokens // config.beam):
        try:
            results = search(model, [rows[index] for index in batch], config=config, nbest=nbest, device=device)
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"the memory of {device} does not hold a batch of {len(batch)} sentences with a beam of {config.beam}",
                where="--batch-tokens",
                hint=f"--batch-tokens {max(1, config.batch_tokens // 2)}, a smaller --beam, or --device cpu",
            ) from None
        for index, hypotheses in zip(batch, results, strict=True):
            found[index] = hypotheses
    return found


def plan_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Indices of the sources in batches of similar length, the longest first; sources without pieces are left out.

    A batch's sentences times the longest of them, EOS counted, are at most `max_tokens`; a sentence beyond is alone.
    """
    order = sorted((index for index, length in enumerate(lengths) if length > 0), key=lambda index: -lengths[index])
    batches: list[list[int]] = []
    for index in order:
        # The first of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * (lengths[batches[-1][0]] + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
