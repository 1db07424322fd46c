"""SentencePiece models read piece by piece, and rewritten to list a Marian vocabulary in our order.

A SentencePiece model is a protocol buffer. Field 1 is a piece: its text, score and kind. All other fields are copied as
bytes. A setting is overridden by writing it again, because the last occurrence of a field counts.

In a Marian directory, vocab.json maps pieces to ids, for one language or for both. In ours, a piece's id is
SentencePiece's. So both models are rewritten to list every row of the vocabulary in the order of our ids. Pieces that
only the other language has are marked as unused: the model reads them and never makes them. Single characters are added
as ordinary pieces, because Marian looks up a character that the model does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nmt_cli.errors import ModelError
from nmt_cli.tokenization.tokenizer import SPACE_MARK

_NUM_SPECIAL = 4
# What SentencePiece takes off the score of its least likely piece for a character that it does not know.
_UNKNOWN_PENALTY = 10.0
# A language that the text is to be translated into, as OPUS-MT writes it before the text.
_MARKED_CODE = f"{SPACE_MARK}>>"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_PIECES, _TRAINER = 1, 2
_TEXT, _SCORE, _KIND = 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Fields of the trainer's settings (sentencepiece_model.proto) which say what the special pieces are.
_VOCAB_SIZE, _BYTE_FALLBACK, _IDS, _NAMES = 4, 35, (43, 40, 41, 42), (48, 45, 46, 47)


@dataclass(frozen=True, slots=True)
class VocabularyRow:
    """A piece of ours and its row in Marian's matrices; only our padding may have no row."""

    text: str
    row: int | None


def rows_by_our_ids(
    vocabulary: Mapping[str, int], *, num_rows: int, pad: int, unknown: int, start: int, end: int
) -> list[VocabularyRow]:
    """Marian's rows by our ids: padding, unknown, the decoder's start, the end, then all others in their order.

    Marian starts with the padding piece. That row becomes our start, and our padding, which no model ever sees, has
    no row. Rows without a name in the vocabulary keep one of their own.
    """
    names = {number: our_piece(piece) for piece, number in vocabulary.items()}
    special = (pad, unknown, start, end)
    others = [(number, names.get(number, row_name(number))) for number in range(num_rows) if number not in special]
    taken = {name for _, name in others}
    texts = [name if name not in taken else f"<our {name[1:]}" for name in ("<pad>", "<unk>", "<s>", "</s>")]
    first = [VocabularyRow(texts[0], None if pad == start else pad), *map(VocabularyRow, texts[1:], special[1:])]
    return [*first, *(VocabularyRow(name, number) for number, name in others)]


def with_rows(model: bytes, rows: Sequence[VocabularyRow], *, where: str) -> bytes:
    """The SentencePiece model with the pieces of `rows`; it cuts text into the same pieces as before.

    Marian reads <unk> for a piece that the vocabulary lacks. Such a piece is left out, so that text is spelt in
    smaller pieces. Raises ModelError if the bytes are no SentencePiece model.
    """
    try:
        known = {piece.text: piece for piece in read_pieces(model)}
    except ValueError as problem:
        raise ModelError(f"{problem}", where=where, hint="fetch the file again") from None
    present = {row.text for row in rows}
    all_bytes = {piece.text for piece in known.values() if piece.kind == BYTE}
    has_bytes = bool(all_bytes) and all_bytes <= present
    other_characters = UNUSED if has_bytes else NORMAL  # which are spelt in bytes where there are any
    lowest = min((piece.score for piece in known.values() if piece.kind == NORMAL), default=0.0) - _UNKNOWN_PENALTY
    kinds = (CONTROL, UNKNOWN, CONTROL, CONTROL)
    pieces = [Piece(row.text, 0.0, kind) for row, kind in zip(rows, kinds, strict=False)]
    for row in rows[_NUM_SPECIAL:]:
        piece = known.get(row.text, Piece(row.text, lowest, other_characters if len(row.text) == 1 else UNUSED))
        if is_language_code(row.text):
            piece = Piece(row.text, 0.0, USER_DEFINED)
        elif piece.kind == UNKNOWN or (piece.kind == BYTE and not has_bytes):
            piece = Piece(row.text, lowest, UNUSED)
        pieces.append(piece)
    return with_pieces(model, pieces, has_bytes=has_bytes)


