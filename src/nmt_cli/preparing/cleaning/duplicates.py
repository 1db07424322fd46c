"""Duplicates: pairs of which an equal one came before, found by digests, without the text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PART = 1 << 21
_BLOCK = 1 << 20


def pair_digests(src: Sequence[str], tgt: Sequence[str]) -> NDArray[np.uint64]:
    """64-bit digests of pairs, [n]; the same in every process.

    Among 40 million pairs two different ones share a digest with a probability of about 1 in 20,000.
    """
    texts = (f"{source}\n{target}".encode() for source, target in zip(src, tgt, strict=True))
    joined = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
    return np.frombuffer(joined, dtype=np.uint64)


def are_new(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True for each digest that has not come before, [n].

    They are sorted in parts of about 2 million by their first bits, so that little more memory is taken than theirs.
    """
    is_new = np.zeros(len(digests), dtype=bool)
    num_bits = max(0, (len(digests) - 1) // _PART).bit_length()
    for part in range(1 << num_bits):
        places = _places_of_part(digests, part, num_bits=num_bits)
        _, first = np.unique(digests[places], return_index=True)
        is_new[places[first]] = True
    return is_new


def _places_of_part(digests: NDArray[np.uint64], part: int, *, num_bits: int) -> NDArray[np.int64]:
    """The places of the digests whose first bits are these, ascending."""
    if num_bits == 0:
        return np.arange(len(digests))
    shift = np.uint64(64 - num_bits)
    blocks = range(0, len(digests), _BLOCK)
    found = [start + np.flatnonzero(digests[start : start + _BLOCK] >> shift == part) for start in blocks]
    return np.concatenate(found)
