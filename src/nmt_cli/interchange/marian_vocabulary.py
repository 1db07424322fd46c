"""The vocabulary of a Marian directory in our order: its rows under our ids, its two SentencePiece models to match.

There a SentencePiece model gives pieces as text, and vocab.json, which serves both languages or one, their ids. Here a
piece's id is SentencePiece's. So both models are rewritten to list every row of the vocabulary, in the order of our
ids. Of the rows that are the other language's, single characters are added, since Marian looks up a character that the
model does not know; other pieces are marked as unused, which the model never makes and always can read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nmt_cli.errors import ModelError
from nmt_cli.interchange.huggingface_engine import our_piece, row_name
from nmt_cli.interchange.piece_model import (
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

_NUM_SPECIAL = 4
# What SentencePiece takes off the score of its least likely piece for a character that it does not know.
_UNKNOWN_PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """A piece of ours, and which row of their matrices it has; None: no row, only our padding has none."""

    text: str
    row: int | None


def rows_by_our_ids(
    vocabulary: Mapping[str, int], *, num_rows: int, pad: int, unknown: int, start: int, end: int
) -> list[Row]:
    """Their rows by our ids: pad, unknown, what the decoder starts with, end, then all others in their order.

    Marian starts with the padding piece; then that row is our begin, and our padding, which no model ever sees, has
    none. Rows without a name in the vocabulary keep one of their own.
    """
    names = {number: our_piece(piece) for piece, number in vocabulary.items()}
    special = (pad, unknown, start, end)
    others = [(number, names.get(number, row_name(number))) for number in range(num_rows) if number not in special]
    taken = {name for _, name in others}
    texts = [name if name not in taken else f"<our {name[1:]}" for name in ("<pad>", "<unk>", "<s>", "</s>")]
    first = [Row(texts[0], None if pad == start else pad), *map(Row, texts[1:], special[1:])]
    return [*first, *(Row(name, number) for number, name in others)]


def rewritten(model: bytes, rows: Sequence[Row], *, where: str) -> bytes:
    """The SentencePiece model with the pieces of `rows`; it cuts text into the same pieces as before.

    A piece that the vocabulary lacks, and for which Marian reads <unk>, is left out, so that text is spelt in smaller
    pieces. ModelError where the bytes are no SentencePiece model.
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


def lost_pieces(model: bytes, rows: Sequence[Row]) -> int:
    """How many ordinary pieces of the model the vocabulary lacks."""
    present = {row.text for row in rows}
    return sum(piece.kind in (NORMAL, USER_DEFINED) and piece.text not in present for piece in read_pieces(model))


def is_language_code(text: str) -> bool:
    """True for a piece such as >>fra<<, which says before the text into which language it is to be translated."""
    return text.startswith("\u2581>>") and text.endswith("<<")
