"""The choice of training pairs once all are cleaned: duplicates, copies by weight, and counts of each source."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.preparing.cleaning.held_out import PAIR, SIDE
from nmt_cli.preparing.cleaning.rules import (
    DUPLICATE,
    EXAMPLES_PER_REASON,
    HELD_OUT,
    MALFORMED,
    CleaningCounts,
    DroppedPairs,
)
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.shards import CleanShard
from nmt_cli.preparing.sources.base import LocalPairs
from nmt_cli.text_encoding import latin1_conversion

logger = logging.getLogger(__name__)

# Any number, but the same in every preparation.
_DRAWS = 20_170_612
_MAX_WARNINGS_LOGGED = 5
_MOST_DROPPED = 0.5
_MANY_UNREADABLE = 0.02
# What to do if pairs are dropped for a reason: mend the text, or relax the rule.
_FIXES_OF_TEXT = {
    "invalid UTF-8": "if the text is Latin-1, convert it: {CONVERSION}",
    MALFORMED: "look at that line",
}
_OTHER_FIX = "look at that line; rules are relaxed with --set cleaning.KEY=null"
_RELAXED = {
    "control characters": "cleaning.control_characters=false",
    "length ratio": "cleaning.max_length_ratio=9",
    "identical sides": "cleaning.identical_sides=false",
    "punctuation only": "cleaning.punctuation_only=false",
    "URL only": "cleaning.url_only=false",
    "repeated characters": "cleaning.max_repeated_characters=null",
    "other script": "cleaning.other_script=false",
    "other language": "cleaning.other_language=false",
    DUPLICATE: "cleaning.duplicates=false",
    HELD_OUT: "cleaning.overlap=report",
}


@dataclass(slots=True)
class SourceCounts:
    """The counts of one source. `problem` describes its first malformed record."""

    name: str
    counts: CleaningCounts = field(default_factory=CleaningCounts)
    problem: str | None = None

    @property
    def commonest(self) -> tuple[str, DroppedPairs]:
        """The reason that dropped most pairs."""
        return max(self.counts.dropped.items(), key=lambda item: item[1].count)


def count_by_source(shards: Sequence[CleanShard], sources: Sequence[LocalPairs]) -> list[SourceCounts]:
    """The counts of each source; a source beyond the limit has read nothing."""
    found = [
        SourceCounts(f"{source.origin} (training file {number} of {len(sources)})")
        for number, source in enumerate(sources, start=1)
    ]
    for shard in shards:
        one = found[shard.facts["source"]]
        one.counts.add(CleaningCounts.from_json(shard.facts["tally"]))
        one.problem = one.problem or shard.facts["problem"]
    return found


def choose_copies(
    shards: Sequence[CleanShard], config: CleaningConfig, by_source: Sequence[SourceCounts]
) -> list[NDArray[np.uint16]]:
    """How many copies of each pair are taken, by shard. 0 is a pair dropped here and counted for its source.

    The first of equal pairs is taken, as often as the weight of its source says.
    """
    is_new = first_occurrences(_digests(shards)) if config.duplicates else np.ones(sum(map(len, shards)), dtype=bool)
    chosen, start = [], 0
    for shard in shards:
        counts = by_source[shard.facts["source"]].counts
        is_kept = is_new[start : start + len(shard)]
        start += len(shard)
        drop_pairs(np.flatnonzero(~is_kept), DUPLICATE, shard, counts)
        if config.overlap != "report":
            is_held_out = shard.array("found") >= (PAIR if config.overlap == "pairs" else SIDE)
            drop_pairs(np.flatnonzero(is_held_out & is_kept), HELD_OUT, shard, counts)
            is_kept = is_kept & ~is_held_out
        chosen.append(_weighted(shard) * is_kept)
    return chosen


def drop_pairs(places: NDArray[np.int64], reason: str, shard: CleanShard, counts: CleaningCounts) -> None:
    """Count the pairs at these places of a shard as dropped; the first ones are examples."""
    num_examples = max(0, EXAMPLES_PER_REASON - len(counts.dropped[reason].examples))
    for place in places[:num_examples].tolist():
        counts.drop(reason, shard.where(place), *shard.pair(place))
    counts.dropped[reason].count += len(places[num_examples:])


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


def warn_of_lost_sources(by_source: Sequence[SourceCounts]) -> list[str]:
    """A warning for each source that was read and lost every pair. The first warnings are logged as well."""
    warnings = []
    for one in by_source:
        if one.counts.read and not one.counts.kept:
            reason, dropped = one.commonest
            place = f", first at {dropped.examples[0].where}" if dropped.examples else ""
            problem = f": {one.problem}" if reason == MALFORMED and one.problem else ""
            warnings.append(
                f"nothing is kept of {one.name}: of {one.counts.read:,} pairs read, {dropped.count:,} dropped for "
                f"{reason}{place}{problem}"
            )
    for warning in warnings[:_MAX_WARNINGS_LOGGED]:
        logger.warning("%s", warning)
    if (more := len(warnings) - _MAX_WARNINGS_LOGGED) > 0:
        logger.warning("nothing is kept of %s more, which the report names", f"{more:,}")
    return warnings


def warnings_of_dropped(by_source: Sequence[SourceCounts], config: CleaningConfig) -> Iterator[str]:
    """The warning, with what to do, if most pairs were dropped, or if more than a few could not be read.

    A source of which nothing is kept does not count: `warn_of_lost_sources` tells of it.
    """
    whole = _whole([one for one in by_source if one.counts.kept])
    read, kept = whole.counts.read, whole.counts.kept
    reason, dropped = whole.commonest
    if read - kept <= _MOST_DROPPED * read:
        reason = max(_FIXES_OF_TEXT, key=lambda reason: whole.counts.dropped[reason].count)
        dropped = whole.counts.dropped[reason]
        kept = read - dropped.count
        if dropped.count <= _MANY_UNREADABLE * read:
            return
    place = f", first at {dropped.examples[0].where}" if dropped.examples else ""
    fix = _fix(reason, whole, config) or "see there"
    among = f", {dropped.count:,} of them" if dropped.count < read - kept else ""
    yield f"{read - kept:,} of {read:,} training pairs are dropped{among} for {reason}{place}: {fix}"


def nothing_left_error(by_source: Sequence[SourceCounts], config: CleaningConfig) -> DataError:
    """The error if no training pair is left."""
    whole = _whole(by_source)
    reason, dropped = whole.commonest
    if dropped.count == 0:
        return DataError(
            f"no training pair is left: of {whole.counts.kept:,} none is sampled",
            where="train",
            hint="raise the weights of the sources: a weight below 1 takes that share of the pairs",
        )
    return DataError(
        f"no training pair is left after cleaning: {dropped.count:,} of {whole.counts.read:,} dropped for {reason}",
        where=dropped.examples[0].where if dropped.examples else None,
        hint=_fix(reason, whole, config) or _OTHER_FIX,
    )


def _fix(reason: str, counts: SourceCounts, config: CleaningConfig) -> str | None:
    """The fix of text that was dropped for a reason, or the setting that keeps it; None if there is neither."""
    if reason == MALFORMED and counts.problem:
        return counts.problem
    if reason == HELD_OUT and config.overlap == "report":  # by pairs that are set aside, not by the rule
        return "give validation text in files of its own: --valid FILE"
    if fix := _FIXES_OF_TEXT.get(reason):
        examples = counts.counts.dropped[reason].examples
        name = examples[0].where.rpartition(":")[0] if examples else "FILE"
        return fix.replace("{CONVERSION}", latin1_conversion(name))
    return f"--set {_RELAXED[reason]} keeps them" if reason in _RELAXED else None


def _whole(by_source: Sequence[SourceCounts]) -> SourceCounts:
    """The counts of all sources together."""
    whole = SourceCounts("train")
    for one in by_source:
        whole.counts.add(one.counts)
        whole.problem = whole.problem or one.problem
    return whole


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
        copies += np.random.default_rng([_DRAWS, shard.number]).random(len(shard)) < rest
    return copies
