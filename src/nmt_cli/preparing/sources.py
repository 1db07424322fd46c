"""The pairs of a split: from its sources one after another, or from the corpus's generator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from nmt_cli.preparing.corpora import DemoGenerator, LocatedCorpus, Split
from nmt_cli.preparing.readers import CHUNK_PAIRS, Chunk, read_pairs

if TYPE_CHECKING:
    from nmt_cli.preparing.demo.sampling import DemoCorpus


def read_split(located: LocatedCorpus, split: Split) -> Iterator[Chunk]:
    """All pairs of a split as they are, in chunks; DataError where a source cannot be used."""
    corpus = located.corpus
    if corpus.generator is not None:
        yield from _generated(corpus.generator, split)
    for source in corpus.sources(split):
        yield from read_pairs(source, languages=corpus.languages, folder=located.folder)


def _generated(generator: DemoGenerator, split: Split) -> Iterator[Chunk]:
    demo = _demo(generator)
    pairs = {"train": demo.train, "valid": demo.valid, "test": demo.test}[split]
    for start in range(0, len(pairs), CHUNK_PAIRS):
        chunk = pairs[start : start + CHUNK_PAIRS]
        yield Chunk([src for src, _ in chunk], [tgt for _, tgt in chunk], start + 1, f"demo {split}")


@lru_cache(maxsize=1)
def _demo(generator: DemoGenerator) -> DemoCorpus:
    from nmt_cli.preparing.demo.sampling import generate

    return generate(
        seed=generator.seed,
        num_train=generator.train_pairs,
        num_valid=generator.valid_pairs,
        num_test=generator.test_pairs,
    )
