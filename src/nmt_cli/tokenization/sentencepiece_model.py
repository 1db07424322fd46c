"""SentencePiece models read piece by piece, and rewritten with our special ids.

A SentencePiece model is a protocol buffer, that is, a sequence of numbered fields. We read them ourselves, because
SentencePiece's own module for it works only with the versions of protobuf that its release was made for. Fields that
nmt does not use are copied as bytes. To override a setting, we write it again: the last occurrence of a field counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sentencepiece

from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, TokenizerKind

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The kinds of pieces, as sentencepiece_model.proto numbers them."""

_OUR_IDS = [PAD, UNK, BOS, EOS]
_MODEL_TYPES: Mapping[int, TokenizerKind] = {1: "unigram", 2: "bpe"}
_UNSUPPORTED_MODEL_TYPES = {3: "word", 4: "character"}


# The numbers of fields, by their names in sentencepiece_model.proto.
class _ModelField:
    PIECES, TRAINER_SPEC, NORMALIZER_SPEC, SELF_TEST_DATA = 1, 2, 3, 4


class _PieceField:
    PIECE, SCORE, TYPE = 1, 2, 3


class _TrainerField:
    MODEL_TYPE, VOCAB_SIZE, INPUT_FORMAT, BYTE_FALLBACK = 3, 4, 7, 35
    UNK_ID, BOS_ID, EOS_ID, PAD_ID = 40, 41, 42, 43
    UNK_PIECE, BOS_PIECE, EOS_PIECE, PAD_PIECE = 45, 46, 47, 48


class _NormalizerField:
    NAME, PRECOMPILED_CHARSMAP = 1, 2


class _WireType:
    """How the content of a field is written."""

    VARINT, BYTES, FIXED32 = 0, 2, 5


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece: its text with U+2581 for a space, its score, and one of the kinds above."""

    text: str
    score: float
    kind: int


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces by id; ValueError if the bytes are no SentencePiece model."""
    pieces = []
    sections = set()
    try:
        for field in _read_fields(model):
            sections.add(field.number)
            if field.number == _ModelField.PIECES:
                parts = {part.number: part.content for part in _read_fields(field.content)}
                (score,) = struct.unpack("<f", parts.get(_PieceField.SCORE, bytes(4)))
                kind, _ = _read_varint(parts.get(_PieceField.TYPE, bytes([NORMAL])), 0)
                pieces.append(Piece(parts[_PieceField.PIECE].decode("utf-8"), score, kind))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ValueError("no SentencePiece model") from error
    if not pieces:
        raise ValueError("no SentencePiece model: it has no pieces")
    if not sections >= {_ModelField.TRAINER_SPEC, _ModelField.NORMALIZER_SPEC}:  # they follow the pieces
        raise ValueError("a damaged SentencePiece model: it is cut short, before its settings")
    _special_ids(model)  # ValueError if SentencePiece itself cannot read the model
    return pieces


def with_pieces(model: bytes, pieces: Sequence[Piece], *, has_bytes: bool) -> bytes:
    """The model with these pieces, which begin with padding, unknown, begin and end."""
    fields = [_field(_ModelField.PIECES, _write_piece(piece)) for piece in pieces]
    # The examples with which a model tests itself may be cut into other pieces now.
    replaced = (_ModelField.PIECES, _ModelField.SELF_TEST_DATA)
    fields += [field for field in _read_fields(model) if field.number not in replaced]
    numbers = {
        _TrainerField.VOCAB_SIZE: len(pieces),
        _TrainerField.BYTE_FALLBACK: int(has_bytes),
    }
    ids = (_TrainerField.PAD_ID, _TrainerField.UNK_ID, _TrainerField.BOS_ID, _TrainerField.EOS_ID)
    names = (_TrainerField.PAD_PIECE, _TrainerField.UNK_PIECE, _TrainerField.BOS_PIECE, _TrainerField.EOS_PIECE)
    numbers |= zip(ids, _OUR_IDS, strict=True)
    settings = [_field(setting, number) for setting, number in numbers.items()]
    settings += [_field(name, pieces[number].text.encode()) for name, number in zip(names, _OUR_IDS, strict=True)]
    return _write_fields([*fields, _field(_ModelField.TRAINER_SPEC, _write_fields(settings))])


def without_input_format(model: bytes) -> bytes:
    """The model without the name of the format that its trainer read, so that equal pieces are equal bytes."""
    fields = []
    for field in _read_fields(model):
        if field.number == _ModelField.TRAINER_SPEC:
            settings = _read_fields(field.content)
            kept = [setting for setting in settings if setting.number != _TrainerField.INPUT_FORMAT]
            field = field._replace(content=_write_fields(kept))
        fields.append(field)
    return _write_fields(fields)


