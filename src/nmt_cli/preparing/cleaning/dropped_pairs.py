"""Training pairs that cleaning dropped, by source: their counts, the warnings, and the errors if too many are lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.preparing.cleaning.rules import (
    EXAMPLES_PER_REASON,
    HELD_OUT,
    MALFORMED,
    NOT_UTF8,
    REASONS,
    CleaningCounts,
    DroppedPairs,
)
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.shards import CleanShard
from nmt_cli.preparing.sources.base import LocalPairs
from nmt_cli.text_encoding import files_not_utf8, latin1_conversions

logger = logging.getLogger(__name__)

_MAX_WARNINGS_LOGGED = 5
_FILES_NAMED = 2
_MOST_DROPPED = 0.5
_MANY_UNREADABLE = 0.02
_UNREADABLE = (NOT_UTF8, MALFORMED)
_LOOK = "look at that line"


@dataclass(slots=True)
class SourceCounts:
    """The counts of one source, and its files. `problem` describes its first malformed record."""

    name: str
    counts: CleaningCounts = field(default_factory=CleaningCounts)
    files: Sequence[Path] = ()
    problem: str | None = None

    @property
    def commonest(self) -> tuple[str, DroppedPairs]:
        """The reason that dropped most pairs."""
        return max(self.counts.dropped.items(), key=lambda item: item[1].count)


def count_by_source(shards: Sequence[CleanShard], sources: Sequence[LocalPairs]) -> list[SourceCounts]:
    """The counts of each source; a source after `limit` pairs has counts of 0."""
    found = [
        SourceCounts(
            f"{source.origin} (training file {number} of {len(sources)})", files=[file for _, file in source.inputs]
        )
        for number, source in enumerate(sources, start=1)
    ]
    for shard in shards:
        source_counts = found[shard.facts["source"]]
        source_counts.counts.add(CleaningCounts.from_json(shard.facts["tally"]))
        source_counts.problem = source_counts.problem or shard.facts["problem"]
    return found


def sum_of_sources(by_source: Sequence[SourceCounts]) -> SourceCounts:
    """The counts of all sources together, and the files of sources with invalid UTF-8."""
    whole = SourceCounts("train")
    for source in by_source:
        whole.counts.add(source.counts)
        whole.problem = whole.problem or source.problem
        if source.counts.dropped[NOT_UTF8].count:
            whole.files = [*whole.files, *source.files]
    return whole


def count_as_dropped(places: NDArray[np.int64], reason: str, shard: CleanShard, counts: CleaningCounts) -> None:
    """Count the pairs at these places of a shard as dropped; the first ones are examples."""
    num_examples = max(0, EXAMPLES_PER_REASON - len(counts.dropped[reason].examples))
    for place in places[:num_examples].tolist():
        counts.drop(reason, shard.where(place), *shard.pair(place))
    counts.dropped[reason].count += len(places[num_examples:])


def other_encoding_error(by_source: Sequence[SourceCounts]) -> DataError | None:
    """The error if more than half of the pairs of a source are lost because its files are not UTF-8."""
    lost = [
        source for source in by_source if source.counts.dropped[NOT_UTF8].count > _MOST_DROPPED * source.counts.read
    ]
    files = [file for source in lost for file in files_not_utf8(source.files)]
    if not files:  # also if JSON holds half characters
        return None
    dropped = sum_of_sources(lost).counts.dropped[NOT_UTF8]
    num_read = sum(source.counts.read for source in lost)
    names = [file.name for file in files[:_FILES_NAMED]]
    names += [f"{len(files) - _FILES_NAMED:,} more"] if len(files) > _FILES_NAMED else []
    return DataError(
        f"{' and '.join(names)} {'is' if len(files) == 1 else 'are'} not UTF-8: {dropped.count:,} of {num_read:,} "
        "pairs cannot be read",
        where=dropped.examples[0].where,
        hint=f"{latin1_conversions(files)}; then prepare the new files",
    )


def warn_of_lost_sources(by_source: Sequence[SourceCounts]) -> list[str]:
    """A warning for each source that was read and lost every pair. The first warnings are logged as well."""
    warnings = []
    for source in by_source:
        if source.counts.read and not source.counts.kept:
            reason, dropped = source.commonest
            problem = f": {source.problem}" if reason == MALFORMED and source.problem else ""
            warnings.append(
                f"nothing is kept of {source.name}: of {source.counts.read:,} pairs read, {dropped.count:,} dropped "
                f"for {reason}, first at {dropped.examples[0].where}{problem}"
            )
    for warning in warnings[:_MAX_WARNINGS_LOGGED]:
        logger.warning("%s", warning)
    if (more := len(warnings) - _MAX_WARNINGS_LOGGED) > 0:
        logger.warning("nothing is kept of %s more, which the report names", f"{more:,}")
    return warnings


def warnings_of_dropped_pairs(by_source: Sequence[SourceCounts], config: CleaningConfig) -> Iterator[str]:
    """The warning, with what to do, if most pairs were dropped, or if more than a few could not be read.

    A source of which nothing is kept does not count: `warn_of_lost_sources` tells of it.
    """
    whole = sum_of_sources([source for source in by_source if source.counts.kept])
    read, kept = whole.counts.read, whole.counts.kept
    reason, dropped = whole.commonest
    if read - kept <= _MOST_DROPPED * read:
        reason = max(_UNREADABLE, key=lambda reason: whole.counts.dropped[reason].count)
        dropped = whole.counts.dropped[reason]
        kept = read - dropped.count
        if dropped.count <= _MANY_UNREADABLE * read:
            return
    place = dropped.examples[0].where
    fix = _fix(reason, whole, config) or _LOOK
    among = f", {dropped.count:,} of them" if dropped.count < read - kept else ""
    yield f"{read - kept:,} of {read:,} training pairs are dropped{among} for {reason}, first at {place}: {fix}"


def nothing_left_error(
    copies: Sequence[NDArray[np.uint16]], by_source: Sequence[SourceCounts], config: CleaningConfig
) -> DataError | None:
    """The error if no training pair is left."""
    if any(each.any() for each in copies):
        return None
    whole = sum_of_sources(by_source)
    reason, dropped = whole.commonest
    if dropped.count == 0:
        return DataError(
            f"no training pair is left: the weights select none of {whole.counts.kept:,} pairs",
            where="train",
            hint="raise the weights of the sources: a weight below 1 takes that share of the pairs",
        )
    return DataError(
        f"no training pair is left after cleaning: {dropped.count:,} of {whole.counts.read:,} dropped for {reason}",
        where=dropped.examples[0].where,
        hint=_fix(reason, whole, config) or _LOOK,
    )


def _fix(reason: str, counts: SourceCounts, config: CleaningConfig) -> str | None:
    """The fix of text that was dropped for a reason, or the settings that keep it; None if there is neither."""
    if reason == MALFORMED and counts.problem:
        return counts.problem
    if reason == HELD_OUT and config.overlap == "report":  # by pairs that are set aside, not by the rule
        return "give validation text in files of its own: --valid FILE"
    if reason == NOT_UTF8 and (files := files_not_utf8(counts.files)):
        return latin1_conversions(files)
    relaxed = " ".join(f"--set cleaning.{setting}" for setting in REASONS[reason].relaxed)
    return f"{relaxed} keeps them" if relaxed else None
