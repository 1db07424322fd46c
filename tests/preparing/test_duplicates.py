from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.preparing.cleaning import duplicates
from nmt_cli.preparing.cleaning.duplicates import are_new, pair_digests


@pytest.mark.parametrize("part", [1, 3, 1000])
@given(values=st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=60))
def test_new_is_what_a_set_has_not_seen(values: list[int], part: int) -> None:
    seen: set[int] = set()
    expected = [not (value in seen or seen.add(value)) for value in values]  # type: ignore[func-returns-value]  # None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_PART", part)
        patch.setattr(duplicates, "_BLOCK", 7)
        assert are_new(np.array(values, dtype=np.uint64)).tolist() == expected


def test_pairs_that_differ_have_other_digests() -> None:
    src, tgt = ["a", "a", "a b", "b", "é"], ["b", "c", "", "a", "b"]
    digests = pair_digests(src, tgt)
    assert len(set(digests.tolist())) == 5
    assert pair_digests(src[::-1], tgt[::-1]).tolist() == digests.tolist()[::-1]
    assert digests.dtype == np.uint64
    assert pair_digests([], []).shape == (0,)
