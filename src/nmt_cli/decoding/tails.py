"""Few sentences that go on for long: what batches leave is put aside and searched together.

Steps for a few sentences cost more for each than steps for many, and those of a batch do not all end at once. What a
sentence's translation is does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.running import Search

# A search is put aside when no more than this part of its sentences is open.
_SHARE = 1 / 4


class Tails:
    """The searches that one thread has put aside, of at most `max_tokens` padded source tokens in all, or one of them.

    `lengths` are those of all sentences, by their numbers.
    """

    def __init__(self, lengths: Sequence[int], *, max_tokens: int) -> None:
        self._lengths = lengths
        self._max_tokens = max_tokens
        self._aside: list[Search] = []
        # The sentences of all that is aside: what is lost where memory runs out in the middle of a search.
        self.numbers: list[int] = []

    def run(self, one: Search) -> dict[int, list[Hypothesis]]:
        """Search until few sentences are open, and put these aside.

        What was found, by the numbers of the sentences: for all that are not aside, and for some that were.
        """
        one.run(down_to=int(one.num_open * _SHARE))
        if not one.is_joinable:
            one.run(down_to=0)
        found = one.read()
        before = self.numbers
        try:
            for share in (_SHARE, 0.0):
                if self._is_too_much([*self.numbers, *one.open_sentences]):
                    found |= self._run_together(share=share)
        except BaseException:
            # What was found of those before is lost with `found`.
            self.numbers = before
            raise
        if one.num_open:
            self._aside.append(one)
            self.numbers += one.open_sentences
        return found

    def finish(self) -> dict[int, list[Hypothesis]]:
        """Search what is aside to its end."""
        return self._run_together(share=0.0)

    def drop(self) -> list[int]:
        """Give up what is aside; the numbers of its sentences."""
        numbers, self._aside, self.numbers = self.numbers, [], []
        return numbers

    def _is_too_much(self, numbers: Sequence[int]) -> bool:
        return (max((self._lengths[number] for number in numbers), default=0) + 1) * len(numbers) > self._max_tokens

    def _run_together(self, *, share: float) -> dict[int, list[Hypothesis]]:
        """Search all that is aside until no more than this share of it is open; what was found."""
        if not self._aside:
            return {}
        first = self._aside[0]
        if len(self._aside) > 1:
            first.join(self._aside[1:])
            del self._aside[1:]
        first.run(down_to=int(first.num_open * share))
        found = first.read()
        self.numbers = first.open_sentences
        self._aside = [first] if self.numbers else []
        return found
