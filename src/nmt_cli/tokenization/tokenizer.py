"""Text to the ids of a SentencePiece model and back without loss, fast for large texts."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, count, islice
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.tokenization.pieces import SPACE_MARK, byte_pieces

TokenizerKind = Literal["bpe", "unigram"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MIN_VOCAB_SIZE = 300  # the four special pieces, the 256 bytes, and some characters

_MAX_CACHED_WORDS = 150_000
_LINE_END = b"\n"
_SPACES = re.compile(r" {2,}")
_PRIVATE_USE = range(0x100000, 0x10FFFE)  # characters to which Unicode gives no meaning
# Tabs and other control characters that are white space: cleaned training text has none.
_CONTROL_SPACES = dict.fromkeys((*range(9, 14), *range(28, 32), 133), " ")
_OTHER_SPACES = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u2800\u3000"
# Soft hyphens, joiners, marks of direction, byte-order marks, fillers, variation selectors and tags have no width.
_NO_WIDTH = (
    "\xad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef"
)
INVISIBLE = rf"\s{_OTHER_SPACES}{_NO_WIDTH}"
"""White space, control characters and characters without width, as a pattern to be put between brackets."""
_VISIBLE = re.compile(f"[^{INVISIBLE}]")


def normalize_spaces(text: str) -> str:
    """The text without white space at its ends and with single spaces."""
    text = text.strip()
    return _SPACES.sub(" ", text) if "  " in text else text


def plain_spaces(line: str) -> str:
    """The line with white space as in cleaned text: none at its ends, single spaces, and no tabs."""
    return normalize_spaces(line if line.isprintable() else line.translate(_CONTROL_SPACES))


def is_blank(text: str) -> bool:
    """Whether a text has nothing but white space, control characters and characters without width."""
    return _VISIBLE.search(text) is None


class Tokenizer:
    """Raw text to piece ids and back; immutable, and identified by the bytes of its model.

    Any text without control characters survives `encode` and `decode` if the model has byte pieces.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._mark_ids = self._byte_ids(SPACE_MARK)
        # In these ids SentencePiece spells a character that is in no piece.
        self._spelling_ids = {UNK, *(int(self._processor.piece_to_id(f"<0x{byte:02X}>")) for byte in range(256))}

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer of a `.spm` file. DataError if it is not one."""
        hint = "restore the file, or run nmt prepare again"
        try:
            tokenizer = cls(path.read_bytes())
            tokenizer.pieces([PAD])  # decodes all pieces
            return tokenizer
        except FileNotFoundError:
            raise DataError(f"{path.name} is missing", where=str(path), hint=hint) from None
        except (RuntimeError, UnicodeDecodeError):
            raise DataError(f"{path.name} is not a SentencePiece model", where=str(path), hint=hint) from None

    @property
    def vocab_size(self) -> int:
        """The number of pieces, with the four special pieces and the 256 bytes."""
        return int(self._processor.get_piece_size())

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model's bytes, in hexadecimal."""
        return hashlib.sha256(self._model).hexdigest()

    @property
    def byte_ids(self) -> list[int]:
        """The ids of the byte pieces, in which characters outside the vocabulary are spelt; none in some models."""
        return [piece_id for piece_id in range(self.vocab_size) if self._processor.is_byte(piece_id)]

    def as_in_training(self, line: str) -> str:
        """The line as `nmt prepare` encodes a source: with single spaces, without odd characters that are in no piece.

        White space of any kind becomes a space, what has no width goes, and decomposed letters are composed. A
        character that is in a piece stays. A line without a visible character is empty.
        """
        if not (line.isascii() and line.isprintable()):
            line = "" if is_blank(line) else self.with_known_characters(line)
        return normalize_spaces(line)

    def with_known_characters(self, text: str) -> str:
        """The text with spaces, without characters of no width, and composed, if the vocabulary lacks the other."""
        if self._odd_characters.search(text):
            text = text.translate(self._stand_ins)
        if unicodedata.is_normalized("NFC", text) or not self._num_spelling_ids(text):
            return text
        return min((unicodedata.normalize("NFC", text), text), key=self._num_spelling_ids)

    @cached_property
    def _stand_ins(self) -> dict[int, str]:
        """A space, or nothing, for each character of white space or of no width that is in no piece."""
        stand_ins = dict(_CONTROL_SPACES)
        for ranges, stand_in in ((_OTHER_SPACES, " "), (_NO_WIDTH, "")):
            for first, last in re.findall("(.)(?:-(.))?", ranges, re.DOTALL):
                codes = range(ord(first), ord(last or first) + 1)
                stand_ins |= {code: stand_in for code in codes if self._num_spelling_ids(chr(code))}
        return stand_ins

    @cached_property
    def _odd_characters(self) -> re.Pattern[str]:
        return re.compile(f"[{re.escape(''.join(map(chr, self._stand_ins)))}]")

    def _num_spelling_ids(self, text: str) -> int:
        """The bytes and unknown pieces in the ids of a text."""
        return sum(piece_id in self._spelling_ids for piece_id in self._processor.encode(text))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without BOS and EOS."""
        rows: list[list[int]]
        if len(lines) == 1:  # for a list, SentencePiece starts a thread, which takes longer than a single line
            rows = [self._processor.encode(lines[0])]
        else:
            rows = self._processor.encode(list(lines), num_threads=1)
        if self._mark_ids:
            for position, line in enumerate(lines):
                if SPACE_MARK in line:
                    rows[position] = self._encode_with_space_marks(line)
        return rows

    def encode_raw(self, lines: Iterable[str]) -> list[list[int]]:
        """The ids of each line of raw text, as `nmt prepare` encodes a source."""
        return self.encode([self.as_in_training(line) for line in lines])

    def nbest(self, text: str, *, number: int) -> list[list[int]]:
        """The ids of the most probable segmentations of a text by a unigram model, the best first."""
        rows: list[list[int]] = self._processor.nbest_encode(text, nbest_size=number, out_type=int)
        return rows

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, which are ints of the vocabulary; special ids give nothing."""
        # A list starts a thread, as in encode. Some versions return one text for an empty list.
        if len(rows) < 2:
            return [self._processor.decode(list(row)) for row in rows]
        texts: list[str] = self._processor.decode(list(map(list, rows)), num_threads=1)
        return texts

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces of a row of ids as SentencePiece writes them, with U+2581 for a space."""
        return [self._pieces[piece_id] for piece_id in ids]

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {piece_id: str(self._processor.id_to_piece(piece_id)) for piece_id in range(self.vocab_size)}

    def _encode_with_space_marks(self, line: str) -> list[int]:
        """The ids of a line with U+2581 in it. This character is spelt in bytes, so it is not taken for a space."""
        unused = (c for c in map(chr, _PRIVATE_USE) if c not in line and self._processor.piece_to_id(c) == UNK)
        stand_in = next(unused)
        stand_in_ids = self._byte_ids(stand_in)
        ids: list[int] = self._processor.encode(line.replace(SPACE_MARK, stand_in))
        result = []
        position = 0
        while position < len(ids):
            is_mark = ids[position : position + len(stand_in_ids)] == stand_in_ids
            result += self._mark_ids if is_mark else ids[position : position + 1]
            position += len(stand_in_ids) if is_mark else 1
        return result

    def _byte_ids(self, character: str) -> list[int]:
        """The ids of the bytes of a character; none if the model has no byte pieces."""
        ids = [int(self._processor.piece_to_id(piece)) for piece in byte_pieces(character)]
        return ids if UNK not in ids else []


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Encoded lines.

    `ids`: the ids of all lines, [T], with EOS after each line. `lengths`: the number of ids per line with its EOS, [n].
    """

    ids: NDArray[np.integer]
    lengths: NDArray[np.int64]

    def repeat(self, copies: NDArray[np.integer]) -> EncodedText:
        """A text with as many copies of each line as `copies` says, [n]."""
        starts = np.cumsum(self.lengths) - self.lengths
        lines = np.repeat(np.arange(len(copies)), copies)
        return EncodedText(gather(self.ids, starts[lines], self.lengths[lines]), self.lengths[lines])


