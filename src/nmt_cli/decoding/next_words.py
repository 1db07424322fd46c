"""Which words may come next in a translation that has begun, and the best translation with each of them.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.decoding.engine import Engine
from nmt_cli.errors import UsageError
from nmt_cli.model.packing import pack
from nmt_cli.tokenization.tokenizer import BOS, EOS

if TYPE_CHECKING:
    from nmt_cli.decoding.translator import Translation

_WORD_START = "\u2581"
# A model that was trained with smoothed labels gives every piece a little; far above that is what it means.
_LEAST_PROBABILITY = 3e-4
# Looked through for pieces that begin a word.
_MOST_PIECES = 64


def next_beginnings(loaded: LoadedModel, source: str, prefix: str, *, number: int, device: torch.device) -> list[str]:
    """At most `number` beginnings of the word after `prefix` in a translation of `source`, the likeliest first.

    Each is a piece, and so perhaps a part of a word. `prefix` ends with a whole word; source and prefix must be short
    enough for the model.
    """
    source_ids, prefix_ids = loaded.source.encode([source])[0], loaded.target.encode([prefix])[0]
    packed = pack([[*source_ids, EOS]], device=device)
    begun = pack([[BOS, *prefix_ids]], device=device)
    model = loaded.model
    with torch.inference_mode():
        hidden = model.decode(begun, model.encode(packed), packed)
        probabilities_V = model.logits(hidden[-1:])[0].float().softmax(-1).cpu()
    likely = probabilities_V.topk(min(_MOST_PIECES, len(probabilities_V)))
    ids = [
        index
        for p, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        if p >= _LEAST_PROBABILITY
    ]
    pieces = loaded.target.pieces(ids)
    return [piece[1:] for piece in pieces if piece.startswith(_WORD_START) and len(piece) > 1][:number]


def other_beginnings(engine: Engine, source: str, prefix: str, *, number: int) -> list[str]:
    """At most `number` beginnings of a translation of `source`, each `prefix` and a bit of the word after it.

    The likeliest is first; where nothing is likely to follow, it is `prefix` alone. UsageError where the engine does
    not tell what may follow.
    """
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
