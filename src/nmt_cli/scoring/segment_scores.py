"""Scores of single segments, and where two systems differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt_cli.scoring.metric_names import MetricName, lower_is_better
from nmt_cli.scoring.metrics import EvaluationSet, make_scorer


@dataclass(frozen=True, slots=True)
class SegmentScores:
    """One metric over the segments of several systems: `values` by system and segment."""

    metric: str
    signature: str
    values: list[list[float]]

    def gain(self, segment: int, *, system: int, baseline: int) -> float:
        """By how much better a system's segment is than the baseline's; negative where it is worse."""
        difference = self.values[system][segment] - self.values[baseline][segment]
        return -difference if lower_is_better(self.metric) else difference


def segment_scores(
    systems: Sequence[Sequence[str]], against: EvaluationSet, *, metrics: Sequence[MetricName]
) -> list[SegmentScores]:
    """The metrics asked for, in that order, segment by segment: BLEU is that of a sentence, with effective order.

    A score of segments is a hint where to look; the mean of them is not the metric of the corpus (but with COMET).
    """
    found = []
    for name in metrics:
        scorer = make_scorer(name, against, of_segments=True, lengths=[len(system) for system in systems])
        values = [scorer.segment_scores(prepared) for prepared in scorer.prepare(systems)]
        found.append(SegmentScores(scorer.title, str(scorer.metric.get_signature()), values))
    return found


def largest_differences(scores: SegmentScores, *, count: int) -> tuple[list[int], list[int]]:
    """The segments in which system 0 gains and loses most against system 1, at most `count` each, largest first.

    Of equal differences the first segment comes first.
    """
    gains = [scores.gain(segment, system=0, baseline=1) for segment in range(len(scores.values[0]))]
    falling = sorted(range(len(gains)), key=lambda segment: -gains[segment])
    rising = sorted(range(len(gains)), key=lambda segment: gains[segment])
    best = [segment for segment in falling if gains[segment] > 0]
    worst = [segment for segment in rising if gains[segment] < 0]
    return best[:count], worst[:count]
