"""The second stage of a preparation: tokenizers, trained on a sample of the clean text, or taken from a model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.console import Progress
from nmt_cli.dataset.store import SIDES
from nmt_cli.errors import DataError
from nmt_cli.files import write_file
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.corpus import Corpus, LocatedCorpus, TokenizerConfig
from nmt_cli.processes import worker_pool
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.training import TokenizerReport, VocabularyTooLargeError, train_tokenizer

logger = logging.getLogger(__name__)

_REPORT = "report.json"


def write_tokenizers(corpus: Corpus, text: CleanText, directory: Path, *, num_workers: int, progress: Progress) -> None:
    """Train `source.spm` and `target.spm` on the clean training text; they are equal if the vocabulary is shared."""
    is_shared = corpus.tokenizer.shared
    tasks: list[tuple[str, ...]] = [SIDES] if is_shared else [(side,) for side in SIDES]
    num_lines = text.counts()["pairs"]["train"] * len(tasks[0])
    num_sampled = min(num_lines, corpus.tokenizer.sample_lines)
    logger.info("tokenizer: training on %s of %s lines", f"{num_sampled:,}", f"{num_lines:,}")
    progress("tokenizer", 0, None)
    # A worker process, because SentencePiece ignores Ctrl-C and frees its memory only at the end of the process.
    with worker_pool([TokenizerJob(text, corpus.tokenizer, directory)] * num_workers) as run:
        trained = list(run(tasks))
    reports = [{"lines": num_lines, "sampled": one.given, "skipped": one.skipped} for one in trained]
    if is_shared:
        write_file(directory / "target.spm", (directory / "source.spm").read_bytes(), error=DataError)
        reports *= 2
    _write_report(directory, reports)
    kind = "shared" if is_shared else "separate"
    sizes = [one.vocab_size for one in trained]
    logger.info("tokenizer: %s %s pieces", " and ".join(f"{size:,}" for size in dict.fromkeys(sizes)), kind)
    if min(sizes) < corpus.tokenizer.vocab_size:
        told = "the text is too small for %s, the default; --set tokenizer.vocab_size=N takes another number"
        logger.info(f"tokenizer: {told}", f"{corpus.tokenizer.vocab_size:,}")


def find_given_tokenizers(located: LocatedCorpus) -> list[Path] | None:
    """`source.spm` and `target.spm` of the folder that the corpus takes its vocabulary from, or None if one is trained.

    DataError if there is no such folder, or if it has no vocabulary.
    """
    given = located.corpus.tokenizer.taken_from
    if given is None:
        return None
    path = Path(given).expanduser()
    directory = next((one for one in (located.folder / path, path) if one.is_dir()), path)
    found = [directory / f"{side}.spm" for side in SIDES]
    for file in found:
        if not file.is_file():
            raise DataError(
                f"there is no {file.name} in {directory}, from which the vocabulary is to be taken",
                where="tokenizer.taken_from",
                hint="name a model directory, a run or prepared data: --set tokenizer.taken_from=runs/NAME/averaged",
            )
        Tokenizer.load(file)
    return found


def copy_vocabulary(given: Sequence[Path], directory: Path) -> None:
    """Copy the vocabulary of a model into a directory, with a report that nothing was trained."""
    for file in given:
        write_file(directory / file.name, file.read_bytes(), error=DataError)
    _write_report(directory, [{"lines": 0, "sampled": 0, "skipped": 0}] * 2)
    logger.info("tokenizer: taken from %s", given[0].parent)


def tokenizer_counts(directory: Path) -> dict[str, Any]:
    """For each side, the number of `lines` to train on, and how many were `sampled` and `skipped`."""
    counts: dict[str, Any] = json.loads((directory / _REPORT).read_text(encoding="utf-8"))
    return counts


def sample(text: CleanText, sides: Sequence[str], *, size: int, seed: int) -> Iterator[bytes]:
    """At most `size` lines of the clean training text of these sides, in order, drawn with `seed`.

    A pair with several copies can be drawn once per copy.
    """
    shards = text.shards()
    copies = [text.copies(shard.number) for shard in shards]
    parts = [(side, *one) for side in sides for one in zip(shards, copies, strict=True)]
    totals = [int(copies_in_shard.sum()) for _, _, copies_in_shard in parts]
    sizes = totals
    if size < sum(totals):
        draw = np.random.default_rng(seed)
        sizes = draw.multivariate_hypergeometric(totals, size, method="marginals").tolist()
    for place, ((side, shard, copies_in_shard), total, num_drawn) in enumerate(zip(parts, totals, sizes, strict=True)):
        if num_drawn == 0:
            continue
        chosen = np.repeat(np.arange(len(shard)), copies_in_shard)
        if num_drawn < total:
            chosen = np.sort(np.random.default_rng([seed, place]).choice(chosen, size=num_drawn, replace=False))
        lines = shard.text(side).split(b"\n")
        yield from map(lines.__getitem__, chosen.tolist())


@dataclass(frozen=True, slots=True)
class TokenizerJob:
    """Trains the tokenizer of one side or of both, and writes it to `SIDE.spm` of the first side.

    If the text is too small for the default size, it gets a vocabulary that suits it. A size that the user gave stays.
    """

    text: CleanText
    config: TokenizerConfig
    directory: Path

    def start(self) -> Callable[[Sequence[str]], TokenizerReport]:
        """The function for one tokenizer."""
        return self._train

    def _train(self, sides: Sequence[str]) -> TokenizerReport:
        try:
            return self._train_with(self.config.vocab_size, sides)
        except VocabularyTooLargeError as problem:
            if "vocab_size" in self.config.model_fields_set or problem.suited is None:
                raise
            return self._train_with(problem.suited, sides)

    def _train_with(self, vocab_size: int, sides: Sequence[str]) -> TokenizerReport:
        return train_tokenizer(
            sample(self.text, sides, size=self.config.sample_lines, seed=self.config.seed),
            vocab_size=vocab_size,
            kind=self.config.kind,
            character_coverage=self.config.character_coverage,
            output=self.directory / f"{sides[0]}.spm",
        )


def _write_report(directory: Path, reports: Sequence[dict[str, int]]) -> None:
    write_file(directory / _REPORT, json.dumps(dict(zip(SIDES, reports, strict=True))), error=DataError)
