"""Prepare data for Transformer translation models, train them, average, decode and score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt_cli.errors import NmtError

if TYPE_CHECKING:
    from nmt_cli.api import Translator, score
    from nmt_cli.decoding.terms import TermList
    from nmt_cli.decoding.translation import Translation
    from nmt_cli.recipe.loading import load_recipe
    from nmt_cli.scoring.metrics import ScoreReport

__version__ = "0.1.0"
__all__ = ["NmtError", "ScoreReport", "TermList", "Translation", "Translator", "__version__", "load_recipe", "score"]

_HOMES = {
    "TermList": "nmt_cli.decoding.terms",
    "Translation": "nmt_cli.decoding.translation",
    "Translator": "nmt_cli.api",
    "ScoreReport": "nmt_cli.scoring.metrics",
    "load_recipe": "nmt_cli.recipe.loading",
    "score": "nmt_cli.api",
}


def __getattr__(name: str) -> object:
    """The public names that need torch or sacreBLEU, imported when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """All names, for the completion of an interactive session."""
    return sorted({*globals(), *__all__})
