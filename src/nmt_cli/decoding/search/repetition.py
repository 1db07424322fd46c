"""What a translation may not repeat: n-grams of pieces, and cycles.

A cycle is a unit of at most `LONGEST_UNIT` pieces that stands in a row again and again. A translation may have a unit
as often as its source has one in a row, and at least `ALLOWED_TIMES`; it may not even begin it once more.

Shapes: B sentences, R rows, T tokens so far, V vocabulary, U lengths of a unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.search.hypotheses import SourceSentence
from nmt_cli.recipe.schema import DecodingConfig

LONGEST_UNIT = 32
ALLOWED_TIMES = 3
"""How often in a row any translation may have a unit: very, very, very; 1 000 000 000; three points."""
# A unit of the source stands for units of the translation that are up to so many times as long or as short.
_RATIO_OF_LENGTHS = 4


class Repetition:
    """The tokens so far of the open hypotheses, and what they forbid as the next one."""

    def __init__(self, sources: Sequence[SourceSentence], *, config: DecodingConfig, device: torch.device) -> None:
        self._ngram = config.no_repeat_ngram
        self._tokens = torch.full((len(sources), LONGEST_UNIT + 1), -1, device=device)  # [R, U + 1 + T]
        self._runs = torch.zeros(len(sources), LONGEST_UNIT, dtype=torch.long, device=device)  # [R, U]
        limits = [allowed_runs(source.ids) for source in sources] if config.stop_loops else []
        self._limits = torch.tensor(limits, device=device) if limits else None  # [B, U]

    def append(self, ids: Tensor) -> None:
        """Add the newest token of each hypothesis, ids [R]."""
        self._tokens = torch.cat([self._tokens, ids[:, None]], dim=1)
        if self._limits is not None:
            earlier = self._tokens[:, -LONGEST_UNIT - 1 : -1].flip(1)
            self._runs = (self._runs + 1) * (earlier == ids[:, None])

    def forbid(self, log_probs: Tensor) -> None:
        """Give -inf, in place, to the tokens of log_probs [R, V] that would repeat what may not be repeated."""
        if self._limits is not None:
            limits = self._limits.repeat_interleave(len(log_probs) // len(self._limits), dim=0)
            next_of_cycle = self._tokens[:, -LONGEST_UNIT:].flip(1)
            _forbid(log_probs, next_of_cycle, self._runs >= limits)
        if self._ngram and self._tokens.size(1) >= self._ngram:
            windows = self._tokens.unfold(1, self._ngram, 1)  # [R, N, n]
            newest = self._tokens[:, self._tokens.size(1) - self._ngram + 1 :, None].mT  # [R, 1, n - 1]
            _forbid(log_probs, windows[:, :, -1], (windows[:, :, :-1] == newest).all(dim=2))

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Continue with `rows` [R'] of the current rows, and with `sentences` [B'] if some have left."""
        self._tokens, self._runs = self._tokens[rows], self._runs[rows]
        if sentences is not None and self._limits is not None:
            self._limits = self._limits[sentences]


def _forbid(log_probs: Tensor, tokens: Tensor, is_forbidden: Tensor) -> None:
    """Give -inf to the tokens [R, N] of log_probs [R, V] that are forbidden [R, N]; PAD, column 0, has it already."""
    log_probs.scatter_(1, tokens.where(is_forbidden, 0).clamp(min=0), -torch.inf)


def allowed_runs(source: Sequence[int]) -> list[int]:
    """How many pieces in a row may be those of 1, 2, up to `LONGEST_UNIT` places before, in a translation."""
    lengths = range(1, LONGEST_UNIT + 1)
    in_source = {length: run for length in lengths if (run := longest_run(source, length)) >= length}
    return [
        max(
            (ALLOWED_TIMES - 1) * length,
            *(
                -(-run * length // unit)
                for unit, run in in_source.items()
                if unit <= _RATIO_OF_LENGTHS * length and length <= _RATIO_OF_LENGTHS * unit
            ),
            0,
        )
        for length in lengths
    ]


def longest_run(ids: Sequence[int], length: int) -> int:
    """The most pieces in a row that are the same as those of `length` places before."""
    longest = run = 0
    for piece, earlier in zip(ids[length:], ids, strict=False):
        run = run + 1 if piece == earlier else 0
        longest = max(longest, run)
    return longest


def has_cycle(source: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether a translation of the source goes on with a unit that it already has as often as it may."""
    lengths = range(1, min(LONGEST_UNIT, len(ids) // ALLOWED_TIMES) + 1)
    repeated = {length: run for length in lengths if (run := longest_run(ids, length)) > (ALLOWED_TIMES - 1) * length}
    allowed = allowed_runs(source) if repeated else []
    return any(run > allowed[length - 1] for length, run in repeated.items())
