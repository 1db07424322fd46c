"""The selection of clean pairs: how often each is trained on, and which are set aside for validation and test.

Of equal pairs the first is taken, as often as the weight of its source says. No sentence that is set aside stays in the
training text.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.prepared_data import SIDES
from nmt_cli.errors import DataError
from nmt_cli.preparing.clean_chunks import CleanChunk
from nmt_cli.preparing.cleaning.dropped_pairs import SourceCounts, count_as_dropped, most_dropped
from nmt_cli.preparing.cleaning.held_out import NOWHERE, PAIR, SIDE, HeldOut, HeldOutIndex
from nmt_cli.preparing.cleaning.rules import (
    DUPLICATE,
    EXAMPLES_PER_REASON,
    HELD_OUT,
    OTHER_TRANSLATION,
    make_printable,
)
from nmt_cli.preparing.corpus import CleaningConfig, Corpus
from nmt_cli.preparing.sources.base import SPLIT_NAMES, Split
from nmt_cli.recipe.schema import LanguagePair

logger = logging.getLogger(__name__)

PairIndex: TypeAlias = tuple[int, int]
"""The number of a pair's chunk, and the index of the pair in the chunk."""

_Candidate: TypeAlias = tuple[PairIndex, str, str]  # index, source and target of a pair

_SEED = 20_170_612  # any number, but the same in every preparation
_LARGEST_SHARE = 0.5


def choose_copies(
    chunks: Sequence[CleanChunk], config: CleaningConfig, by_source: Mapping[int, SourceCounts]
) -> tuple[list[NDArray[np.uint16]], dict[str, Any]]:
    """The number of copies of each pair, by chunk, [n] each; and the source texts that have several translations.

    If the corpus file drops duplicates, all but the first of equal pairs get 0. If it drops pairs of validation or test
    text, or all translations of a source but one, these get 0 too. All are counted as dropped. The weight of its source
    gives the copies of any other pair.
    """
    starts = np.cumsum([0, *map(len, chunks)])
    parts = [(chunk, slice(start, start + len(chunk))) for chunk, start in zip(chunks, starts, strict=False)]
    is_kept = np.ones(starts[-1], dtype=bool)

    def drop(is_dropped: NDArray[np.bool_], reason: str) -> None:
        for chunk, part in parts:
            counts = by_source[chunk.facts["source"]].counts
            count_as_dropped(np.flatnonzero(is_dropped[part] & is_kept[part]), reason, chunk, counts)
        is_kept[is_dropped] = False

    is_new = first_occurrences(_joined(chunks, "digests", np.uint64))
    is_held_out = np.zeros_like(is_kept)
    if config.duplicates:
        drop(~is_new, DUPLICATE)
    if config.overlap != "report":
        is_held_out = _joined(chunks, "matches", np.uint8) >= (PAIR if config.overlap == "pairs" else SIDE)
        drop(is_held_out, HELD_OUT)
    sources = _joined(chunks, "source_digests", np.uint64)
    has_several = _have_several_translations(sources, is_new, among=~is_held_out)
    several_translations = _describe_several_translations(chunks, sources, has_several & is_new)
    if config.several_translations != "all":
        # Duplicates too: the newest translation may be an old one that comes again.
        indices = np.flatnonzero(has_several)
        if config.several_translations == "newest":
            indices = indices[np.argsort(_joined(chunks, "dates", np.int64)[indices], kind="stable")][::-1]
        digests = _joined(chunks, "digests", np.uint64)[indices]
        is_other = np.zeros_like(is_kept)
        is_other[indices] = ~np.isin(digests, digests[first_occurrences(sources[indices])])
        drop(is_other, OTHER_TRANSLATION)
    return [_copies_by_weight(chunk) * is_kept[part] for chunk, part in parts], several_translations


@dataclass(frozen=True, slots=True)
class TrainingText:
    """The clean text of one direction: its chunks, the copies of each pair, by chunk, and the counts of its sources.

    `by_source` has the counts by the index of the source.
    """

    languages: LanguagePair
    chunks: Sequence[CleanChunk]
    copies: Sequence[NDArray[np.uint16]]
    by_source: Mapping[int, SourceCounts]

    @property
    def num_pairs(self) -> int:
        """The pairs to train on, each as often as it is taken."""
        return sum(int(of_chunk.sum()) for of_chunk in self.copies)

    @property
    def num_unique_pairs(self) -> int:
        """The pairs to train on, each once."""
        return sum(int(np.count_nonzero(of_chunk)) for of_chunk in self.copies)