def lost_pieces(model: bytes, rows: Sequence[VocabularyRow]) -> int:
    """How many ordinary pieces of the model the vocabulary lacks."""
    present = {row.text for row in rows}
    return sum(piece.kind in (NORMAL, USER_DEFINED) and piece.text not in present for piece in read_pieces(model))


def is_language_code(text: str) -> bool:
    """True for a piece such as >>fra<<, which stands before a text and names the target language."""
    return text.startswith(_MARKED_CODE) and text.endswith("<<")


def row_name(number: int) -> str:
    """Our name of a row that the vocabulary has no piece for."""
    return f"<row {number}>"


def our_piece(piece: str) -> str:
    """Our name of one of MarianTokenizer's pieces: a language code begins with a space, like other words."""
    return f"{SPACE_MARK}{piece}" if piece.startswith(">>") and piece.endswith("<<") else piece


def their_piece(piece: str) -> str:
    """MarianTokenizer's name of one of our pieces."""
    return piece[1:] if piece.startswith(_MARKED_CODE) and piece.endswith("<<") else piece


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece: its text with U+2581 for a space, its score, and one of the kinds above."""

    text: str
    score: float
    kind: int


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces by id; ValueError if the bytes are no SentencePiece model."""
    pieces = []
    try:
        for number, _, content in _fields(model):
            if number == _PIECES:
                parts = {key: value for key, _, value in _fields(content)}
                (score,) = struct.unpack("<f", parts.get(_SCORE, bytes(4)))
                kind = _number(parts.get(_KIND, b"\x01"), 0)[0]
                pieces.append(Piece(parts[_TEXT].decode("utf-8"), score, kind))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as problem:
        raise ValueError(f"no SentencePiece model: {problem}") from None
    if not pieces:
        raise ValueError("no SentencePiece model: it has no pieces")
    return pieces


def with_pieces(model: bytes, pieces: Sequence[Piece], *, has_bytes: bool) -> bytes:
    """The model with these pieces; the first four are padding, unknown, begin and end."""
    rest = b"".join(_field(number, wire, content) for number, wire, content in _fields(model) if number != _PIECES)
    listed = b"".join(_field(_PIECES, _BYTES, _encoded(piece)) for piece in pieces)
    settings: Mapping[int, int | str] = {
        _VOCAB_SIZE: len(pieces),
        _BYTE_FALLBACK: int(has_bytes),
        **dict(zip(_IDS, range(4), strict=True)),
        **dict(zip(_NAMES, (piece.text for piece in pieces[:4]), strict=True)),
    }
    trainer = b"".join(
        _field(number, _VARINT, _varint(value)) if isinstance(value, int) else _field(number, _BYTES, value.encode())
        for number, value in settings.items()
    )
    return listed + rest + _field(_TRAINER, _BYTES, trainer)


def _encoded(piece: Piece) -> bytes:
    return (
        _field(_TEXT, _BYTES, piece.text.encode())
        + _field(_SCORE, _FIXED32, struct.pack("<f", piece.score))
        + _field(_KIND, _VARINT, _varint(piece.kind))
    )


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and content of each field of a message; IndexError if the message is cut short."""
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        number, wire = tag >> 3, tag & 7
        start = place
        if wire == _VARINT:
            _, place = _number(message, place)
        elif wire == _BYTES:
            size, start = _number(message, place)
            place = start + size
        elif wire in (_FIXED32, _FIXED64):
            place += 4 if wire == _FIXED32 else 8
        else:
            raise IndexError(f"a field of wire type {wire}")
        if place > len(message):
            raise IndexError("it is cut short")
        yield number, wire, message[start:place]


def _field(number: int, wire: int, content: bytes) -> bytes:
    size = _varint(len(content)) if wire == _BYTES else b""
    return _varint(number << 3 | wire) + size + content


def _number(message: bytes, place: int) -> tuple[int, int]:
    """The varint at `place`, and the place after it."""
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
