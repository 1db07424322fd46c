"""How long a translation may get, and how its length is weighed against its probability."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from nmt_cli.recipe.schema import DecodingConfig


def length_penalty(length: int, *, config: DecodingConfig) -> float:
    """The divisor of a log-probability: ((5 + length) / 6) ** alpha in the `gnmt` form, length ** alpha, or 1.

    Wu et al. 2016, arXiv:1609.08144, section 7, without the coverage term. `length` counts EOS, where there is one, but
    not BOS; at least 1.
    """
    match config.length_penalty_form:
        case "gnmt":
            return float(((5 + length) / 6) ** config.length_penalty)
        case "length":
            return float(length**config.length_penalty)
        case "none":
            return 1.0
        case other:
            assert_never(other)


class Penalties:
    """`length_penalty` of each length up to `longest`, looked up on a device; that of longer ones is its."""

    def __init__(self, longest: int, *, config: DecodingConfig, device: torch.device) -> None:
        self.longest = longest
        each = [length_penalty(length, config=config) for length in range(1, longest + 1)]
        self._table = torch.tensor([[1.0], *([one] for one in each)], device=device)

    def at(self, lengths: Tensor) -> Tensor:
        """Those of the lengths [B], [B, 1]."""
        return self._table.index_select(0, lengths.clamp(max=self.longest))


def output_limit(source_pieces: int, *, config: DecodingConfig, max_positions: int) -> int:
    """The most tokens that a source of so many pieces, EOS not counted, is given: these pieces plus `max_extra_tokens`.

    A hypothesis of fewer pieces ended in EOS, which is one of its tokens; one of exactly so many pieces was cut there
    and has none. At least 1, and no more than the model has positions.
    """
    return max(1, min(source_pieces + config.max_extra_tokens, max_positions))
