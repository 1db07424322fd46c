"""The likely next words of a translation that has begun, and the best translation with each of them.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.translation import Translation
from nmt_cli.model.forced import next_log_probs
from nmt_cli.tokenization.tokenizer import BOS, EOS, SPACE_MARK, as_in_training

# Label smoothing gives every piece a little probability; likely pieces have far more.
_MIN_PROBABILITY = 3e-4
# The most probable pieces, among which we look for beginnings of words.
_MAX_PIECES = 64


def likely_next_pieces(loaded: LoadedModel, source: str, prefix: str, *, count: int, device: torch.device) -> list[str]:
    """At most `count` pieces that may begin the word after `prefix` in a translation of `source`, likeliest first.

    `prefix` ends with a whole word; source and prefix must be short enough for the model.
    """
    source_ids, prefix_ids = loaded.source.encode([as_in_training(source)])[0], loaded.target.encode([prefix])[0]
    found = next_log_probs(loaded.model, [*source_ids, EOS], [BOS, *prefix_ids], device=device)
    probabilities_V = found.exp().cpu()
    likely = probabilities_V.topk(min(_MAX_PIECES, len(probabilities_V)))
    ids = [
        index
        for probability, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        if probability >= _MIN_PROBABILITY
    ]
    pieces = loaded.target.pieces(ids)
    return [piece[1:] for piece in pieces if piece.startswith(SPACE_MARK) and len(piece) > 1][:count]


def best_by_next_word(translations: Sequence[Translation], prefix: str) -> dict[str, Translation]:
    """The best translation for each word after `prefix`, best first; translations without the prefix are ignored."""
    begun = prefix.split()
    found: dict[str, Translation] = {}
    for one in sorted(translations, key=lambda one: -one.score):
        words = one.text.split()
        if words[: len(begun)] == begun and len(words) > len(begun):
            found.setdefault(words[len(begun)], one)
    return found