def set_aside(corpus: Corpus, texts: Sequence[TrainingText]) -> list[HeldOut]:
    """The pairs of each direction that are set aside for each split of `corpus.set_aside`, in the order of the text.

    In `copies` they get 0. Training pairs that share a sentence with them get 0 too, and are counted as dropped, in
    every direction: a model that has seen a pair backwards knows it. So a direction takes pairs first whose sentences
    are set aside by one before. No pair of synthetic text is taken, so a direction beside others that has no other text
    has no split. The choice depends on the clean pairs and the seed alone. DataError if the splits would take more than
    half of the text of a direction.
    """
    if not corpus.set_aside:
        return []
    held_out: list[HeldOut] = []
    indices: list[set[PairIndex]] = []
    are_synthetic = [all(chunk.facts["is_synthetic"] for chunk in text.chunks) for text in texts]
    for direction, text in enumerate(texts):
        # If all text is synthetic, the sizes are refused.
        sizes = {} if are_synthetic[direction] and not all(are_synthetic) else _split_sizes(corpus, text)
        chosen = _choose(text, sizes, seed=corpus.split_seed, others=HeldOutIndex(held_out))
        indices.append({index for pairs in chosen.values() for index, _, _ in pairs})
        for split, candidates in chosen.items():
            pairs = [(src, tgt) for _, src, tgt in candidates]
            tags = [text.chunks[number].tags for (number, _), _, _ in candidates]
            held_out.append(HeldOut(split, direction, text.languages, pairs, tags))
            of_direction = f" of {text.languages}" if len(texts) > 1 else ""
            logger.info("set aside: %s clean pairs%s as %s text", f"{len(pairs):,}", of_direction, SPLIT_NAMES[split])
    index = HeldOutIndex(held_out)
    num_dropped = sum(_remove_from_training(own, index, text) for own, text in zip(indices, texts, strict=True))
    if num_dropped:
        logger.info("dropped: %s training pairs that share a sentence with them", f"{num_dropped:,}")
    return sorted(held_out, key=lambda text: corpus.splits.index(text.split))


