"""Write the files of the corpus `demo`: python -m tools.demo_corpus.generate recipes/corpora/demo."""

import sys
from collections.abc import Sequence
from pathlib import Path

import zstandard

from tools.demo_corpus.sampling import generate

SEED = 1
PAIRS = {"train": 20_000, "valid": 500, "test": 1_000}


def demo_files() -> dict[str, bytes]:
    """The uncompressed files by name: a pair per line, English and German with a tabulator between them."""
    corpus = generate(seed=SEED, num_train=PAIRS["train"], num_valid=PAIRS["valid"], num_test=PAIRS["test"])
    splits: dict[str, Sequence[tuple[str, str]]] = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    return {f"{split}.tsv": "".join(f"{en}\t{de}\n" for en, de in pairs).encode() for split, pairs in splits.items()}


if __name__ == "__main__":
    for name, content in demo_files().items():
        Path(sys.argv[1], f"{name}.zst").write_bytes(zstandard.ZstdCompressor(level=19).compress(content))
