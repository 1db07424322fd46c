"""Training pairs that cleaning dropped, by source: their counts, the warnings, and the errors if too many are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.clean_chunks import CleanChunk
from nmt_cli.preparing.cleaning.rules import (
    CONTROL_CHARACTERS,
    DUPLICATE,
    EXAMPLES_PER_REASON,
    HELD_OUT,
    MALFORMED,
    NOT_UTF8,
    OTHER_TRANSLATION,
    REASONS,
    UNTRANSLATED,
    CleaningCounts,
    DroppedPairs,
)
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.sources.base import LocalSource
from nmt_cli.text_encoding import (
    DECODE_TWICE,
    DOUBLE_ENCODED,
    conversion,
    files_in_other_encodings,
    files_not_utf8,
    is_unicode,
    latin1_hint,
)

_MAX_DROPPED = 0.5
_MAX_DROPPED_BY_RULE = 0.1
# Rules with another limit.
_LIMITS = {
    NOT_UTF8: 0.02,
    MALFORMED: 0.02,
    **dict.fromkeys((DUPLICATE, OTHER_TRANSLATION, HELD_OUT, UNTRANSLATED), _MAX_DROPPED),
}


@dataclass(slots=True)
class SourceCounts:
    """The counts of one source, and its files. `problem` describes its first malformed record."""

    name: str
    counts: CleaningCounts = field(default_factory=CleaningCounts)
    files: Sequence[Path] = ()
    problem: str | None = None

    @property
    def most_common_reason(self) -> tuple[str, DroppedPairs]:
        """The reason for which most pairs were dropped, and these pairs."""
        return max(self.counts.dropped.items(), key=lambda item: item[1].count)


def count_by_source(chunks: Sequence[CleanChunk], sources: Sequence[LocalSource]) -> list[SourceCounts]:
    """The counts of each local source; a source after `limit` pairs has counts of 0."""
    by_source = []
    for number, source in enumerate(sources, start=1):
        name = f"{source.origin} (training file {number} of {len(sources)})"
        by_source.append(SourceCounts(name, files=[file for _, file in source.inputs]))
    for chunk in chunks:
        source_counts = by_source[chunk.facts["source"]]
        source_counts.counts.add(CleaningCounts.from_json(chunk.facts["counts"]))
        source_counts.problem = source_counts.problem or chunk.facts["problem"]
    return by_source


def sum_of_sources(by_source: Iterable[SourceCounts]) -> SourceCounts:
    """The counts of all sources together, and the files of sources with invalid UTF-8."""
    whole = SourceCounts("train")
    for source in by_source:
        whole.counts.add(source.counts)
        whole.problem = whole.problem or source.problem
        if source.counts.dropped[NOT_UTF8].count:
            whole.files = [*whole.files, *source.files]
    return whole


def count_as_dropped(indices: NDArray[np.int64], reason: str, chunk: CleanChunk, counts: CleaningCounts) -> None:
    """Count these pairs of a chunk as dropped; the first ones become examples."""
    num_examples = max(0, EXAMPLES_PER_REASON - len(counts.dropped[reason].examples))
    for index in indices[:num_examples].tolist():
        counts.drop(reason, chunk.where(index), *chunk.pair(index))
    counts.dropped[reason].count += len(indices[num_examples:])


def check_first_encoding(chunk: Chunk, source: LocalSource) -> None:
    """Raise DataError if pairs of the first chunk of a source are lost as `check_encodings` says."""
    counts = CleaningCounts(read=len(chunk))
    for index, (src, tgt) in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
        if index not in chunk.malformed and not is_unicode(src + tgt):
            counts.drop(NOT_UTF8, chunk.where(index, side=int(is_unicode(src))), src, tgt)
    check_encodings([SourceCounts(source.origin, counts, [file for _, file in source.inputs])])


def check_encodings(by_source: Sequence[SourceCounts]) -> None:
    """Raise DataError if pairs of a source are lost because a file of it is in another encoding than UTF-8."""
    for source in by_source:
        dropped, num_read = source.counts.dropped[NOT_UTF8], source.counts.read
        # There is no such file if JSON holds half characters.
        if dropped.count > _LIMITS[NOT_UTF8] * num_read and (files := files_in_other_encodings(source.files)):
            names = " and ".join(file.name for file in files)
            raise DataError(
                f"{names} {'is' if len(files) == 1 else 'are'} not UTF-8: {dropped.count:,} of {num_read:,} pairs "
                "cannot be read",
                where=dropped.examples[0].where,
                hint=f"{latin1_hint(files, beside=source.files)}; then prepare the new files",
            )


def warnings_of_lost_sources(by_source: Sequence[SourceCounts]) -> list[str]:
    """A warning for each source that was read and lost every pair."""
    warnings = []
    for source in by_source:
        if source.counts.read and not source.counts.kept:
            reason, dropped = source.most_common_reason
            problem = f": {source.problem}" if reason == MALFORMED and source.problem else ""
            warnings.append(
                f"nothing is kept of {source.name}: of {source.counts.read:,} pairs read, {dropped.count:,} dropped "
                f"for {reason}, first at {dropped.examples[0].where}{problem}"
            )
    return warnings


def warning_of_dropped_pairs(by_source: Sequence[SourceCounts], config: CleaningConfig) -> str | None:
    """The warning, with what to do, if one rule dropped more pairs than is usual.

    A source of which nothing is kept does not count, because `warnings_of_lost_sources` warns of it.
    """
    whole = sum_of_sources([source for source in by_source if source.counts.kept])
    read, dropped = whole.counts.read, whole.counts.dropped
    over = {reason: dropped[reason].count - _LIMITS.get(reason, _MAX_DROPPED_BY_RULE) * read for reason in REASONS}
    reason = max(over, key=over.__getitem__)
    if over[reason] <= 0:
        return None
    found = dropped[reason]
    return (
        f"{found.count:,} of {read:,} training pairs are dropped for {reason}, first at {found.examples[0].where}: "
        f"{_fix_for(reason, whole, config)}"
    )


def most_dropped(by_source: Iterable[SourceCounts], config: CleaningConfig) -> tuple[str, str | None]:
    """The number of pairs dropped for the most common reason, for an error, and the settings that keep these pairs."""
    whole = sum_of_sources(by_source)
    reason, dropped = whole.most_common_reason
    if not dropped.count:
        return "", None
    fix = _fix_for(reason, whole, config) if REASONS[reason].relaxed and reason != DUPLICATE else None
    return f"; {dropped.count:,} of {whole.counts.read:,} were dropped for {reason}", fix


def check_some_left(by_source: Iterable[SourceCounts], config: CleaningConfig, *, num_left: int) -> None:
    """Raise DataError if no training pair is left."""
    if num_left:
        return
    whole = sum_of_sources(by_source)
    reason, dropped = whole.most_common_reason
    if dropped.count == 0:
        message = f"no training pair is left: the weights select none of {whole.counts.kept:,} pairs"
        hint = "raise the weights of the sources: a weight below 1 takes that share of the pairs"
        raise DataError(message, where="train", hint=hint)
    message = "no training pair is left after cleaning: "
    message += f"{dropped.count:,} of {whole.counts.read:,} dropped for {reason}"
    raise DataError(message, where=dropped.examples[0].where, hint=_fix_for(reason, whole, config))


def _fix_for(reason: str, counts: SourceCounts, config: CleaningConfig) -> str:
    """How to mend text that was dropped for a reason, or the settings that keep it."""
    if reason == MALFORMED and counts.problem:
        return counts.problem
    if reason == HELD_OUT and config.overlap == "report":  # by pairs that are set aside, not by the rule
        return "give validation text in files of its own: --valid FILE"
    if reason == NOT_UTF8 and (files := files_not_utf8(counts.files)):
        return latin1_hint(files, beside=counts.files)
    if reason == CONTROL_CHARACTERS and any(
        DOUBLE_ENCODED.search(example.source + example.target) for example in counts.counts.dropped[reason].examples
    ):
        return f"double-encoded characters: {conversion(None, DECODE_TWICE, new='mended')}"
    relaxed = " ".join(f"--set cleaning.{setting}" for setting in REASONS[reason].relaxed)
    causes = {
        "other script": "name the script in the language code, as in sr_Latn, or: ",
        "other language": "if the sides are swapped, give them in the other order; else: ",
    }
    return f"{causes.get(reason, '')}{relaxed} keeps them" if relaxed else "look at that line"
