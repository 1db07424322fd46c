"""Users' own SentencePiece models with our ids: they cut text as SentencePiece cuts it with the original."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.sentencepiece_model import has_our_ids, normalization, with_our_ids
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from tests.tokenization.models import OUR_IDS, train_spm
from tests.training.tiny import parallel_text

LINES = [side for pair in parallel_text(600, seed=5) for side in pair]
# As spm_train, fairseq and Marian have them, OpenNMT's and T5's, and ours.
IDS: dict[str, dict[str, Any]] = {
    "standard": {},
    "pad last": {"pad_id": 3},
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "own names": {"pad_id": 2, "eos_id": 0, "unk_id": 3, "bos_id": 1, "unk_piece": "[UNK]", "pad_piece": "[PAD]"},
    "pad as text": {"user_defined_symbols": "<pad>,<sep>", "control_symbols": "<2de>"},
    "ours, without bytes": OUR_IDS,
}


@functools.cache
def own(
    ids: str = "standard", *, model_type: str = "unigram", bytes_too: bool = False, rules: str = "identity"
) -> bytes:
    """A model that somebody else has trained."""
    return train_spm(
        LINES,
        model_type=model_type,
        vocab_size=420 if bytes_too else 150,
        hard_vocab_limit=False,
        byte_fallback=bytes_too,
        normalization_rule_name=rules,
        **IDS[ids],
    )


def processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("ids", list(IDS))
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("bytes_too", [False, True])
def test_text_is_cut_into_the_pieces_of_the_original(ids: str, model_type: str, bytes_too: bool) -> None:
    model = own(ids, model_type=model_type, bytes_too=bytes_too)
    original, adapted = processor(model), with_our_ids(model)
    tokenizer = Tokenizer(adapted)
    assert has_our_ids(adapted)
    lines = [*LINES, "a  b", "Hund " * 50, "", *(["<sep> the dog<pad>"] if ids == "pad as text" else [])]
    for line, row in zip(lines, tokenizer.encode(lines), strict=True):
        assert tokenizer.pieces(row) == original.encode_as_pieces(line)
        assert not {PAD, UNK, BOS, EOS}.intersection(row)
        assert tokenizer.decode([row]) == [original.decode(original.encode(line))]
    is_changed = adapted != model
    assert is_changed == (ids != "ours, without bytes" or not bytes_too)
    assert len(tokenizer.byte_ids) == 256


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40))
@example("0  0")
def test_what_the_original_does_not_know_is_spelt_in_bytes_and_the_rest_stays(text: str) -> None:
    for model_type in ("unigram", "bpe"):
        model = own(model_type=model_type)
        original, tokenizer = processor(model), Tokenizer(with_our_ids(model))
        (row,) = tokenizer.encode([text])
        assert UNK not in row
        assert tokenizer.decode([row]) == [" ".join(filter(None, text.split(" ")))]
        if SPACE_MARK not in text:
            # SentencePiece joins neighbouring unknown characters to one piece.
            spelt = iter(tokenizer.pieces(row))
            for piece, number in zip(original.encode_as_pieces(text), original.encode(text), strict=True):
                if number == original.unk_id():
                    assert [next(spelt) for _ in piece.encode()] == [f"<0x{byte:02X}>" for byte in piece.encode()]
                else:
                    assert next(spelt) == piece
            assert list(spelt) == []


def test_rules_of_normalisation_stay_and_are_named() -> None:
    model = own(rules="nmt_nfkc")
    adapted = with_our_ids(model)
    assert normalization(adapted) == "nmt_nfkc"
    assert normalization(own()) is None
    original, tokenizer = processor(model), Tokenizer(adapted)
    for line in ("ｔｈｅ　ｄｏｇ", "the\u00a0dog sees\u2003ﬁne flowers"):  # full width
        assert tokenizer.pieces(tokenizer.encode([line])[0]) == original.encode_as_pieces(line)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (b"", "no SentencePiece model: it has no pieces"),
        (b"the Hund\n", "no SentencePiece model"),
        (own()[:1000], "no SentencePiece model"),
    ],
)
def test_other_files_are_refused(model: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        with_our_ids(model)


@pytest.mark.parametrize(("model_type", "name"), [("word", "word"), ("char", "character")])
def test_models_of_words_and_characters_are_refused(model_type: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"^a {name} model, not unigram or BPE$"):
        with_our_ids(own(model_type=model_type))
