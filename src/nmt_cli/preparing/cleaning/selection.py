"""The choice among clean training pairs: the first of equal pairs, as many copies as its source's weight says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt_cli.preparing.cleaning.held_out import PAIR, SIDE
from nmt_cli.preparing.cleaning.losses import SourceCounts, count_as_dropped
from nmt_cli.preparing.cleaning.rules import DUPLICATE, HELD_OUT
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.shards import CleanShard

_SEED = 20_170_612  # any number, but the same in every preparation


def choose_copies(
    shards: Sequence[CleanShard], config: CleaningConfig, by_source: Sequence[SourceCounts]
) -> list[NDArray[np.uint16]]:
    """The number of copies of each pair, by shard, [n] each.

    It is 0 for later ones of equal pairs and, if the corpus file drops them, for pairs of validation or test text.
    These are counted as dropped. All other pairs get the copies that the weight of their source says.
    """
    is_new = first_occurrences(_digests(shards)) if config.duplicates else np.ones(sum(map(len, shards)), dtype=bool)
    chosen, start = [], 0
    for shard in shards:
        counts = by_source[shard.facts["source"]].counts
        is_kept = is_new[start : start + len(shard)]
        start += len(shard)
        count_as_dropped(np.flatnonzero(~is_kept), DUPLICATE, shard, counts)
        if config.overlap != "report":
            is_held_out = shard.array("found") >= (PAIR if config.overlap == "pairs" else SIDE)
            count_as_dropped(np.flatnonzero(is_held_out & is_kept), HELD_OUT, shard, counts)
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

    The digests are sorted in 64 parts by six of their bits. More parts take more passes, fewer take more memory.
    """
    is_new = np.zeros(len(digests), dtype=bool)
    part_of_digest = digests.view(np.uint8)[::8] & 63
    for part in range(64):
        places = np.flatnonzero(part_of_digest == part)
        _, first = np.unique(digests[places], return_index=True)
        is_new[places[first]] = True
    return is_new


def _digests(shards: Sequence[CleanShard]) -> NDArray[np.uint64]:
    digests, start = np.empty(sum(map(len, shards)), dtype=np.uint64), 0
    for shard in shards:
        digests[start : start + len(shard)] = shard.array("digests")
        start += len(shard)
    return digests


def _weighted(shard: CleanShard) -> NDArray[np.uint16]:
    """The copies for a weight, [n]: its whole part, and one more with the probability of the rest."""
    whole, rest = divmod(shard.facts["weight"], 1)
    copies = np.full(len(shard), int(whole), dtype=np.uint16)
    if rest:
        copies += np.random.default_rng([_SEED, shard.number]).random(len(shard)) < rest
    return copies
