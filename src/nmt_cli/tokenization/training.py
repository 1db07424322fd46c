"""Training of SentencePiece models that lose nothing: no normalisation, bytes for what the vocabulary lacks."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece

from nmt_cli.errors import DataError
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK

TokenizerKind = Literal["bpe", "unigram"]

MAX_LINE_BYTES = 1 << 16
# SentencePiece's trainer keeps this character for itself and skips every line that holds it.
_RESERVED = "\u2585"
# Part of the model's bytes, and unigram's sums depend on it: the same on every machine.
_TRAINING_THREADS = 16


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """What a tokenizer was trained on: of `lines`, `sampled` were drawn, and `skipped` of those were unusable."""

    lines: int
    sampled: int
    skipped: int


def train_tokenizer(
    lines: Iterable[str],
    *,
    num_lines: int,
    vocab_size: int,
    kind: TokenizerKind,
    character_coverage: float,
    seed: int,
    sample_lines: int,
    output: Path,
) -> TokenizerReport:
    """Train a model on at most `sample_lines` of the `num_lines` lines, drawn by `seed`, and write it to `output`.

    The same lines and settings give the same bytes. Raises DataError where `vocab_size` is more than the text yields,
    or too small for its characters; the message names the bound.
    """
    sample = _Sample(lines, num_lines=num_lines, size=sample_lines, seed=seed)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            max_sentence_length=MAX_LINE_BYTES,
            shuffle_input_sentence=False,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as problem:
        raise _vocabulary_error(str(problem), vocab_size) from problem
    output.write_bytes(model.getvalue())
    return TokenizerReport(lines=num_lines, sampled=sample.sampled, skipped=sample.skipped)


class _Sample:
    """A seeded sample of lines in their order, without those that SentencePiece would skip, which are counted."""

    def __init__(self, lines: Iterable[str], *, num_lines: int, size: int, seed: int) -> None:
        self._lines = lines
        self._chosen = np.ones(num_lines, dtype=bool)
        if size < num_lines:
            self._chosen[:] = False
            self._chosen[np.random.default_rng(seed).choice(num_lines, size=size, replace=False)] = True
        self.sampled = 0
        self.skipped = 0

    def __iter__(self) -> Iterator[str]:
        for line, is_chosen in zip(self._lines, self._chosen, strict=True):
            if not is_chosen:
                continue
            self.sampled += 1
            if not line or _RESERVED in line or len(line.encode()) > MAX_LINE_BYTES:
                self.skipped += 1
            else:
                yield line


def _vocabulary_error(problem: str, vocab_size: int) -> DataError:
    where = "tokenizer.vocab_size"
    if found := re.search(r"set it to a value <= (\d+)", problem):
        largest = int(found[1])
        return DataError(
            f"a vocabulary of {vocab_size:,} pieces is more than this text yields: at most {largest:,}",
            where=where,
            hint=f"set tokenizer.vocab_size to {largest} or less, or give more training text",
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", problem):
        smallest = int(found[1])
        return DataError(
            f"a vocabulary of {vocab_size:,} pieces is too small: the text's characters, the 256 bytes and "
            f"the 4 special pieces alone are {smallest:,}",
            where=where,
            hint=f"set tokenizer.vocab_size to more than {smallest}, or lower tokenizer.character_coverage",
        )
    return DataError(
        f"SentencePiece cannot train on this text: {problem}",
        where=where,
        hint="check that the training text is what it should be, or try another tokenizer.vocab_size",
    )
