"""A SentencePiece model as the rest of the package sees it: raw text to ids and back, without loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import sentencepiece

from nmt_cli.errors import DataError

PAD, UNK, BOS, EOS = 0, 1, 2, 3

SPACE_MARK = "\u2581"
"""SentencePiece writes a space as this character, and cannot tell the two apart in its input."""


class Tokenizer:
    """Raw text to piece ids and back; immutable, and identified by the bytes of its model.

    Any text without control characters survives `encode` and `decode` where the model has byte pieces.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._mark_ids = self._byte_ids(SPACE_MARK)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer of a `.spm` file. DataError if it is not one."""
        hint = "restore the file, or run nmt prepare again"
        try:
            return cls(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{path.name} is missing", where=str(path), hint=hint) from None
        except RuntimeError:
            raise DataError(f"{path.name} is not a SentencePiece model", where=str(path), hint=hint) from None

    @property
    def vocab_size(self) -> int:
        """Pieces in all, with the four special ones and the 256 bytes."""
        return int(self._processor.get_piece_size())

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model's bytes, in hexadecimal."""
        return hashlib.sha256(self._model).hexdigest()

    @property
    def byte_ids(self) -> list[int]:
        """The ids of the byte pieces, in which characters outside the vocabulary are spelt; none in some models."""
        return [piece for piece in range(self.vocab_size) if self._processor.is_byte(piece)]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without BOS and EOS."""
        # SentencePiece starts a thread for a list, which takes longer than a single line does.
        alone = len(lines) == 1
        encode = self._processor.encode
        rows: list[list[int]] = [encode(lines[0])] if alone else encode(list(lines), num_threads=1)
        if self._mark_ids:
            for position, line in enumerate(lines):
                if SPACE_MARK in line:
                    rows[position] = self._encode_with_marks(line)
        return rows

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, which are ints of the vocabulary; special ids give nothing."""
        # As in `encode`; and some versions make a text of no rows.
        if len(rows) < 2:
            return [self._processor.decode(list(row)) for row in rows]
        texts: list[str] = self._processor.decode(list(map(list, rows)), num_threads=1)
        return texts

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces of a row of ids as SentencePiece writes them, with U+2581 for a space."""
        return [self._pieces[piece] for piece in ids]

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {piece: str(self._processor.id_to_piece(piece)) for piece in range(self.vocab_size)}

    def _encode_with_marks(self, line: str) -> list[int]:
        """The ids of a line with U+2581 in it, each of which is spelt in bytes so that it is not taken for a space."""
        private_use = map(chr, range(0x100000, 0x10FFFE))
        stand_in = next(c for c in private_use if c not in line and self._processor.piece_to_id(c) == UNK)
        ids: list[int] = self._processor.encode(line.replace(SPACE_MARK, stand_in))
        old, position = self._byte_ids(stand_in), 0
        marked = []
        while position < len(ids):
            is_mark = ids[position : position + len(old)] == old
            marked += self._mark_ids if is_mark else ids[position : position + 1]
            position += len(old) if is_mark else 1
        return marked

    def _byte_ids(self, character: str) -> list[int]:
        ids = [int(self._processor.piece_to_id(f"<0x{byte:02X}>")) for byte in character.encode()]
        return ids if UNK not in ids else []
