"""Batches for CTranslate2's workers: of similar length, as many as end early together, in int8 of one width."""

from __future__ import annotations

from collections.abc import Sequence

from nmt_cli.decoding.batches import last_end, plan_batches
from nmt_cli.recipe.schema import DecodingConfig

# Source tokens times beam beyond which CTranslate2 takes longer on a CPU, not less long (docs/LOG.md).
_MOST_TOKENS = 4096
# Sentences of a batch, beyond which it is not faster either.
_MOST_SENTENCES = 64
# Sentences of a batch, below which it is not cut further for workers that have none.
_FEWEST_SENTENCES = 16
# Attention to fewer columns, EOS and padding counted, is rounded otherwise than to more, and in int8 that makes another
# translation now and then: shorter sentences are not searched with longer ones.
WIDE = 16
# What a step takes beside the sentences in it, in sentences (docs/LOG.md: 10 to 16).
_STEP_COST = 16
# Smaller batches are taken where the end comes so much earlier by this reckoning.
_GAIN = 0.97
# Each plan that is looked at has batches smaller by such a factor than the one before.
_SMALLER = 0.93


def is_wide(length: int) -> bool:
    """Whether a sequence of so many pieces, EOS not counted, is attended to as wide ones are."""
    return length + 1 >= WIDE


def plan(
    lengths: Sequence[int], *, widths: Sequence[tuple[bool, ...]], config: DecodingConfig, workers: int
) -> list[list[int]]:
    """Indices in batches of the same widths and of similar length, so that the last of the workers ends early.

    More batches leave workers without work for less time, and have more steps in all.
    """
    most = min(config.batch_tokens, _MOST_TOKENS) // config.beam
    # A short sentence counts as if it were so long that not more of them fit.
    counted = [max(length, most // _MOST_SENTENCES - 1) for length in lengths]
    groups = [
        sorted((index for index, other in enumerate(widths) if other == width), key=lambda index: -lengths[index])
        for width in sorted(set(widths), reverse=True)
    ]
    best = _cut(groups, counted, max_tokens=most)
    is_full = len(best) > len(groups)
    allowed = max(len(lengths) // _FEWEST_SENTENCES, -(-len(best) // workers) * workers if is_full else len(best))
    earliest = last_end(_costs(best, lengths), workers=workers)
    least = sum(_costs(best, lengths)) / min(workers, max(1, allowed))  # if all ended at once
    max_tokens = float(most)
    while _GAIN * earliest > least and max_tokens > 1:
        max_tokens *= _SMALLER
        planned = _cut(groups, counted, max_tokens=int(max_tokens))
        if len(planned) > allowed:
            break
        end = last_end(_costs(planned, lengths), workers=workers)
        if end < _GAIN * earliest:
            best, earliest = planned, end
    return best


def _cut(groups: Sequence[Sequence[int]], counted: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    return [
        [group[place] for place in batch]
        for group in groups
        for batch in plan_batches([counted[index] for index in group], max_tokens=max_tokens)
    ]


def _costs(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """What each batch takes, in pieces of one sentence; a sentence that is done leaves."""
    steps = [[lengths[index] + 1 for index in batch] for batch in batches]
    return [_STEP_COST * max(batch) + sum(batch) for batch in steps]
