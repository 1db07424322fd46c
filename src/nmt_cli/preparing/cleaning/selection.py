"""The last step of cleaning: which of the pairs that passed the rules are taken, and how often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt_cli.preparing.cleaning.duplicates import are_new
from nmt_cli.preparing.cleaning.heldout import PAIR, SIDE
from nmt_cli.preparing.cleaning.rules import DUPLICATE, EXAMPLES_PER_REASON, HELD_OUT, Tally
from nmt_cli.preparing.corpora import CleaningConfig
from nmt_cli.preparing.shards import Shard

# Of no meaning but to be the same at every preparation.
_DRAWS = 20_170_612


def choose_copies(
    shards: Sequence[Shard], config: CleaningConfig, tallies: Sequence[Tally]
) -> list[NDArray[np.uint16]]:
    """How many copies of each pair are taken, by shard; 0 for those dropped here, which the tally of the source counts.

    Of equal pairs the first is taken, as often as the weight of its source says.
    """
    is_new = are_new(_digests(shards)) if config.duplicates else np.ones(sum(map(len, shards)), dtype=bool)
    chosen, start = [], 0
    for shard in shards:
        tally = tallies[shard.source]
        is_kept = is_new[start : start + len(shard)]
        start += len(shard)
        _drop(np.flatnonzero(~is_kept), DUPLICATE, shard, tally)
        if config.overlap != "report":
            is_held_out = shard.array("found") >= (PAIR if config.overlap == "pairs" else SIDE)
            _drop(np.flatnonzero(is_held_out & is_kept), HELD_OUT, shard, tally)
            is_kept = is_kept & ~is_held_out
        chosen.append(_weighted(shard) * is_kept)
    return chosen


def _digests(shards: Sequence[Shard]) -> NDArray[np.uint64]:
    digests, start = np.empty(sum(map(len, shards)), dtype=np.uint64), 0
    for shard in shards:
        digests[start : start + len(shard)] = shard.array("digests")
        start += len(shard)
    return digests


def _drop(places: NDArray[np.int64], reason: str, shard: Shard, tally: Tally) -> None:
    num_examples = max(0, EXAMPLES_PER_REASON - len(tally.dropped[reason].examples))
    for place in places[:num_examples].tolist():
        tally.drop_text(reason, shard.where(place), *shard.pair(place))
    tally.dropped[reason].count += len(places[num_examples:])


def _weighted(shard: Shard) -> NDArray[np.uint16]:
    """The copies that a weight gives, [n]: its whole part, and one more with the probability of the rest."""
    whole, rest = divmod(shard.weight, 1)
    copies = np.full(len(shard), int(whole), dtype=np.uint16)
    if rest:
        copies += np.random.default_rng([_DRAWS, shard.number]).random(len(shard)) < rest
    return copies
