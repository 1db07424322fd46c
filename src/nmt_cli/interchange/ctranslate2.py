"""A CTranslate2 directory as the verification of an export asks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nmt_cli.decoding.ctranslate2_engine import PATIENCE
from nmt_cli.decoding.ctranslate2_model import library
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, PAD, UNK, Tokenizer


class CTranslate2Engine:
    """A CTranslate2 directory on the CPU, as the verification asks it; its pieces are those of `loaded`."""

    def __init__(self, directory: Path, *, source: Tokenizer, target: Tokenizer) -> None:
        self._source = source
        self._translator = library().Translator(
            str(directory), device="cpu", inter_threads=1, intra_threads=torch.get_num_threads()
        )
        self._never = [[piece] for piece in target.pieces([PAD, UNK, BOS])]

    @property
    def name(self) -> str:
        """The program and what it computes in, which depends on the CPU as well as on the directory."""
        return f"CTranslate2 ({self._translator.compute_type})"

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """The source pieces of each line: the tokenizer is the model's own."""
        return [self._source.pieces(row) for row in self._source.encode(lines)]

    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        """ln P of each target piece and of the end after them."""
        results = self._translator.score_batch(list(sources), list(targets), max_batch_size=32)
        return [list(map(float, result.log_probs)) for result in results]

    def search(self, sources: Sequence[list[str]], *, config: DecodingConfig, longest: int) -> list[list[str]]:
        """The best hypothesis of each source, of at most `longest` pieces, by the length^alpha form of the penalty."""
        results = self._translator.translate_batch(
            list(sources),
            beam_size=config.beam,
            patience=PATIENCE,
            length_penalty=config.length_penalty,
            min_decoding_length=0,  # by default a translation is never empty
            max_decoding_length=longest,
            max_input_length=0,
            max_batch_size=32,
            suppress_sequences=self._never,
        )
        return [list(result.hypotheses[0]) for result in results]
