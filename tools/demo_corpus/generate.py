"""Write the files of the corpus `demo`: python -m tools.demo_corpus.generate recipes/corpora/demo.

With --alignments, only the word alignments of its pairs are written, in Pharaoh's format: train.align and so on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import zstandard

from tools.demo_corpus.sampling import DemoCorpus, generate

SEED = 1
PAIRS = {"train": 20_000, "valid": 500, "test": 1_000}


def demo_corpus() -> DemoCorpus:
    """The corpus, which the grammar makes anew in ten seconds."""
    return generate(seed=SEED, num_train=PAIRS["train"], num_valid=PAIRS["valid"], num_test=PAIRS["test"])


def demo_files(corpus: DemoCorpus) -> dict[str, bytes]:
    """The uncompressed files by name: a pair per line, English and German with a tabulator between them."""
    splits = _splits(corpus)
    return {f"{split}.tsv": "".join(f"{en}\t{de}\n" for en, de in pairs).encode() for split, pairs in splits.items()}


def demo_alignments(corpus: DemoCorpus) -> dict[str, bytes]:
    """The word alignments by name of file: a line per pair, such as 0-0 1-2."""
    return {
        f"{split}.align": "".join(f"{corpus.alignments[pair]}\n" for pair in pairs).encode()
        for split, pairs in _splits(corpus).items()
    }


def _splits(corpus: DemoCorpus) -> dict[str, Sequence[tuple[str, str]]]:
    return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--alignments", action="store_true", help="write the word alignments instead of the text")
    arguments = parser.parse_args()
    if arguments.alignments:
        for name, content in demo_alignments(demo_corpus()).items():
            (arguments.folder / name).write_bytes(content)
    else:
        for name, content in demo_files(demo_corpus()).items():
            (arguments.folder / f"{name}.zst").write_bytes(zstandard.ZstdCompressor(level=19).compress(content))
