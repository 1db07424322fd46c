"""Prepare data for Transformer translation models, train them, average, decode and score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt_cli.errors import NmtError

if TYPE_CHECKING:
    from nmt_cli.decoding.translation import Translation
    from nmt_cli.decoding.translator import Translator
    from nmt_cli.recipe.loading import load_recipe
    from nmt_cli.scoring.metrics import ScoreReport

__version__ = "0.1.0"
__all__ = ["NmtError", "ScoreReport", "Translation", "Translator", "__version__", "load_recipe"]

_HOMES = {
    "Translation": "nmt_cli.decoding.translator",
    "Translator": "nmt_cli.decoding.translator",
    "ScoreReport": "nmt_cli.scoring.metrics",
    "load_recipe": "nmt_cli.recipe.loading",
}


def __getattr__(name: str) -> object:
    """The public names that need torch or sacreBLEU, imported when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
