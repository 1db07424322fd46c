"""The best continuations of a step, and which sentences leave a search."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.decoding.largest import best_continuations, most_probable
from nmt_cli.decoding.leaving import who_leaves


@pytest.mark.parametrize("vocabulary", [9, 127, 1000, 2048])
def test_the_most_probable_is_the_first_of_the_largest(vocabulary: int) -> None:
    log_probs = torch.randn(50, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).round()
    log_probs[1] = -torch.inf
    log_probs[2, -1], log_probs[3, -5:] = 9.0, 9.0
    expected = [row.index(max(row)) for row in log_probs.tolist()]
    assert most_probable(log_probs).tolist() == expected


@pytest.mark.parametrize("vocabulary", [9, 1000, 2048])
@pytest.mark.parametrize("width", [1, 3])
def test_continuations_are_the_first_of_a_stable_sort(vocabulary: int, width: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary + width)
    # Rounded so coarsely that most values come many times; some are -inf, and one is +0.0.
    log_probs = (torch.randn(7 * width, vocabulary, generator=generator) * 2).round().sub(5)
    log_probs[:, :3] = -torch.inf
    log_probs[0, 4], log_probs[-1] = 0.0, -torch.inf
    before = -torch.rand(7, width, generator=generator).mul(4).round()
    count = min(8, width * (vocabulary - 3))
    totals, places = best_continuations(log_probs, before, count=count)
    everything = (log_probs.view(7, width, vocabulary) + before[:, :, None]).flatten(1)
    values, order = everything.sort(dim=1, descending=True, stable=True)
    assert torch.equal(totals, values[:, :count])
    assert torch.equal(places, order[:, :count])


def test_sentences_leave_at_once_in_small_batches_and_by_grains_in_large_ones() -> None:
    def leaving(done: list[int], of: int) -> tuple[list[int], list[int]] | None:
        found = who_leaves(torch.tensor([place in done for place in range(of)]))
        return None if found is None else (found[0].tolist(), found[1].tolist())

    assert leaving([], of=20) is None
    # A multiple of two stays, and the last ones go first: nobody has to take their places.
    assert leaving([0], of=20) is None
    assert leaving([1, 3, 19], of=20) == ([3, 19], [0, 1, 2, 18, *range(4, 18)])
    assert leaving([1, 4, 5, 9], of=10) == ([1, 4, 5, 9], [0, 6, 2, 3, 7, 8])
    assert leaving([1], of=2) == ([1], [0])
    assert leaving([0], of=2) == ([0], [1])
    assert leaving(list(range(7)), of=200) is None
    assert leaving(list(range(9)), of=200) == (list(range(1, 9)), [0, *range(192, 200), *range(9, 192)])
    assert leaving(list(range(20)), of=20) == (list(range(20)), [])
