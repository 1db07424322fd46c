"""SentencePiece models read piece by piece, and rewritten with our special ids.

A SentencePiece model is a protocol buffer. Field 1 is a piece: its text, score and kind. All other fields are copied as
bytes. A setting is overridden by writing it again, because the last occurrence of a field counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sentencepiece

from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, TokenizerKind

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
        for number, _, content in _fields(model):
            if number == _PIECES:
                parts = {key: value for key, _, value in _fields(content)}
                (score,) = struct.unpack("<f", parts.get(_SCORE, bytes(4)))
                kind = _number(parts.get(_KIND, b"\x01"), 0)[0]
                pieces.append(Piece(parts[_TEXT].decode("utf-8"), score, kind))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as problem:
        raise ValueError("no SentencePiece model") from problem
    if not pieces:
        raise ValueError("no SentencePiece model: it has no pieces")
    return pieces


def with_pieces(model: bytes, pieces: Sequence[Piece], *, has_bytes: bool) -> bytes:
    """The model with these pieces; the first four are padding, unknown, begin and end."""
    rest = b"".join(
        _field(number, wire, content) for number, wire, content in _fields(model) if number not in _REWRITTEN
    )
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


def without_input_format(model: bytes) -> bytes:
    """The model without the name of the format that its trainer read, so that equal pieces are equal bytes."""
    fields = []
    for number, wire, content in _fields(model):
        if number == _TRAINER:
            kept = (one for one in _fields(content) if one[0] != _INPUT_FORMAT)
            content = b"".join(_field(key, inner, value) for key, inner, value in kept)
        fields.append(_field(number, wire, content))
    return b"".join(fields)


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
    if not {_TRAINER, _NORMALIZER} <= {number for number, _, _ in _fields(model)}:  # these stand after the pieces
        raise ValueError("a damaged SentencePiece model: it is cut short, before its settings")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as problem:
        raise ValueError("no SentencePiece model") from problem
    kind = tokenizer_kind(model)
    rules, name = (_setting(model, _NORMALIZER, number) for number in (_RULES, _RULES_NAME))
    normalization = (name or b"its own rules").decode(errors="replace") if rules else None
    ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    if ids == [PAD, UNK, BOS, EOS] and has_bytes:
        return AdaptedModel(model, kind, len(pieces), [], normalization)
    taken, added, listed = {piece.text for piece in pieces}, [], []
    for number, name_of_ours in zip(ids, ("<pad>", "<unk>", "<s>", "</s>"), strict=True):
        if number < 0:
            text = name_of_ours if name_of_ours not in taken else f"<our {name_of_ours[1:]}"
            added.append(name_of_ours)
            listed.append(Piece(text, 0.0, CONTROL))
        else:
            listed.append(pieces[number])
    if not has_bytes:
        spelt = [f"<0x{byte:02X}>" for byte in range(256)]
        if taken.intersection(spelt):
            raise ValueError(f"a model with {sorted(taken.intersection(spelt))[0]} as text, where bytes are spelt so")
        added.append("256 byte pieces")
        listed += [Piece(text, 0.0, BYTE) for text in spelt]
    listed += [piece for number, piece in enumerate(pieces) if number not in ids]
    return AdaptedModel(with_pieces(model, listed, has_bytes=True), kind, len(pieces), added, normalization)


def tokenizer_kind(model: bytes) -> TokenizerKind:
    """Whether a model is a unigram or a BPE model; ValueError, with its kind, if it is neither."""
    model_type = _number(_setting(model, _TRAINER, _MODEL_TYPE) or b"\x01", 0)[0]
    if model_type not in _KINDS:
        raise ValueError(f"a {_OTHER_KINDS.get(model_type, 'strange')} model, not unigram or BPE")
    return _KINDS[model_type]


def has_our_ids(model: bytes) -> bool:
    """True if padding, unknown, begin and end are our ids; RuntimeError if the bytes are no SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    return ids == (PAD, UNK, BOS, EOS)


def _setting(model: bytes, section: int, setting: int) -> bytes | None:
    """The last value of a setting in a section of a model; None if it has none."""
    sections = [content for number, _, content in _fields(model) if number == section]
    values = [content for one in sections for number, _, content in _fields(one) if number == setting]
    return values[-1] if values else None


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


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
