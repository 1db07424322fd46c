"""Which words may come next in a translation that has begun, as far as one look at the model tells.

Shapes: V vocabulary.
"""

from __future__ import annotations

import torch

from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.model.packing import pack
from nmt_cli.tokenization.tokenizer import BOS, EOS

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
