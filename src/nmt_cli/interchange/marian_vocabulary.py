"""Marian's vocabularies in the order of our ids, and SentencePiece models rewritten to list them.

In a Marian directory, vocab.json maps pieces to ids, for one language or for both. In our model directory, a piece has
the id that its SentencePiece model gives it. So both SentencePiece models are rewritten to list every row of the
vocabulary in the order of our ids. Pieces of the other language alone are marked as unused: SentencePiece decodes them
and never makes them. Single characters become ordinary pieces, because Marian looks up each character that its
SentencePiece model does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nmt_cli.errors import ModelError
from nmt_cli.tokenization.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    read_pieces,
    with_pieces,
)
from nmt_cli.tokenization.tokenizer import SPACE_MARK

_NUM_SPECIAL = 4
# The score of an unknown character is the least score of a piece, less this penalty of SentencePiece.
_UNKNOWN_PENALTY = 10.0
# A language that the text is to be translated into, as OPUS-MT writes it before the text.
_MARKED_CODE = f"{SPACE_MARK}>>"


@dataclass(frozen=True, slots=True)
class VocabularyRow:
    """A piece of ours and its row in Marian's matrices; only our padding may have no row."""

    text: str
    row: int | None


def rows_by_our_ids(
    vocabulary: Mapping[str, int], *, num_rows: int, pad: int, unknown: int, start: int, end: int
) -> list[VocabularyRow]:
    """Marian's rows by our ids: padding, unknown, the decoder's start, the end, then all others in their order.

    If Marian's decoder starts with the padding piece, that row becomes our start. Our padding then has no row: no model
    reads padding. A row without a piece in the vocabulary gets a name by its number.
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
    other_characters = UNUSED if has_bytes else NORMAL  # bytes spell them, if there are bytes
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


def num_lost_pieces(model: bytes, rows: Sequence[VocabularyRow]) -> int:
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
