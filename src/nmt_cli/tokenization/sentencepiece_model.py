"""SentencePiece models read piece by piece, and rewritten with our special ids.

A SentencePiece model is a protocol buffer. Field 1 is a piece: its text, score and kind. All other fields are copied as
bytes. A setting is overridden by writing it again, because the last occurrence of a field counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sentencepiece

from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, TokenizerKind

_OUR_IDS = [PAD, UNK, BOS, EOS]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_PIECES, _TRAINER, _NORMALIZER, _SELF_TEST = 1, 2, 3, 4
_TEXT, _SCORE, _KIND = 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS = 64
# Fields of the trainer's settings (sentencepiece_model.proto); ids and names are those of the special pieces.
_INPUT_FORMAT, _MODEL_TYPE, _VOCAB_SIZE, _BYTE_FALLBACK, _IDS, _NAMES = 7, 3, 4, 35, (43, 40, 41, 42), (48, 45, 46, 47)
# Fields of the settings of normalisation: the name of the rules, and the rules.
_RULES_NAME, _RULES = 1, 2
# Pieces are written anew. Examples that a model checks itself with may have other pieces then.
_REWRITTEN = (_PIECES, _SELF_TEST)
_KINDS: Mapping[int, TokenizerKind] = {1: "unigram", 2: "bpe"}
_OTHER_KINDS = {3: "word", 4: "character"}


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
        for field in _read_fields(model):
            if field.number == _PIECES:
                parts = {part.number: part.content for part in _read_fields(field.content)}
                (score,) = struct.unpack("<f", parts.get(_SCORE, bytes(4)))
                kind, _ = _read_varint(parts.get(_KIND, b"\x01"), 0)
                pieces.append(Piece(parts[_TEXT].decode("utf-8"), score, kind))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as problem:
        raise ValueError("no SentencePiece model") from problem
    if not pieces:
        raise ValueError("no SentencePiece model: it has no pieces")
    return pieces


def with_pieces(model: bytes, pieces: Sequence[Piece], *, has_bytes: bool) -> bytes:
    """The model with these pieces; the first four are padding, unknown, begin and end."""
    fields = [_Field(_PIECES, _BYTES, _write_piece(piece)) for piece in pieces]
    fields += [field for field in _read_fields(model) if field.number not in _REWRITTEN]
    settings: Mapping[int, int | str] = {
        _VOCAB_SIZE: len(pieces),
        _BYTE_FALLBACK: int(has_bytes),
        **dict(zip(_IDS, range(4), strict=True)),
        **dict(zip(_NAMES, (piece.text for piece in pieces[:4]), strict=True)),
    }
    trainer = [
        _Field(number, _VARINT, _write_varint(value))
        if isinstance(value, int)
        else _Field(number, _BYTES, value.encode())
        for number, value in settings.items()
    ]
    return _write_fields([*fields, _Field(_TRAINER, _BYTES, _write_fields(trainer))])


def without_input_format(model: bytes) -> bytes:
    """The model without the name of the format that its trainer read, so that equal pieces are equal bytes."""
    fields = []
    for field in _read_fields(model):
        if field.number == _TRAINER:
            settings = [setting for setting in _read_fields(field.content) if setting.number != _INPUT_FORMAT]
            field = field._replace(content=_write_fields(settings))
        fields.append(field)
    return _write_fields(fields)


@dataclass(frozen=True, slots=True)
class AdaptedModel:
    """A SentencePiece model with our special ids; `added` says what the original did not have.

    `normalization` is the name of the rules by which the model changes text before it cuts it; None without rules.
    """

    content: bytes
    kind: TokenizerKind
    num_original_pieces: int
    added: list[str]
    normalization: str | None


def with_our_ids(model: bytes) -> AdaptedModel:
    """The model with padding, unknown, begin and end as our ids, and with byte pieces.

    It cuts text into the same pieces as before; only characters that it does not know are spelt in bytes. A model that
    has both already is returned as it is. ValueError, with the reason, for bytes that are no unigram or BPE model.
    """
    pieces = read_pieces(model)
    if not {_TRAINER, _NORMALIZER} <= {field.number for field in _read_fields(model)}:  # these stand after the pieces
        raise ValueError("a damaged SentencePiece model: it is cut short, before its settings")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as problem:
        raise ValueError("no SentencePiece model") from problem
    kind = tokenizer_kind(model)
    rules, name = (_last_setting(model, _NORMALIZER, number) for number in (_RULES, _RULES_NAME))
    normalization = (name or b"its own rules").decode(errors="replace") if rules else None
    ids = _special_ids(processor)
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    if ids == _OUR_IDS and has_bytes:
        return AdaptedModel(model, kind, len(pieces), [], normalization)
    special, added = _special_pieces(pieces, ids)
    byte_pieces: list[Piece] = []
    if not has_bytes:
        byte_pieces = [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
        if both := {piece.text for piece in pieces} & {piece.text for piece in byte_pieces}:
            raise ValueError(f"a model with {min(both)} as text, where bytes are spelt so")
        added.append("256 byte pieces")
    others = [piece for number, piece in enumerate(pieces) if number not in ids]
    adapted = with_pieces(model, [*special, *byte_pieces, *others], has_bytes=True)
    return AdaptedModel(adapted, kind, len(pieces), added, normalization)


def _special_pieces(pieces: Sequence[Piece], ids: Sequence[int]) -> tuple[list[Piece], list[str]]:
    """The four special pieces by their `ids` in a model, and the names of added ones; a negative id is a gap."""
    texts = {piece.text for piece in pieces}
    special, added = [], []
    for id_there, our_name in zip(ids, ("<pad>", "<unk>", "<s>", "</s>"), strict=True):
        if id_there < 0:
            text = our_name if our_name not in texts else f"<our {our_name[1:]}"
            added.append(our_name)
            special.append(Piece(text, 0.0, CONTROL))
        else:
            special.append(pieces[id_there])
    return special, added


def tokenizer_kind(model: bytes) -> TokenizerKind:
    """Whether a model is a unigram or a BPE model; ValueError, with its kind, if it is neither."""
    model_type, _ = _read_varint(_last_setting(model, _TRAINER, _MODEL_TYPE) or b"\x01", 0)
    if model_type not in _KINDS:
        raise ValueError(f"a {_OTHER_KINDS.get(model_type, 'strange')} model, not unigram or BPE")
    return _KINDS[model_type]


def has_our_ids(model: bytes) -> bool:
    """True if padding, unknown, begin and end are our ids; RuntimeError if the bytes are no SentencePiece model."""
    return _special_ids(sentencepiece.SentencePieceProcessor(model_proto=model)) == _OUR_IDS


def _special_ids(processor: sentencepiece.SentencePieceProcessor) -> list[int]:
    """The ids of padding, unknown, begin and end; -1 for a piece that the model does not have."""
    return [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]


def _last_setting(model: bytes, section: int, setting: int) -> bytes | None:
    """The last value of a setting in a section of a model; None if it has none."""
    sections = [field.content for field in _read_fields(model) if field.number == section]
    values = [field.content for content in sections for field in _read_fields(content) if field.number == setting]
    return values[-1] if values else None


class _Field(NamedTuple):
    """A field of a message. Its wire type says how the content is written."""

    number: int
    wire: int
    content: bytes


def _read_fields(message: bytes) -> Iterator[_Field]:
    """The fields of a message; IndexError if the message is cut short."""
    place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        number, wire = tag >> 3, tag & 7
        start = place
        if wire == _VARINT:
            _, place = _read_varint(message, place)
        elif wire == _BYTES:
            size, start = _read_varint(message, place)
            place = start + size
        elif wire in (_FIXED32, _FIXED64):
            place += 4 if wire == _FIXED32 else 8
        else:
            raise IndexError(f"a field of wire type {wire}")
        if place > len(message):
            raise IndexError("it is cut short")
        yield _Field(number, wire, message[start:place])


def _write_fields(fields: Iterable[_Field]) -> bytes:
    """The message of these fields."""
    message = bytearray()
    for number, wire, content in fields:
        message += _write_varint(number << 3 | wire)
        message += _write_varint(len(content)) if wire == _BYTES else b""
        message += content
    return bytes(message)


def _write_piece(piece: Piece) -> bytes:
    text, score, kind = piece.text.encode(), struct.pack("<f", piece.score), _write_varint(piece.kind)
    return _write_fields([_Field(_TEXT, _BYTES, text), _Field(_SCORE, _FIXED32, score), _Field(_KIND, _VARINT, kind)])


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """The varint at `place`, and the place after it; IndexError if it has no end within 64 bits."""
    value = shift = 0
    while shift < _VARINT_BITS:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise IndexError("a number without an end")


def _write_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
