"""Small corpora for the tests of preparation, made of invented words."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import get_args

from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.corpus import LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files, load_corpus
from nmt_cli.preparing.pipeline import Plan, PreparationResult, prepare
from nmt_cli.preparing.sources.base import LocalSource, Split
from nmt_cli.tokenization.tokenizer import Tokenizer

Pairs = Sequence[tuple[str, str]]


def invented_pairs(number: int, *, seed: int) -> list[tuple[str, str]]:
    """Distinct pairs of 3 to 12 invented words, alike in length."""
    random = Random(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < number:
        length = random.randint(3, 12)
        src, tgt = (
            " ".join("".join(random.choices(syllables, k=random.randint(1, 3))) for _ in range(length))
            for _ in range(2)
        )
        pairs[f"{src.capitalize()}.", f"{tgt.capitalize()}!"] = None
    return list(pairs)


def write_prefix(prefix: Path, pairs: Pairs, *, languages: tuple[str, str] = ("en", "de")) -> str:
    """Write PREFIX.en and PREFIX.de, and return the prefix."""
    for side, language in enumerate(languages):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        prefix.with_name(f"{prefix.name}.{language}").write_bytes(text.encode())
    return str(prefix)


def small_corpus(folder: Path, *overrides: str, pairs: int = 600) -> LocatedCorpus:
    """A corpus of invented pairs in `folder`."""
    made = invented_pairs(pairs + 40, seed=7)
    return corpus_of_pairs(folder, *overrides, train=made[40:], valid=made[:20], test=made[20:40])


def corpus_of_pairs(folder: Path, *overrides: str, **splits: Pairs) -> LocatedCorpus:
    """A corpus in `folder` that has these pairs for each split, and a vocabulary of 400."""
    files = {split: [write_prefix(folder / split, splits[split])] for split in get_args(Split) if split in splits}
    return corpus_from_files(files, languages="en-de", name="small", overrides=["tokenizer.vocab_size=400", *overrides])


def corpus_of(folder: Path, train: str, *overrides: str, valid: str = "{kind: text, prefix: valid}") -> LocatedCorpus:
    """A corpus file in `folder` with these sources of training and validation text, in YAML; a vocabulary of 400."""
    (folder / "c.yaml").write_text(
        f"languages: {{source: en, target: de}}\ntokenizer: {{vocab_size: 400}}\ntrain: [{train}]\nvalid: [{valid}]\n"
    )
    return load_corpus(str(folder / "c.yaml"), overrides=overrides)


def run(located: LocatedCorpus, output: Path, *, overwrite: bool = False, num_workers: int = 1) -> PreparationResult:
    """Prepare a corpus, silently."""
    return prepare(Plan(located), output=output, overwrite=overwrite, num_workers=num_workers, progress=silent)


def training_pairs(prepared: PreparationResult) -> list[tuple[str, str]]:
    """The training pairs, decoded from their ids."""
    from tests.dataset.synthetic import sentences  # takes long, as pytest does: see refusal

    data = open_prepared(prepared.directory)
    train = data.split("train")
    sides = (data.source_tokenizer_file, train.src), (data.target_tokenizer_file, train.tgt)
    src, tgt = (Tokenizer.load(file).decode(sentences(rows)) for file, rows in sides)
    return list(zip(src, tgt, strict=True))


def silent(stage: str, done: int, total: int | None) -> None:
    """A progress that shows nothing."""


def read_chunks(sources: Sequence[LocalSource]) -> Iterator[Chunk]:
    """The pairs of sources, one after another, as text."""
    for source in sources:
        yield from source.read()


def contents(directory: Path) -> dict[str, bytes]:
    """The files of a directory with their bytes."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@contextmanager
def memory_below(megabytes: int) -> Iterator[None]:
    """Allocations fail if the process takes this much more memory than before.

    What is resident tells nothing: the system may page out and in at any time.
    """
    mapped = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])  # in kB
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * mapped + 1_000_000 * megabytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def refusal(call: Callable[[], object]) -> DataError:
    """The DataError that a call ends in."""
    import pytest  # a third of a second, in each process of the tests that imports this file

    with pytest.raises(DataError) as caught:
        call()
    assert caught.value.exit_code == 4
    return caught.value
