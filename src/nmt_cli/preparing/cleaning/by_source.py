"""The counts of cleaning by source, and what the user is told where nothing is kept of one, or of all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt_cli.errors import DataError
from nmt_cli.preparing.cleaning.rules import MALFORMED, Dropped, Tally
from nmt_cli.preparing.reading.readers import LocalSource
from nmt_cli.preparing.shards import Shard

logger = logging.getLogger(__name__)

_MAX_TOLD = 5


@dataclass(slots=True)
class SourceCounts:
    """What became of the pairs of one source; `problem` is what its first malformed record lacks."""

    name: str
    tally: Tally = field(default_factory=Tally)
    problem: str | None = None

    @property
    def commonest(self) -> tuple[str, Dropped]:
        """The reason for which most pairs were dropped."""
        return max(self.tally.dropped.items(), key=lambda item: item[1].count)


def count_by_source(shards: Sequence[Shard], sources: Sequence[LocalSource]) -> list[SourceCounts]:
    """What the rules left of each source; nothing was read of those that lie behind a limit."""
    counts = [
        SourceCounts(f"{source.origin} (training file {number} of {len(sources)})")
        for number, source in enumerate(sources, start=1)
    ]
    for shard in shards:
        one = counts[shard.source]
        one.tally.add(Tally.from_json(shard.facts["tally"]))
        one.problem = one.problem or shard.facts.get("problem")
    return counts


def warn_of_lost_sources(counts: Sequence[SourceCounts]) -> list[str]:
    """The warning for each source that was read and of which no pair is kept; the first of them are logged as well."""
    warnings = [_lost(one) for one in counts if one.tally.read and not one.tally.kept]
    for warning in warnings[:_MAX_TOLD]:
        logger.warning("%s", warning)
    if len(warnings) > _MAX_TOLD:
        logger.warning("nothing is kept of %s more, which the report names", f"{len(warnings) - _MAX_TOLD:,}")
    return warnings


def nothing_left(counts: Sequence[SourceCounts]) -> DataError:
    """The error that training text of which no pair is left calls for."""
    whole = SourceCounts("train")
    for one in counts:
        whole.tally.add(one.tally)
        whole.problem = whole.problem or one.problem
    reason, dropped = whole.commonest
    if dropped.count == 0:
        return DataError(
            f"no training pair is left: of {whole.tally.kept:,} none is drawn",
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
