"""The interface between a translator and its engine, and the parts of an engine's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import Tokenizer

EngineName = Literal["torch", "ctranslate2"]


@dataclass(frozen=True, slots=True)
class Details:
    """The optional parts of a hypothesis: log-probabilities of its pieces, and its alignment to the source."""

    piece_log_probs: bool
    alignment: bool


class Engine(Protocol):
    """One model, or several that translate together, on one device and in one precision."""

    @property
    def name(self) -> EngineName:
        """The name of the engine."""

    @property
    def precision(self) -> str:
        """The precision of matrix products: fp32, bf16 or int8."""

    @property
    def device(self) -> str:
        """The device: cpu, cuda:0 and so on."""

    @property
    def source(self) -> Tokenizer:
        """The source's tokenizer."""

    @property
    def target(self) -> Tokenizer:
        """The target's tokenizer."""

    @property
    def decoding(self) -> DecodingConfig:
        """The model's own decoding section."""

    @property
    def max_positions(self) -> int:
        """The maximum number of pieces per side."""

    @property
    def longest_source(self) -> int | None:
        """Pieces, without EOS, of the longest source sentence in training; None if it is unknown."""

    @property
    def narrow(self) -> int:
        """Sentences with fewer source tokens, with EOS, are not searched together with longer ones; 0: all are."""

    def check(self, config: DecodingConfig) -> None:
        """Raise UsageError if the engine does not support these settings."""

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one."""
