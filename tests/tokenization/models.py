"""Small SentencePiece models: ours, and as other programs train them."""

from __future__ import annotations

import functools
import io
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece

from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, TokenizerKind
from nmt_cli.tokenization.train_sentencepiece import train_tokenizer
from tests.preparing.corpus_files import invented_pairs

OUR_IDS = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
TEXT = [side for pair in invented_pairs(400, seed=3) for side in pair]


@functools.cache
def trained(kind: TokenizerKind) -> bytes:
    """A vocabulary of ours, trained on TEXT, that cuts most words."""
    with tempfile.TemporaryDirectory() as folder:
        file, lines = Path(folder) / "source.spm", [line.encode() for line in TEXT]
        train_tokenizer(
            lines, vocab_size=400, kind=kind, character_coverage=1.0, symbols=[], user_symbols=[], output=file
        )
        return file.read_bytes()


def train_spm(lines: Iterable[str], **options: Any) -> bytes:
    """A model that SentencePiece trains on lines, with these options of its own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options
    )
    return model.getvalue()
