"""A line's translation, and how the translations of its parts become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nmt_cli.decoding.search.hypotheses import SourceSentence


@dataclass(frozen=True, slots=True)
class Translation:
    """A line's translation: its text without line breaks, its score and log-probability, and its number of pieces.

    The score is the log-probability over the length penalty. `alternatives` are the next best translations, best first.
    A line translated in parts has sums over its parts; a blank line has an empty translation with score 0. If they are
    asked for, `word_log_probs` holds the log-probabilities of the words and of the end, `alignment` pairs of source and
    target words, and `utility` the mean similarity to the other candidates.
    """

    text: str
    score: float
    log_prob: float
    num_pieces: int
    alternatives: tuple[Translation, ...] = ()
    word_log_probs: tuple[float, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    utility: float | None = None


BLANK = Translation("", 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class PartedLine:
    """The parts of a line with the whitespace between them, and a source sentence for each; none if it is blank."""

    parts: list[str]
    sources: list[SourceSentence]

    def join(self, translated: Sequence[Sequence[Translation]]) -> Translation:
        """The line's translation, made of the translations of each part, best first."""
        if not self.parts:
            return BLANK
        if len(self.parts) == 1:
            best, *others = translated[0]
            return replace(best, alternatives=tuple(others)) if others else best
        best, *others = [self._joined(ranked) for ranked in zip(*translated, strict=False)]
        return replace(best, alternatives=tuple(others))

    def _joined(self, translations: Sequence[Translation]) -> Translation:
        # A space between two parts if the source has one there.
        glue = [" " if one[-1].isspace() or other[0].isspace() else "" for one, other in pairwise(self.parts)]
        glue.append("")
        text = "".join(one.text + space for one, space in zip(translations, glue, strict=True))
        scores: list[float] = []
        ends = 0.0
        pairs: list[tuple[int, int]] = []
        for place, one in enumerate(translations):
            is_cut_word = place > 0 and not glue[place - 1]
            first_source = len("".join(self.parts[:place]).split()) - is_cut_word
            so_far = "".join(done.text + space for done, space in zip(translations[:place], glue, strict=False))
            is_glued = bool(so_far) and not so_far[-1].isspace() and bool(one.text) and not one.text[0].isspace()
            first_target = len(so_far.split()) - is_glued
            pairs += [(first_source + source, first_target + target) for source, target in one.alignment]
            words = list(one.word_log_probs[: len(one.text.split())])
            ends += sum(one.word_log_probs[len(words) :])
            if is_glued and scores and words:
                scores[-1] += words.pop(0)
            scores += words
        has_scores = any(one.word_log_probs for one in translations)
        return Translation(
            text,
            sum(one.score for one in translations),
            sum(one.log_prob for one in translations),
            sum(one.num_pieces for one in translations),
            word_log_probs=(*scores, ends) if has_scores else (),
            alignment=tuple(sorted(set(pairs))),
        )