def with_our_ids(model: bytes) -> bytes:
    """The model with padding, unknown, begin and end as our ids, and with byte pieces.

    It cuts text into the same pieces as before; only characters that it does not know are spelt in bytes. A model that
    has both already is returned as it is. ValueError, with the reason, for bytes that are no unigram or BPE model.
    """
    pieces, ids = read_pieces(model), _special_ids(model)
    tokenizer_kind(model)  # ValueError for another kind
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    if ids == _OUR_IDS and has_bytes:
        return model
    bytes_added = [] if has_bytes else [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    ordinary = [piece for piece_id, piece in enumerate(pieces) if piece_id not in ids]
    return with_pieces(model, [*_special_pieces(pieces, ids), *bytes_added, *ordinary], has_bytes=True)


def normalization(model: bytes) -> str | None:
    """The name of the rules by which a model changes text before it cuts it; None if it has no rules."""
    rules = _last_setting(model, _ModelField.NORMALIZER_SPEC, _NormalizerField.PRECOMPILED_CHARSMAP)
    name = _last_setting(model, _ModelField.NORMALIZER_SPEC, _NormalizerField.NAME)
    return (name or b"its own rules").decode(errors="replace") if rules else None


def _special_pieces(pieces: Sequence[Piece], ids: Sequence[int]) -> list[Piece]:
    """The four special pieces: those with these ids, or new ones. An id of -1 marks a missing piece."""
    texts = {piece.text for piece in pieces}
    special = []
    for original_id, our_name in zip(ids, ("<pad>", "<unk>", "<s>", "</s>"), strict=True):
        text = our_name if our_name not in texts else f"<our {our_name[1:]}"  # a piece of text has our name
        special.append(Piece(text, 0.0, CONTROL) if original_id < 0 else pieces[original_id])
    return special


def tokenizer_kind(model: bytes) -> TokenizerKind:
    """Whether a model is a unigram or a BPE model; ValueError, with its kind, if it is neither."""
    written = _last_setting(model, _ModelField.TRAINER_SPEC, _TrainerField.MODEL_TYPE)
    model_type = 1 if written is None else _read_varint(written, 0)[0]
    if model_type not in _MODEL_TYPES:
        name = _UNSUPPORTED_MODEL_TYPES.get(model_type, f"type-{model_type}")
        raise ValueError(f"a {name} model, not unigram or BPE")
    return _MODEL_TYPES[model_type]


def has_our_ids(model: bytes) -> bool:
    """Whether padding, unknown, begin and end are our ids; ValueError if the bytes are no SentencePiece model."""
    return _special_ids(model) == _OUR_IDS


def _special_ids(model: bytes) -> list[int]:
    """The ids of padding, unknown, begin and end; -1 for a piece that the model does not have."""
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError("no SentencePiece model") from error
    return [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]


def _last_setting(model: bytes, section: int, setting: int) -> bytes | None:
    """The last value of a setting in a section of a model; None if it has none."""
    sections = [field.content for field in _read_fields(model) if field.number == section]
    values = [field.content for content in sections for field in _read_fields(content) if field.number == setting]
    return values[-1] if values else None


class _Field(NamedTuple):
    """A field of a message."""

    number: int
    wire_type: int
    content: bytes


def _field(number: int, value: int | float | bytes) -> _Field:
    """The field of a value, in the wire type that SentencePiece gives to values of its type."""
    match value:
        case int():
            return _Field(number, _WireType.VARINT, _write_varint(value))
        case float():
            return _Field(number, _WireType.FIXED32, struct.pack("<f", value))
        case bytes():
            return _Field(number, _WireType.BYTES, value)


def _read_fields(message: bytes) -> Iterator[_Field]:
    """The fields of a message; IndexError if the message is cut short."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        start = position
        match wire_type:
            case _WireType.VARINT:
                _, position = _read_varint(message, position)
            case _WireType.BYTES:
                size, start = _read_varint(message, position)
                position = start + size
            case _WireType.FIXED32:
                position += 4
            case _:
                raise IndexError(f"a field of wire type {wire_type}")
        if position > len(message):
            raise IndexError("it is cut short")
        yield _Field(number, wire_type, message[start:position])


def _write_fields(fields: Iterable[_Field]) -> bytes:
    """The message of these fields."""
    message = bytearray()
    for number, wire_type, content in fields:
        message += _write_varint(number << 3 | wire_type)
        message += _write_varint(len(content)) if wire_type == _WireType.BYTES else b""
        message += content
    return bytes(message)


def _write_piece(piece: Piece) -> bytes:
    text, score = _field(_PieceField.PIECE, piece.text.encode()), _field(_PieceField.SCORE, float(piece.score))
    return _write_fields([text, score, _field(_PieceField.TYPE, piece.kind)])


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """The varint at `position`, and the position after it; IndexError if it has no end."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _write_varint(value: int) -> bytes:
    encoded = bytearray()
    value &= (1 << 64) - 1  # negative numbers have ten bytes
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
