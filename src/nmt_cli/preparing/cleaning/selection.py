"""The last step of cleaning: duplicates are found, and how often each remaining pair is taken."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt_cli.preparing.cleaning.held_out import PAIR, SIDE
from nmt_cli.preparing.cleaning.rules import DUPLICATE, EXAMPLES_PER_REASON, HELD_OUT, CleaningCounts
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.shards import CleanShard

# Any number, but the same in every preparation.
_DRAWS = 20_170_612
_PART = 1 << 21
_BLOCK = 1 << 20


def choose_copies(
    shards: Sequence[CleanShard], config: CleaningConfig, tallies: Sequence[CleaningCounts]
) -> list[NDArray[np.uint16]]:
    """How many copies of each pair are taken, by shard. 0 is a pair dropped here and counted for its source.

    The first of equal pairs is taken, as often as the weight of its source says.
    """
    is_new = first_occurrences(_digests(shards)) if config.duplicates else np.ones(sum(map(len, shards)), dtype=bool)
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


def pair_digests(src: Sequence[str], tgt: Sequence[str]) -> NDArray[np.uint64]:
    """64-bit digests of pairs, [n]; the same in every process.

    Among 40 million pairs two different ones share a digest with a probability of about 1 in 20,000.
    """
    texts = (f"{source}\n{target}".encode() for source, target in zip(src, tgt, strict=True))
    joined = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
    return np.frombuffer(joined, dtype=np.uint64)


def first_occurrences(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True for the first occurrence of each digest, [n].

    The digests are sorted in parts of about 2 million by their first bits, to save memory.
    """
    is_new = np.zeros(len(digests), dtype=bool)
    num_bits = max(0, (len(digests) - 1) // _PART).bit_length()
    for part in range(1 << num_bits):
        places = _places_of_part(digests, part, num_bits=num_bits)
        _, first = np.unique(digests[places], return_index=True)
        is_new[places[first]] = True
    return is_new


def _digests(shards: Sequence[CleanShard]) -> NDArray[np.uint64]:
    digests, start = np.empty(sum(map(len, shards)), dtype=np.uint64), 0
    for shard in shards:
        digests[start : start + len(shard)] = shard.array("digests")
        start += len(shard)
    return digests


def _drop(places: NDArray[np.int64], reason: str, shard: CleanShard, tally: CleaningCounts) -> None:
    num_examples = max(0, EXAMPLES_PER_REASON - len(tally.dropped[reason].examples))
    for place in places[:num_examples].tolist():
        tally.drop_text(reason, shard.where(place), *shard.pair(place))
    tally.dropped[reason].count += len(places[num_examples:])


def _weighted(shard: CleanShard) -> NDArray[np.uint16]:
    """The copies for a weight, [n]: its whole part, and one more with the probability of the rest."""
    whole, rest = divmod(shard.weight, 1)
    copies = np.full(len(shard), int(whole), dtype=np.uint16)
    if rest:
        copies += np.random.default_rng([_DRAWS, shard.number]).random(len(shard)) < rest
    return copies


def _places_of_part(digests: NDArray[np.uint64], part: int, *, num_bits: int) -> NDArray[np.int64]:
    """The places of the digests with these first bits, ascending."""
    if num_bits == 0:
        return np.arange(len(digests))
    shift = np.uint64(64 - num_bits)
    blocks = range(0, len(digests), _BLOCK)
    found = [start + np.flatnonzero(digests[start : start + _BLOCK] >> shift == part) for start in blocks]
    return np.concatenate(found)
