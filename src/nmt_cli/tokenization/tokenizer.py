"""Text to the ids of a SentencePiece model and back without loss."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import sentencepiece

from nmt_cli.errors import DataError
from nmt_cli.tokenization.pieces import SPACE_MARK, byte_pieces
from nmt_cli.tokenization.white_space import (
    CONTROL_SPACES,
    PLAIN_CHARACTERS,
    PLAIN_SPACES,
    is_blank,
    normalize_spaces,
)

TokenizerKind = Literal["bpe", "unigram"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MIN_VOCAB_SIZE = 300  # the four special pieces, the 256 bytes, and some characters

_PRIVATE_USE = range(0x100000, 0x10FFFE)  # characters to which Unicode gives no meaning


class Tokenizer:
    """Raw text to piece ids and back; immutable, and identified by the bytes of its model.

    Any text without control characters survives `encode` and `decode` if the model has byte pieces.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
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
        return hashlib.sha256(self.model).hexdigest()

    @property
    def byte_ids(self) -> list[int]:
        """The ids of the byte pieces, in which characters outside the vocabulary are spelt; none in some models."""
        return [piece_id for piece_id in range(self.vocab_size) if self._processor.is_byte(piece_id)]

    @property
    def control_ids(self) -> list[int]:
        """The ids of the pieces that no text has: padding, begin and end of a sentence, and symbols."""
        return [piece_id for piece_id in range(self.vocab_size) if self._processor.is_control(piece_id)]

    @cached_property
    def symbols(self) -> list[str]:
        """The symbols, in the order of their ids."""
        return self.pieces([piece_id for piece_id in self.control_ids if piece_id > EOS])

    @property
    def tags(self) -> list[str]:
        """The tags of the training text whose symbols are here, as in `--tag`: NAME=VALUE."""
        return [symbol[1:-1].replace(":", "=", 1) for symbol in self.symbols if ":" in symbol]

    def symbol_ids(self, symbols: Sequence[str]) -> tuple[int, ...]:
        """The ids of symbols, which are pieces that no text has; DataError if one is not in the vocabulary."""
        ids = tuple(int(self._processor.piece_to_id(symbol)) for symbol in symbols)
        for symbol, symbol_id in zip(symbols, ids, strict=True):
            if symbol_id == UNK:
                raise DataError(f"the vocabulary has no piece {symbol}", hint="take the vocabulary of a model with it")
        return ids

    def as_in_training(self, source: str) -> str:
        """The line as `nmt prepare` encodes a source: with single spaces, without odd characters that are in no piece.

        White space of any kind becomes a space, even if it is in a piece: in a shared vocabulary, it may be there for
        the target alone. What has no width goes, and decomposed letters are composed, unless they are in a piece. A
        line without a visible character is empty.
        """
        return self._tidy(source.translate(PLAIN_SPACES))

    def _tidy(self, line: str) -> str:
        if not (line.isascii() and line.isprintable()):
            line = "" if is_blank(line) else self.with_known_characters(line)
        return normalize_spaces(line)

    def with_known_characters(self, text: str) -> str:
        """The text in which what the vocabulary lacks is replaced.

        White space is replaced by a space, no width by nothing, letters by composed ones.
        """
        if self._odd_characters.search(text):
            text = text.translate(self._stand_ins)
        if unicodedata.is_normalized("NFC", text) or not self._num_spelling_ids(text):
            return text
        return min((unicodedata.normalize("NFC", text), text), key=self._num_spelling_ids)

    @cached_property
    def _stand_ins(self) -> dict[int, str]:
        """A space, or nothing, for each character of white space or of no width that is in no piece."""
        return {
            code: stand_in
            for code, stand_in in PLAIN_CHARACTERS.items()
            if code in CONTROL_SPACES or self._num_spelling_ids(chr(code))
        }

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

    def encode_source(self, lines: Iterable[str]) -> list[list[int]]:
        """The ids of each line of raw text, as `nmt prepare` encodes a source."""
        return self.encode([self.as_in_training(line) for line in lines])

    def encode_target(self, lines: Iterable[str]) -> list[list[int]]:
        """The ids of each line of a translation: as a source, but white space that is in a piece stays."""
        return self.encode([self._tidy(line) for line in lines])

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
