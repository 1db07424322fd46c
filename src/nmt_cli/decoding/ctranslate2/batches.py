"""Batches for CTranslate2, chosen so that its workers end at about the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nmt_cli.decoding.batching import makespan, plan_batches
from nmt_cli.recipe.schema import DecodingConfig

# Source tokens times beam beyond which CTranslate2 gets slower on a CPU (docs/design/cpu-search.md#batches).
_MAX_TOKENS = 4096
# Larger batches are not faster.
_MAX_SENTENCES = 64
# Batches of fewer sentences are not made for idle workers.
_MIN_SENTENCES = 16
# Attention to fewer columns, with EOS and padding, is rounded differently, which may change a translation in int8.
# So shorter sentences are not searched together with longer ones.
MIN_WIDE_TOKENS = 16
# The cost of a step, in sentences: 10 to 16 (docs/design/cpu-search.md#batches).
_STEP_COST = 16
# A plan of smaller batches is taken if it needs less than this share of the best plan's time, by estimate.
_MAX_TIME_RATIO = 0.97
# Each plan that is tried has batches smaller by this factor than the plan before.
_SHRINKING = 0.93


def is_wide(length: int) -> bool:
    """Whether a sequence of `length` pieces has at least `MIN_WIDE_TOKENS` tokens; EOS is the last token."""
    return length + 1 >= MIN_WIDE_TOKENS


def batches_for_workers(
    lengths: Sequence[int], *, are_wide: Sequence[tuple[bool, ...]], config: DecodingConfig, workers: int
) -> list[list[int]]:
    """Indices of sentences in batches of similar length, so that the last worker ends early.

    Each entry of `are_wide` says which sequences of a sentence are wide; sentences of one batch agree.
    More batches leave workers idle for less time, but have more steps in total.
    """
    max_tokens = min(config.batch_tokens, _MAX_TOKENS) // config.beam
    # Short sentences count as longer, so that no batch has more than `_MAX_SENTENCES`.
    counted_lengths = [max(length, max_tokens // _MAX_SENTENCES - 1) for length in lengths]
    groups = [
        sorted((index for index, other in enumerate(are_wide) if other == pattern), key=lambda index: -lengths[index])
        for pattern in sorted(set(are_wide), reverse=True)
    ]
    best = _split_groups(groups, counted_lengths, max_tokens=max_tokens)
    max_batches = len(best)
    if len(best) > len(groups):  # a group has several batches: their number may grow until all workers get equally many
        max_batches = math.ceil(len(best) / workers) * workers
    max_batches = max(max_batches, len(lengths) // _MIN_SENTENCES)
    best_time = makespan(_costs(best, lengths), workers=workers)
    lower_bound = sum(_costs(best, lengths)) / min(workers, max(1, max_batches))  # all workers end at once
    tried_tokens = float(max_tokens)
    while _MAX_TIME_RATIO * best_time > lower_bound and tried_tokens > 1:
        tried_tokens *= _SHRINKING
        plan = _split_groups(groups, counted_lengths, max_tokens=int(tried_tokens))
        if len(plan) > max_batches:
            break
        time = makespan(_costs(plan, lengths), workers=workers)
        if time < _MAX_TIME_RATIO * best_time:
            best, best_time = plan, time
    return best


def _split_groups(groups: Sequence[Sequence[int]], lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """The groups of indices, split into batches of at most `max_tokens` tokens."""
    return [
        [group[position] for position in batch]
        for group in groups
        for batch in plan_batches([lengths[index] for index in group], max_tokens=max_tokens)
    ]


def _costs(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """The cost of each batch, in tokens of one sentence; finished sentences leave the batch."""
    num_tokens = [[lengths[index] + 1 for index in batch] for batch in batches]
    return [_STEP_COST * max(tokens) + sum(tokens) for tokens in num_tokens]
