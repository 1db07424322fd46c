"""SentencePiece models as other programs train them."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import sentencepiece

from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK

OUR_IDS = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}


def train_spm(lines: Iterable[str], **options: Any) -> bytes:
    """A model that SentencePiece trains on lines, with these options of its own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options
    )
    return model.getvalue()
