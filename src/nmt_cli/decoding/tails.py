"""Few sentences that go on for long: what batches leave is put aside and searched together.

A step costs nearly as much for a few sentences as for many, and those of one batch do not all end at once. What a
sentence's translation is does not depend on its batch.
"""

from __future__ import annotations

from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.search import Search

# A search is put aside when so large a part of its sentences is open.
_SHARE = 1 / 4


class Tails:
    """The searches that one thread has put aside: at most `max_tokens` padded source tokens in all, or one search."""

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._aside: list[Search] = []
        self._longest = 0
        # The sentences of all that is aside: what is lost where memory runs out in the middle of a search.
        self.numbers: list[int] = []

    def run(self, one: Search, *, longest: int) -> dict[int, list[Hypothesis]]:
        """Search until few sentences are open, of at most `longest` source tokens, and put these aside.

        What was found, by the numbers of the sentences: for all that are not aside, and for some that were.
        """
        one.run(down_to=int(one.num_open * _SHARE))
        if not one.is_joinable:
            one.run(down_to=0)
        found = one.read()
        if one.num_open:
            if max(self._longest, longest) * (len(self.numbers) + one.num_open) > self._max_tokens:
                found |= self._run_together(share=_SHARE)
            self._aside.append(one)
            self._longest = max(self._longest, longest)
            self.numbers += one.open_sentences
        return found

    def finish(self) -> dict[int, list[Hypothesis]]:
        """Search what is aside to its end."""
        return self._run_together(share=0)

    def drop(self) -> list[int]:
        """Give up what is aside; the numbers of its sentences."""
        numbers, self._aside, self.numbers, self._longest = self.numbers, [], [], 0
        return numbers

    def _run_together(self, *, share: float) -> dict[int, list[Hypothesis]]:
        """Search all that is aside until no more than this share of it is open; what was found."""
        if not self._aside:
            return {}
        first, *others = self._aside
        if others:
            first.join(others)
        first.run(down_to=int(first.num_open * share))
        self.numbers = first.open_sentences
        self._aside = [first] if self.numbers else []
        if not self.numbers:
            self._longest = 0
        return first.read()