class TextEncoder:
    """Encodes large texts as `Tokenizer.encode` does, and several times faster: known words are looked up.

    In a byte-pair model whose pieces never continue after a space, words are encoded independently. The ids of a word
    are then cached. Unigram models choose a path through the whole sentence, so they are not cached. If `is_source`,
    others replace odd characters that the vocabulary lacks, and `num_changed` counts the lines so far with such ones.
    """

    def __init__(self, tokenizer: Tokenizer, *, kind: TokenizerKind | None, is_source: bool) -> None:
        self._tokenizer, self._is_source = tokenizer, is_source
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        alone, twice = tokenizer.encode(["a", "a a"])
        begin_alike = twice == [*alone, *alone]  # unless the model marks no space before the first word
        has_spaces_inside = any(SPACE_MARK in piece[1:] for piece in pieces)
        self._has_independent_words = kind == "bpe" and begin_alike and not has_spaces_inside
        self._cache, self._changed_words = WordCache(), list[int]()  # a word and its row have the same number
        self.num_changed = 0

    def encode(self, text: bytes) -> EncodedText:
        """The ids of the lines of a text in UTF-8, in which a line feed ends every line."""
        if self._has_independent_words and _has_plain_spaces(text):
            return self._encode_words(text)
        rows, changed = self._encode_known(text.decode().split("\n")[:-1])
        self.num_changed += len(changed)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) + 1
        ids = chain.from_iterable((*row, EOS) for row in rows)
        return EncodedText(np.fromiter(ids, dtype=np.int32, count=int(lengths.sum())), lengths)

    def _encode_words(self, text: bytes) -> EncodedText:
        words = text.replace(_LINE_END, b" \n ").split(b" ")
        words.pop()  # what follows the last line end
        if len(self._cache.sizes) > _MAX_CACHED_WORDS:
            self._cache, self._changed_words = WordCache(), []
        cache = self._cache
        numbers = cache.numbers_of(words)
        if new_words := cache.words_from(first_number := len(cache.sizes)):
            rows, changed = self._encode_known([word.decode() for word in new_words])
            self._changed_words += [first_number + index for index in changed]
            cache.add_rows([[EOS] if word == _LINE_END else row for word, row in zip(new_words, rows, strict=True)])
        is_line_end = numbers == cache.numbers_of([_LINE_END])
        if self._changed_words:
            changed_words = np.flatnonzero(np.isin(numbers, self._changed_words))
            self.num_changed += len(np.unique(np.searchsorted(np.flatnonzero(is_line_end), changed_words)))
        line_ends = np.cumsum(np.asarray(cache.sizes)[numbers])[is_line_end]
        return EncodedText(cache.ids_of(numbers), np.diff(line_ends, prepend=0))

    def _encode_known(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """The ids of texts, and the indices of those in which characters are replaced."""
        changed = []
        for index, text in enumerate(texts if self._is_source else ()):
            if not (text.isascii() or text == (known := self._tokenizer.with_known_characters(text))):
                texts[index] = normalize_spaces(known)
                changed.append(index)
        return self._tokenizer.encode(texts), changed


class WordCache:
    """Words and rows of ids, both numbered as they come in; `sizes` are the lengths of the rows."""

    def __init__(self) -> None:
        # A look-up gives a new word the next number, at the speed of C. The keys are in the order of their numbers.
        self._number_of: defaultdict[bytes, int] = defaultdict(count().__next__)
        # numpy shares their memory; they cannot grow while such a view is in use.
        self._ids, self._starts, self.sizes = array("i"), array("q"), array("q")

    def numbers_of(self, words: Sequence[bytes]) -> NDArray[np.int64]:
        """The number of each word; a new word gets the next number."""
        return np.fromiter(map(self._number_of.__getitem__, words), dtype=np.int64, count=len(words))

    def words_from(self, number: int) -> list[bytes]:
        """The words with this number and with higher ones."""
        return list(islice(self._number_of, number, None))

    def add_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Add rows of ids. Lists, because sampling adds one short row at a time."""
        sizes = list(map(len, rows))
        self._starts.extend(accumulate(sizes[:-1], initial=len(self._ids)))
        self.sizes.extend(sizes)
        self._ids.extend(chain.from_iterable(rows))

    def ids_of(self, rows: NDArray[np.int64]) -> NDArray[np.integer]:
        """The ids of these rows, given by number, end to end."""
        return gather(np.asarray(self._ids), np.asarray(self._starts)[rows], np.asarray(self.sizes)[rows])


def _has_plain_spaces(text: bytes) -> bool:
    """True if single spaces separate the words of every line, and no line is empty, as in cleaned text."""
    has_space_first = text.startswith((b" ", _LINE_END))
    return not has_space_first and not any(spaces in text for spaces in (b"  ", b" \n", b"\n ", b"\n\n"))


def gather(ids: NDArray[np.integer], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.integer]:
    """Parts of `ids` end to end, given the start and the size of each part."""
    shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    shifts += np.arange(len(shifts))
    gathered: NDArray[np.integer] = ids[shifts]
    return gathered
