"""Marian's vocabularies in the order of our ids, and SentencePiece models rewritten to list them.

In a Marian directory, vocab.json maps pieces to ids, for one language or for both. In our model directory, a piece has
the id that its SentencePiece model gives it. So both SentencePiece models are rewritten to list every row of the
vocabulary in the order of our ids. Pieces of the other language alone are marked as unused: SentencePiece decodes them
and never makes them. Single characters become ordinary pieces, because Marian looks up each character that its
SentencePiece model does not know. M2M-100 has one SentencePiece model and one vocabulary for all languages; the rest is
the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.interchange.marian_model import damaged_error
from nmt_cli.tokenization.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    Piece,
    read_pieces,
    with_pieces,
)

_SPECIAL_KINDS = (CONTROL, UNKNOWN, CONTROL, CONTROL)  # of our padding, unknown piece, start and end
# SentencePiece scores an unknown character by the lowest score of a piece, less this penalty.
_UNKNOWN_PENALTY = 10.0
# The target language before a text, as in OPUS-MT: >>fra<<.
_LANGUAGE_CODE = re.compile(r">>([A-Za-z0-9][\w.-]*)<<", re.ASCII)


@dataclass(frozen=True, slots=True)
class VocabularyRow:
    """The text of a piece, and its id in Marian's vocabulary, which is its row in Marian's matrices.

    Only our padding may have no id.
    """

    text: str
    marian_id: int | None


def rows_by_our_ids(
    vocabulary: Mapping[str, int], *, num_rows: int, pad: int, unknown: int, start: int, end: int
) -> list[VocabularyRow]:
    """Marian's rows by our ids: padding, unknown, the decoder's start, the end, then all others in their order.

    If Marian's decoder starts with the padding piece, that row becomes our start. Our padding then has no id: no model
    reads padding. A row without a piece in the vocabulary gets a name by its number.
    """
    texts = {number: piece for piece, number in vocabulary.items()}
    special_ids = (None if pad == start else pad, unknown, start, end)
    ordinary = [
        VocabularyRow(texts.get(number, row_name(number)), number)
        for number in range(num_rows)
        if number not in (pad, unknown, start, end)
    ]
    texts_of_others = {row.text for row in ordinary}
    special_texts = ("<pad>", "<unk>", "<s>", "</s>")
    unique_texts = [f"<our {text[1:]}" if text in texts_of_others else text for text in special_texts]
    return [*map(VocabularyRow, unique_texts, special_ids), *ordinary]


def rewrite_with_rows(
    model: bytes, rows: Sequence[VocabularyRow], *, symbols: Collection[str] = (), file: Path
) -> bytes:
    """The SentencePiece model with the pieces of `rows`; it cuts text into the same pieces as the original model.

    The `symbols` among them become pieces that no text has.

    Marian reads <unk> for a piece that the vocabulary lacks. The new model has no such piece, so it spells the text in
    smaller pieces. Raises ModelError, which names `file`, if the bytes are no SentencePiece model.
    """
    try:
        known = {piece.text: piece for piece in read_pieces(model)}
    except ValueError as error:
        raise damaged_error(f"{file.name} is {error}", where=file) from None
    byte_pieces = {piece.text for piece in known.values() if piece.kind == BYTE}
    has_bytes = bool(byte_pieces) and byte_pieces <= {row.text for row in rows}
    scores = [piece.score for piece in known.values() if piece.kind == NORMAL]
    unknown_score = min(scores, default=0.0) - _UNKNOWN_PENALTY
    pieces = [Piece(row.text, 0.0, kind) for row, kind in zip(rows, _SPECIAL_KINDS, strict=False)]
    for row in rows[len(_SPECIAL_KINDS) :]:
        if row.text in symbols:
            pieces.append(Piece(row.text, 0.0, CONTROL))
        else:
            pieces.append(_piece_for(row.text, known.get(row.text), has_bytes=has_bytes, unknown_score=unknown_score))
    return with_pieces(model, pieces, has_bytes=has_bytes)


def marian_symbols(vocabulary: Mapping[str, int]) -> dict[str, str]:
    """The pieces that name a target language, such as >>fra<<, by their codes."""
    matches = map(_LANGUAGE_CODE.fullmatch, vocabulary)
    return {match[1]: match[0] for match in matches if match is not None}


def row_name(number: int) -> str:
    """Our name of a row that the vocabulary has no piece for."""
    return f"<row {number}>"


def names_for_marian(pieces: Sequence[str], symbols: Mapping[str, str]) -> list[str]:
    """MarianTokenizer's names of our pieces, where `symbols` has the piece of each target language.

    A code that a user types is the piece >>fra<< there.
    """
    named = {symbol: f">>{code}<<" for code, symbol in symbols.items()}
    return [named.get(piece, piece) for piece in pieces]


def _piece_for(text: str, known: Piece | None, *, has_bytes: bool, unknown_score: float) -> Piece:
    """The piece for a row of the vocabulary: the model's piece of that text, or an unused piece.

    An unknown single character becomes an ordinary piece if no byte pieces spell it.
    """
    if known is None:
        return Piece(text, unknown_score, NORMAL if len(text) == 1 and not has_bytes else UNUSED)
    if known.kind == UNKNOWN or (known.kind == BYTE and not has_bytes):
        return Piece(text, unknown_score, UNUSED)
    return known
