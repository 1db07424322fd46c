"""Counts of cleaning for each source, and the messages if no pair of a source, or of all sources, is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt_cli.errors import DataError
from nmt_cli.preparing.cleaning.rules import MALFORMED, CleaningCounts, DroppedPairs
from nmt_cli.preparing.shards import CleanShard
from nmt_cli.preparing.sources.base import LocalPairs

logger = logging.getLogger(__name__)

_MAX_TOLD = 5


@dataclass(slots=True)
class SourceCounts:
    """The counts of one source. `problem` describes its first malformed record."""

    name: str
    tally: CleaningCounts = field(default_factory=CleaningCounts)
    problem: str | None = None

    @property
    def commonest(self) -> tuple[str, DroppedPairs]:
        """The reason that dropped most pairs."""
        return max(self.tally.dropped.items(), key=lambda item: item[1].count)


def count_by_source(shards: Sequence[CleanShard], sources: Sequence[LocalPairs]) -> list[SourceCounts]:
    """The counts of each source; a source beyond the limit has read nothing."""
    counts = [
        SourceCounts(f"{source.origin} (training file {number} of {len(sources)})")
        for number, source in enumerate(sources, start=1)
    ]
    for shard in shards:
        one = counts[shard.source]
        one.tally.add(CleaningCounts.from_json(shard.facts["tally"]))
        one.problem = one.problem or shard.facts.get("problem")
    return counts


def warn_of_lost_sources(counts: Sequence[SourceCounts]) -> list[str]:
    """A warning for each source that was read and lost every pair. The first warnings are logged as well."""
    warnings = [_lost(one) for one in counts if one.tally.read and not one.tally.kept]
    for warning in warnings[:_MAX_TOLD]:
        logger.warning("%s", warning)
    if len(warnings) > _MAX_TOLD:
        logger.warning("nothing is kept of %s more, which the report names", f"{len(warnings) - _MAX_TOLD:,}")
    return warnings


def nothing_left_error(counts: Sequence[SourceCounts]) -> DataError:
    """The error if no training pair is left."""
    whole = SourceCounts("train")
    for one in counts:
        whole.tally.add(one.tally)
        whole.problem = whole.problem or one.problem
    reason, dropped = whole.commonest
    if dropped.count == 0:
        return DataError(
            f"no training pair is left: of {whole.tally.kept:,} none is sampled",
            where="train",
            hint="raise the weights of the sources: a weight below 1 takes that share of the pairs",
        )
    is_malformed = reason == MALFORMED and whole.problem is not None
    return DataError(
        f"no training pair is left after cleaning: {dropped.count:,} of {whole.tally.read:,} dropped for {reason}",
        where=dropped.examples[0].where if dropped.examples else None,
        hint=str(whole.problem)
        if is_malformed
        else "look at that line; rules are relaxed with --set cleaning.KEY=null",
    )


def _lost(counts: SourceCounts) -> str:
    reason, dropped = counts.commonest
    place = f", first at {dropped.examples[0].where}" if dropped.examples else ""
    problem = f": {counts.problem}" if reason == MALFORMED and counts.problem else ""
    return (
        f"nothing is kept of {counts.name}: of {counts.tally.read:,} pairs read, {dropped.count:,} dropped for "
        f"{reason}{place}{problem}"
    )
