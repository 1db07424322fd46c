"""What a translation may not repeat: n-grams of pieces, and cycles.

A cycle is a unit of at most `LONGEST_UNIT` pieces that stands in a row again and again. A translation may have a unit
`ALLOWED_TIMES` in a row, or as often as its source has one, and may not begin the unit once more. The text of a
translation tells whether it has a loop.

Shapes: B sentences, R rows, T tokens so far, V vocabulary, U lengths of a unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.search.hypotheses import SourceSentence
from nmt_cli.recipe.schema import DecodingConfig

LONGEST_UNIT = 32
ALLOWED_TIMES = 3
"""How often in a row any translation may have a unit: very, very, very; 1 000 000 000; three points."""
NGRAM_WITHOUT_LOOPS = 3
"""If no three pieces stand twice, no unit stands in a row more than three times."""
# The lengths of a unit and of its translation differ by at most this factor.
_RATIO_OF_LENGTHS = 4
# In text: the most words and marks of a unit, the most letters of a unit in a word, and the fewest letters of a loop.
_WORDS_OF_LOOP, _LETTERS_OF_LOOP = 8, 16
_WORDS_AND_MARKS = re.compile(r"\w+|[^\w\s]")


class Repetition:
    """The tokens so far of the open hypotheses, and what they forbid as the next one."""

    def __init__(self, sources: Sequence[SourceSentence], *, config: DecodingConfig, device: torch.device) -> None:
        self._ngram = config.no_repeat_ngram
        self._tokens = torch.full((len(sources), LONGEST_UNIT + 1), -1, device=device)  # [R, U + 1 + T]
        self._runs = torch.zeros(len(sources), LONGEST_UNIT, dtype=torch.long, device=device)  # [R, U]
        limits = [allowed_runs(source.ids) for source in sources] if config.stop_loops else []
        self._limits = torch.tensor(limits, device=device) if limits else None  # [B, U]

    def append(self, ids: Tensor) -> None:
        """Add the newest token of each hypothesis, ids [R]."""
        self._tokens = torch.cat([self._tokens, ids[:, None]], dim=1)
        if self._limits is not None:
            earlier = self._tokens[:, -LONGEST_UNIT - 1 : -1].flip(1)
            self._runs = (self._runs + 1) * (earlier == ids[:, None])

    def forbid(self, log_probs: Tensor) -> None:
        """Give -inf, in place, to the tokens of log_probs [R, V] that would repeat what may not be repeated."""
        if self._limits is not None:
            limits = self._limits.repeat_interleave(len(log_probs) // len(self._limits), dim=0)
            next_of_cycle = self._tokens[:, -LONGEST_UNIT:].flip(1)
            _forbid(log_probs, next_of_cycle, self._runs >= limits)
        if self._ngram and self._tokens.size(1) >= self._ngram:
            windows = self._tokens.unfold(1, self._ngram, 1)  # [R, N, n]
            newest = self._tokens[:, self._tokens.size(1) - self._ngram + 1 :, None].mT  # [R, 1, n - 1]
            _forbid(log_probs, windows[:, :, -1], (windows[:, :, :-1] == newest).all(dim=2))

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Continue with `rows` [R'] of the current rows, and with `sentences` [B'] if some have left."""
        self._tokens, self._runs = self._tokens[rows], self._runs[rows]
        if sentences is not None and self._limits is not None:
            self._limits = self._limits[sentences]


def _forbid(log_probs: Tensor, tokens: Tensor, is_forbidden: Tensor) -> None:
    """Give -inf to the tokens [R, N] of log_probs [R, V] that are forbidden [R, N]; PAD, column 0, has it already."""
    log_probs.scatter_(1, tokens.where(is_forbidden, 0).clamp(min=0), -torch.inf)


def allowed_runs(source: Sequence[int]) -> list[int]:
    """How many pieces in a row may be those of 1, 2, up to `LONGEST_UNIT` places before, in a translation."""
    lengths = range(1, LONGEST_UNIT + 1)
    in_source = {length: run for length in lengths if (run := longest_run(source, length)) >= length}
    return [
        max(
            (ALLOWED_TIMES - 1) * length,
            *(
                -(-run * length // unit)
                for unit, run in in_source.items()
                if unit <= _RATIO_OF_LENGTHS * length and length <= _RATIO_OF_LENGTHS * unit
            ),
            0,
        )
        for length in lengths
    ]


def longest_run(ids: Sequence[object], length: int) -> int:
    """The most pieces in a row that are the same as those of `length` places before."""
    longest = run = 0
    for piece, earlier in zip(ids[length:], ids, strict=False):
        run = run + 1 if piece == earlier else 0
        longest = max(longest, run)
    return longest


def has_loop(source: str, translation: str) -> bool:
    """Whether a translation has words, or letters of a word, more often in a row than its source and than usual."""
    words = _WORDS_AND_MARKS.findall(translation)
    allowed = max(ALLOWED_TIMES, _times_in_a_row(_WORDS_AND_MARKS.findall(source), longest_unit=_WORDS_OF_LOOP))
    if _times_in_a_row(words, longest_unit=_WORDS_OF_LOOP) > allowed:
        return True
    long_words = [word for word in translation.split() if len(word) >= _LETTERS_OF_LOOP]
    if not long_words:
        return False
    in_source = (_times_in_a_row(word, longest_unit=_LETTERS_OF_LOOP) for word in source.split())
    allowed = max(ALLOWED_TIMES, *in_source, 0)
    return any(_letters_repeat(word, allowed=allowed) for word in long_words)


def _letters_repeat(word: str, *, allowed: int) -> bool:
    """Whether a word has letters more often in a row than allowed, in a stretch that is too long for a number."""
    runs = ((length, longest_run(word, length)) for length in range(1, _LETTERS_OF_LOOP + 1))
    return any(run >= allowed * length and run + length >= _LETTERS_OF_LOOP for length, run in runs)


def _times_in_a_row(tokens: Sequence[str], *, longest_unit: int) -> int:
    """How often the most repeated unit of the tokens stands in a row."""
    lengths = range(1, min(longest_unit, len(tokens) // 2) + 1)
    return max((longest_run(tokens, length) // length + 1 for length in lengths), default=1)
