"""SentencePiece models taken apart and put together, read by SentencePiece itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from nmt_cli.errors import ModelError
from nmt_cli.interchange.marian_vocabulary import rewrite_with_rows, rows_by_our_ids
from nmt_cli.tokenization.sentencepiece_model import BYTE, CONTROL, UNKNOWN, read_pieces
from tests.interchange.builders import joint_vocabulary, spm


def processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_pieces_are_those_that_sentencepiece_reads(model_type: str) -> None:
    model = spm(0, model_type=model_type, byte_fallback=True)
    pieces, reader = read_pieces(model), processor(model)
    assert [piece.text for piece in pieces] == [reader.id_to_piece(place) for place in range(len(reader))]
    assert [piece.score for piece in pieces] == [reader.get_score(place) for place in range(len(reader))]
    kinds = {UNKNOWN: reader.is_unknown, CONTROL: reader.is_control, BYTE: reader.is_byte}
    for kind, is_so in kinds.items():
        assert [piece.kind == kind for piece in pieces] == [is_so(place) for place in range(len(reader))]


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(ModelError, match="no SentencePiece model") as caught:
        rewrite_with_rows(b"text\n", [], file=Path("x/source.spm"))
    assert (caught.value.where, caught.value.hint) == ("x/source.spm", "fetch the directory again, all its files")


def test_rows_keep_their_order_behind_our_special_ids() -> None:
    vocabulary = {"</s>": 0, "<unk>": 1, ">>deu<<": 2, "▁a": 3, "b": 5, "<pad>": 6}
    rows = rows_by_our_ids(vocabulary, num_rows=7, pad=6, unknown=1, start=6, end=0)
    assert [(row.text, row.marian_id) for row in rows] == [
        ("<pad>", None),
        ("<unk>", 1),
        ("<s>", 6),
        ("</s>", 0),
        (">>deu<<", 2),
        ("▁a", 3),
        ("<row 4>", 4),
        ("b", 5),
    ]
    rows = rows_by_our_ids(vocabulary | {"<s>": 4}, num_rows=7, pad=6, unknown=1, start=3, end=0)
    assert [(row.text, row.marian_id) for row in rows[:6]] == [
        ("<pad>", 6),
        ("<unk>", 1),
        ("<our s>", 3),
        ("</s>", 0),
        (">>deu<<", 2),
        ("<s>", 4),
    ]


def test_without_all_byte_pieces_unknown_characters_stay_unknown() -> None:
    source, target = (spm(side, byte_fallback=True) for side in (0, 1))
    vocabulary = joint_vocabulary(source, target, without="<0x41>")
    pad = vocabulary["<pad>"]
    rows = rows_by_our_ids(vocabulary, num_rows=len(vocabulary), pad=pad, unknown=1, start=pad, end=0)
    model = processor(rewrite_with_rows(source, rows, file=Path("source.spm")))
    assert model.unk_id() in model.encode("☃")
    assert model.encode("the moon", out_type=str) == processor(source).encode("the moon", out_type=str)
