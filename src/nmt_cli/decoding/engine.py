"""What a translator asks of an engine, and how one is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.search import Source
from nmt_cli.errors import UsageError
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import Tokenizer

EngineName = Literal["torch", "ctranslate2"]


@dataclass(frozen=True, slots=True)
class Details:
    """What is wanted of a hypothesis beside its pieces and score: terms of ln P, and places in the source."""

    piece_log_probs: bool
    alignment: bool


class Engine(Protocol):
    """One model, or several that translate together, on one device and in one precision."""

    @property
    def name(self) -> EngineName:
        """Which program computes."""

    @property
    def precision(self) -> str:
        """What matrix products are computed in: fp32, bf16 or int8."""

    @property
    def device(self) -> str:
        """Where: cpu, cuda:0 and so on."""

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
        """The most pieces on a side."""

    @property
    def longest_source(self) -> int | None:
        """Pieces, EOS not counted, of the longest source sentence in training; None where that is not known."""

    @property
    def narrow(self) -> int:
        """Source tokens, EOS counted, below which a sentence is not searched together with longer ones; 0 for none."""

    def check(self, config: DecodingConfig) -> None:
        """Raise UsageError where the engine cannot search like this."""

    def search(
        self, sources: Sequence[Source], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; of one without pieces the empty one."""


def engine_name(name: str) -> EngineName | Literal["auto"]:
    """The engine of that name; UsageError where there is none."""
    match name:
        case "torch" | "ctranslate2" | "auto":
            return name
        case _:
            raise UsageError(
                f"there is no engine called {name!r}", where="--engine", hint="take one of: torch, ctranslate2, auto"
            )