def source_and_pair_digests(src: Sequence[str], tgt: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """64-bit digests of sources and of pairs, [n] each; the same in every process.

    Among 40 million pairs two different ones share a digest with a probability of about 1 in 20,000.
    """
    sources, pairs = [], []
    for source, target in zip(src, tgt, strict=True):
        digest = hashlib.blake2b(f"{source}\n".encode(), digest_size=8)
        sources.append(digest.digest())
        digest.update(target.encode())
        pairs.append(digest.digest())
    return np.frombuffer(b"".join(sources), dtype=np.uint64), np.frombuffer(b"".join(pairs), dtype=np.uint64)


def first_occurrences(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True for the first occurrence of each digest, [n]."""
    is_new = np.zeros(len(digests), dtype=bool)
    for indices in _parts(digests):
        _, first = np.unique(digests[indices], return_index=True)
        is_new[indices[first]] = True
    return is_new


def _have_several_translations(
    sources: NDArray[np.uint64], is_new: NDArray[np.bool_], *, among: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """True for each of some pairs, duplicates too, whose source several new pairs among them have, [n]."""
    has_several = np.zeros(len(sources), dtype=bool)
    for part in _parts(sources):
        indices = part[among[part]]
        _, inverse = np.unique(sources[indices], return_inverse=True)
        has_several[indices] = np.bincount(inverse[is_new[indices]], minlength=len(indices))[inverse] > 1
    return has_several


def _parts(digests: NDArray[np.uint64]) -> Iterator[NDArray[np.int64]]:
    """The indices of digests in 64 parts, by six of their bits; equal digests are in one part.

    More parts take more passes, fewer take more memory.
    """
    part_of_digest = digests.view(np.uint8)[::8] & 63
    return (np.flatnonzero(part_of_digest == part) for part in range(64))


def _describe_several_translations(
    chunks: Sequence[CleanChunk], sources: NDArray[np.uint64], is_repeated: NDArray[np.bool_]
) -> dict[str, Any]:
    """How many sources have several translations, how many these are together, and the first ones as examples."""
    indices = np.flatnonzero(is_repeated)
    digests, first = np.unique(sources[indices], return_index=True)
    starts = np.cumsum([0, *map(len, chunks)])
    texts = cache(lambda number: tuple(map(chunks[number].sentences, SIDES)))
    examples = []
    for place in np.sort(first)[:EXAMPLES_PER_REASON]:
        of_source = indices[sources[indices] == sources[indices[place]]][:EXAMPLES_PER_REASON]
        numbers = np.searchsorted(starts, of_source, side="right") - 1
        places = list(zip(numbers.tolist(), (of_source - starts[numbers]).tolist(), strict=True))
        translations = [
            {"where": chunks[number].where(index), "text": make_printable(texts(number)[1][index])}
            for number, index in places
        ]
        number, index = places[0]
        examples.append({"source": make_printable(texts(number)[0][index]), "translations": translations})
    return {"sources": len(digests), "pairs": len(indices), "examples": examples}


def _joined(chunks: Sequence[CleanChunk], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """An array of all chunks, end to end."""
    values, start = np.empty(sum(map(len, chunks)), dtype=dtype), 0
    for chunk in chunks:
        values[start : start + len(chunk)] = chunk.array(name)
        start += len(chunk)
    return values


def _copies_by_weight(chunk: CleanChunk) -> NDArray[np.uint16]:
    """The copies for a weight, [n]: its whole part, and one more with the probability of the rest."""
    whole, rest = divmod(chunk.facts["weight"], 1)
    copies = np.full(len(chunk), int(whole), dtype=np.uint16)
    if rest:
        copies += np.random.default_rng([_SEED, chunk.number]).random(len(chunk)) < rest
    return copies


def _split_sizes(corpus: Corpus, text: TrainingText) -> dict[Split, int]:
    """The number of pairs to set aside for each split; DataError if they are more than half of the text."""
    clean_pairs = sum(
        int(np.count_nonzero(of_chunk))
        for chunk, of_chunk in zip(text.chunks, text.copies, strict=True)
        if not chunk.facts["is_synthetic"]
    )
    sizes = {split: corpus.size_of(split, clean_pairs=clean_pairs) for split in corpus.set_aside}
    if sum(sizes.values()) > _LARGEST_SHARE * clean_pairs:
        asked = " and ".join(f"{split}_size {size:,}" for split, size in sizes.items())
        dropped, fix = most_dropped(text.by_source.values(), corpus.cleaning)
        true_ones = ", without synthetic ones" if any(chunk.facts["is_synthetic"] for chunk in text.chunks) else ""
        of_direction = f" of {text.languages}" if len(corpus.directions.pairs) > 1 else ""
        raise DataError(
            f"{asked} {'are together' if len(sizes) > 1 else 'is'} more than half of the {clean_pairs:,} clean "
            f"training pairs{of_direction}{true_ones}{dropped}",
            where="train",
            hint=fix if fix and clean_pairs < 2 * len(sizes) else _smaller_sizes(sizes, available=clean_pairs),
        )
    return sizes


def _smaller_sizes(sizes: Mapping[Split, int], *, available: int) -> str:
    """The fix that sets a tenth of the available pairs aside for each split, if there are enough, or other text."""
    flags = " ".join(f"--{split}-size {min(size, max(1, available // 10))}" for split, size in sizes.items())
    own_text = f"text in files of its own: {' '.join(f'--{split} FILE' for split in sizes)}"
    return f"{flags}, or {own_text}" if available >= 2 * len(sizes) else own_text


def _choose(
    text: TrainingText, sizes: Mapping[Split, int], *, seed: int, others: HeldOutIndex
) -> dict[Split, list[_Candidate]]:
    """The pairs of each split: the first pairs by a hash of seed and text, none of which shares a side with another.

    Pairs that share a sentence with the text in `others` come first, in the split that has the sentence. DataError if
    there are too few pairs.
    """
    wanted = sum(sizes.values())
    num_ranked = 2 * (wanted + len(others))
    while True:
        ranked = _rank_by_hash(text, num_ranked, seed=seed, others=others)
        candidates = _drop_shared_sides(_read_candidates(text.chunks, ranked))
        if len(candidates) >= wanted or len(ranked) < num_ranked:
            break
        num_ranked *= 4
    if len(candidates) < wanted:
        raise DataError(
            f"{wanted:,} training pairs are to be set aside, and only {len(candidates):,} have no sentence in common",
            where="train",
            hint=_smaller_sizes(sizes, available=len(candidates)),
        )
    chosen: dict[Split, list[_Candidate]] = {}
    splits_of = {index: others.splits_with(src, tgt, text.languages) for index, src, tgt in candidates}
    for split, size in sizes.items():
        # Those of this split first, then those of none.
        by_split = sorted(candidates, key=lambda pair: (bool(splits_of[pair[0]] - {split}), not splits_of[pair[0]]))
        chosen[split] = sorted(by_split[:size])
        taken = {index for index, _, _ in chosen[split]}
        candidates = [pair for pair in candidates if pair[0] not in taken]
    return chosen


def _rank_by_hash(text: TrainingText, size: int, *, seed: int, others: HeldOutIndex) -> list[PairIndex]:
    """The first `size` pairs that are trained on and not in held-out text, in the order of a hash of seed and text.

    Pairs that share a sentence with the text in `others` come before all others.
    """
    hashes, indices = np.empty(0, dtype=np.uint64), np.empty((0, 2), dtype=np.int64)
    for number, (chunk, of_chunk) in enumerate(zip(text.chunks, text.copies, strict=True)):
        if chunk.facts["is_synthetic"]:
            continue
        in_chunk = np.flatnonzero((of_chunk > 0) & (chunk.array("matches") == NOWHERE))
        of_pairs = _hash_with_seed(chunk.array("digests")[in_chunk], seed=seed)
        if others:
            matches, _ = others.find(*_sides(chunk), text.languages)
            of_pairs = of_pairs >> np.uint64(1) | (matches[in_chunk] == NOWHERE).astype(np.uint64) << np.uint64(63)
        hashes = np.concatenate([hashes, of_pairs])
        indices = np.concatenate([indices, np.stack([np.full_like(in_chunk, number), in_chunk], axis=1)])
        first = np.lexsort((indices[:, 1], indices[:, 0], hashes))[:size]
        hashes, indices = hashes[first], indices[first]
    return [(int(number), int(in_chunk)) for number, in_chunk in indices]


def _hash_with_seed(digests: NDArray[np.uint64], *, seed: int) -> NDArray[np.uint64]:
    """A hash of each digest and the seed, [n]: the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        mixed = digests + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result


def _read_candidates(chunks: Sequence[CleanChunk], ranked: Sequence[PairIndex]) -> Iterator[_Candidate]:
    """The pairs with these indices, in their order."""
    candidates: dict[PairIndex, _Candidate] = {}
    for number, indices in groupby(sorted(ranked), key=itemgetter(0)):
        src, tgt = map(chunks[number].sentences, SIDES)
        candidates |= {index: (index, src[index[1]], tgt[index[1]]) for index in indices}
    return (candidates[index] for index in ranked)


def _drop_shared_sides(candidates: Iterator[_Candidate]) -> list[_Candidate]:
    """The candidates whose source and target no earlier candidate has."""
    sources, targets, kept = set[str](), set[str](), []
    for index, src, tgt in candidates:
        if src not in sources and tgt not in targets:
            kept.append((index, src, tgt))
            sources.add(src)
            targets.add(tgt)
    return kept


def _remove_from_training(indices: set[PairIndex], held_out: HeldOutIndex, text: TrainingText) -> int:
    """Take the chosen pairs out of the training text, and drop pairs that share a side with them.

    Returns the number of dropped pairs.
    """
    num_dropped = 0
    chosen: dict[int, list[int]] = {}
    for number, index in indices:
        chosen.setdefault(number, []).append(index)
    for number, (chunk, of_chunk) in enumerate(zip(text.chunks, text.copies, strict=True)):
        matches, _ = held_out.find(*_sides(chunk), text.languages)
        counts = text.by_source[chunk.facts["source"]].counts
        of_chunk[chosen.get(number, [])] = 0
        counts.read -= len(chosen.get(number, []))
        shared = np.flatnonzero((matches > NOWHERE) & (of_chunk > 0))
        of_chunk[shared] = 0
        count_as_dropped(shared, HELD_OUT, chunk, counts)
        num_dropped += len(shared)
    return num_dropped


def _sides(chunk: CleanChunk) -> tuple[list[str], list[str]]:
    src, tgt = map(chunk.sentences, SIDES)
    return src, tgt
