"""The second and third stage of a preparation: tokenizers from the clean text, and token files with them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from shutil import copyfile
from typing import Any

from nmt_cli.dataset.store import SIDES, TokenWriter, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.preparing.corpora import Corpus, TokenizerConfig
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.text import CleanText
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.training import TokenizerReport, train_tokenizer

logger = logging.getLogger(__name__)

_REPORT = "report.json"
_COUNTS = "counts.json"
_BATCH_LINES = 10_000


def write_tokenizers(corpus: Corpus, text: CleanText, directory: Path, *, progress: Progress) -> None:
    """Train `source.spm` and `target.spm` on the clean training text; they are equal where the vocabulary is shared."""
    num_pairs = text.num_pairs()["train"]
    src, tgt = (text.lines("train", side, language="") for side in SIDES)
    outputs = [directory / f"{side}.spm" for side in SIDES]
    if corpus.tokenizer.shared:
        progress("tokenizer", 0, 1)
        report = _train(chain(src, tgt), num_lines=2 * num_pairs, config=corpus.tokenizer, output=outputs[0])
        copyfile(*outputs)
        reports = [report, report]
    else:
        reports = []
        for number, (lines, output) in enumerate(zip((src, tgt), outputs, strict=True)):
            progress("tokenizer", number, 2)
            reports.append(_train(lines, num_lines=num_pairs, config=corpus.tokenizer, output=output))
    counts = {side: asdict(report) for side, report in zip(SIDES, reports, strict=True)}
    (directory / _REPORT).write_text(json.dumps(counts), encoding="utf-8")
    kind = "shared" if corpus.tokenizer.shared else "separate"
    logger.info("tokenizer: %s %s pieces", f"{corpus.tokenizer.vocab_size:,}", kind)


def tokenizer_counts(directory: Path) -> dict[str, Any]:
    """What the tokenizers in a directory were trained on, by side."""
    return _read(directory / _REPORT)


def write_tokens(
    corpus: Corpus, text: CleanText, tokenizers: Path, directory: Path, *, num_threads: int, progress: Progress
) -> None:
    """Write the token files of every split, and how many tokens they have.

    Raises DataError where a side of the clean text has another number of lines than cleaning counted.
    """
    loaded = {side: Tokenizer.load(tokenizers / f"{side}.spm", num_threads=num_threads) for side in SIDES}
    dtype = token_dtype(max(tokenizer.vocab_size for tokenizer in loaded.values()))
    languages = {"source": corpus.languages.source, "target": corpus.languages.target}
    num_pairs = text.num_pairs()
    counts: dict[str, dict[str, int]] = {}
    for split in corpus.splits:
        counts[split] = {"pairs": num_pairs[split]}
        for side in SIDES:
            with TokenWriter(directory, split=split, side=side, dtype=dtype) as writer:
                for batch in _batches(text.lines(split, side, language=languages[side])):
                    writer.append(loaded[side].encode(batch))
                    if split == "train":
                        progress(f"encoding {side}", writer.sentences, num_pairs[split])
            if writer.sentences != num_pairs[split]:
                raise _misaligned(text, split, side, found=writer.sentences, expected=num_pairs[split])
            counts[split][f"{side}_tokens"] = writer.tokens
    (directory / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")
    train = counts["train"]
    logger.info("encoded: %s source and %s target tokens", *(f"{train[f'{side}_tokens']:,}" for side in SIDES))


def token_counts(directory: Path) -> dict[str, Any]:
    """Pairs and tokens of each split whose token files are in a directory."""
    return _read(directory / _COUNTS)


def _train(lines: Iterable[str], *, num_lines: int, config: TokenizerConfig, output: Path) -> TokenizerReport:
    return train_tokenizer(
        lines,
        num_lines=num_lines,
        vocab_size=config.vocab_size,
        kind=config.kind,
        character_coverage=config.character_coverage,
        seed=config.seed,
        sample_lines=config.sample_lines,
        output=output,
    )


def _misaligned(text: CleanText, split: str, side: str, *, found: int, expected: int) -> DataError:
    folder = text.directory.parent
    return DataError(
        f"the clean {split} text has {found:,} lines on the {side} side, and should have {expected:,}",
        where=str(text.directory),
        hint=f"it was changed after it was written: rm -r {quote(str(folder))}, then run nmt prepare again",
    )


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(lines, _BATCH_LINES)):
        yield batch


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
