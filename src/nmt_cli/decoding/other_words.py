"""Translations of a line that differ in the word after a beginning that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nmt_cli.decoding.engine import Engine
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.translator import Translation


def other_beginnings(engine: Engine, source: str, prefix: str, *, number: int) -> list[str]:
    """At most `number` beginnings of a translation of `source`, each `prefix` and a bit of the word after it.

    The likeliest is first; where nothing is likely to follow, it is `prefix` alone. UsageError where the engine does
    not tell what may follow.
    """
    import torch

    from nmt_cli.decoding.next_words import next_beginnings
    from nmt_cli.decoding.torch_engine import TorchEngine

    if not isinstance(engine, TorchEngine) or len(engine.loaded) > 1:
        what = f"the engine {engine.name}" if not isinstance(engine, TorchEngine) else "several models together"
        raise UsageError(
            f"{what} cannot tell which words may follow",
            where="--next-words",
            hint="take --engine torch with one model",
        )
    begun = " ".join(prefix.split())
    device = torch.device(engine.device)
    following = next_beginnings(engine.loaded[0], source, begun, number=number, device=device)
    return [f"{begun} {one}".strip() for one in following] or [begun]


def best_of_each_word(translations: Sequence[Translation], prefix: str) -> Translation:
    """The best translation for each word after `prefix`: the best of all, with the others as alternatives."""
    best, *others = list(by_next_word(translations, prefix).values()) or _ranked(translations)[:1]
    return replace(best, alternatives=tuple(others))


def by_next_word(translations: Sequence[Translation], prefix: str) -> dict[str, Translation]:
    """The best translation for each word after `prefix`, the best first; those that begin otherwise are left out."""
    begun = prefix.split()
    found: dict[str, Translation] = {}
    for one in _ranked(translations):
        words = one.text.split()
        if words[: len(begun)] == begun and len(words) > len(begun):
            found.setdefault(words[len(begun)], one)
    return found


def _ranked(translations: Sequence[Translation]) -> list[Translation]:
    return sorted(translations, key=lambda one: -one.score)
