"""The pieces of a SentencePiece model, read out of its file and put back in another order.

The file is a protocol buffer whose field 1 is a piece: its text, its score, its kind. All else is carried over as
bytes; settings are overridden by writing them again, since of a field that occurs twice the last one counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_PIECES, _TRAINER = 1, 2
_TEXT, _SCORE, _KIND = 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Fields of the trainer's settings (sentencepiece_model.proto) which say what the special pieces are.
_VOCAB_SIZE, _BYTE_FALLBACK, _IDS, _NAMES = 4, 35, (43, 40, 41, 42), (48, 45, 46, 47)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece: its text with U+2581 for a space, its score, and one of the kinds above."""

    text: str
    score: float
    kind: int


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces by id. ValueError where the bytes are no SentencePiece model."""
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
    """The model with these pieces for its own, of which the first four are pad, unknown, begin and end."""
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
    """Number, wire type and content of each field of a message; IndexError where it ends in the middle of one."""
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
