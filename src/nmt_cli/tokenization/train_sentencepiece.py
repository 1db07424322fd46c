"""Training of SentencePiece models that lose nothing: no normalisation, bytes for what the vocabulary lacks."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from nmt_cli.errors import DataError
from nmt_cli.files import write_file
from nmt_cli.tokenization.sentencepiece_model import without_input_format
from nmt_cli.tokenization.tokenizer import BOS, EOS, MIN_VOCAB_SIZE, PAD, UNK, TokenizerKind

MAX_LINE_BYTES = 1 << 16
# SentencePiece's trainer keeps this character for itself and skips every line that holds it.
_RESERVED = "\u2585".encode()
# SentencePiece writes this number into the model, and unigram's rounding depends on it. It is the same everywhere.
_TRAINING_THREADS = 16
_SPECIAL_AND_BYTE_PIECES = 4 + 256
_BYTES_PER_PIECE = 60  # docs/design/data.md has the evidence


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """The number of lines that the training of a tokenizer skipped as unusable, and of its pieces."""

    num_skipped: int
    vocab_size: int


class VocabularyTooLargeError(DataError):
    """A text that yields no vocabulary of the size asked for, but one of `largest` pieces."""

    def __init__(self, vocab_size: int, *, largest: int) -> None:
        message = f"a vocabulary of {vocab_size:,} pieces is more than this text yields: at most {largest:,}"
        hint = "give more training text"
        if largest >= MIN_VOCAB_SIZE:
            hint = f"--set tokenizer.vocab_size=null takes a size that suits so little text; or {hint}"
        super().__init__(message, where="tokenizer.vocab_size", hint=hint)
        self.largest = largest


def suitable_size(lines: Iterable[bytes], *, num_symbols: int, most: int) -> int:
    """The number of pieces that a text has often enough to be learned: about one per ten words, and all characters.

    It is `most` at most, and no more lines are read than decide it.
    """
    num_bytes, characters = 0, set[str]()
    for line in filter(_is_usable, lines):
        num_bytes += len(line)
        characters.update(line.decode())
        if num_bytes >= most * _BYTES_PER_PIECE:
            return most
    in_hundreds = num_bytes // _BYTES_PER_PIECE // 100 * 100
    least = _SPECIAL_AND_BYTE_PIECES + num_symbols + len(characters) + 1
    return min(most, max(MIN_VOCAB_SIZE, least, in_hundreds))


def train_tokenizer(
    lines: Iterable[bytes],
    *,
    vocab_size: int,
    kind: TokenizerKind,
    character_coverage: float,
    symbols: Sequence[str],
    user_symbols: Sequence[str],
    output: Path,
) -> TokenizerReport:
    """Train a model on lines in UTF-8, and write it to `output`.

    `symbols` become control pieces, which no text has: text that looks like them is cut into pieces as any other.
    `user_symbols` are pieces of their own wherever text has them. Both count in `vocab_size`.

    The same lines and settings give the same bytes. BPE looks at words alone, so the trainer gets each word once with
    its count, which takes a fraction of the memory of the lines.

    Raises DataError if `vocab_size` is more than the text yields, or too small for its characters; the message names
    the bound.
    """
    num_skipped = 0

    def usable_lines() -> Iterator[bytes]:
        nonlocal num_skipped
        for line in lines:
            if _is_usable(line):
                yield line
            else:
                num_skipped += 1

    usable = usable_lines()
    errors: list[Exception | KeyboardInterrupt] = []
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_noting_errors(_counted_words(usable) if kind == "bpe" else usable, errors),
            input_format="tsv" if kind == "bpe" else "",
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            max_sentence_length=MAX_LINE_BYTES,
            shuffle_input_sentence=False,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            control_symbols=list(symbols),
            user_defined_symbols=list(user_symbols),
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        if errors:
            raise errors[0] from None
        raise _vocabulary_error(str(error), vocab_size) from error
    write_file(output, without_input_format(model.getvalue()), error=DataError)
    return TokenizerReport(num_skipped, vocab_size)


def _is_usable(line: bytes) -> bool:
    """False for a line that SentencePiece skips."""
    return bool(line) and _RESERVED not in line and len(line) <= MAX_LINE_BYTES


def _counted_words(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Each word of the lines with its count, as SentencePiece's TSV; a word with a tab is left out."""
    counts: Counter[bytes] = Counter()
    for line in lines:
        counts.update(line.split(b" "))
    while counts:
        word, count = counts.popitem()
        if word and b"\t" not in word:
            yield b"%b\t%d" % (word, count)


def _noting_errors(lines: Iterable[bytes], errors: list[Exception | KeyboardInterrupt]) -> Iterator[bytes]:
    """The lines. SentencePiece hides an exception of its iterator, Ctrl-C included, so `errors` gets it too."""
    try:
        yield from lines
    except (Exception, KeyboardInterrupt) as error:
        errors.append(error)
        raise


def _vocabulary_error(reason: str, vocab_size: int) -> DataError:
    where = "tokenizer.vocab_size"
    if too_large := re.search(r"set it to a value <= (\d+)", reason):
        return VocabularyTooLargeError(vocab_size, largest=int(too_large[1]))
    if too_small := re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason):
        smallest = int(too_small[1])
        return DataError(
            f"a vocabulary of {vocab_size:,} pieces is too small: the text's characters, the 256 bytes and "
            f"the special pieces alone are {smallest:,}",
            where=where,
            hint=f"--set tokenizer.vocab_size={(smallest // 100 + 2) * 100}, or lower tokenizer.character_coverage",
        )
    return DataError(
        f"SentencePiece cannot train on this text: {reason}",
        where=where,
        hint="check that the training text is what it should be, or try another tokenizer.vocab_size",
    )
