"""Small models and sentence pairs for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

import pytest
import torch

from nmt_cli.model.packing import Packed, pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig

BOS, EOS, FIRST_PIECE = 2, 3, 4
CPU = torch.device("cpu")


def _variants() -> Iterator[tuple[str, object]]:
    """Each setting of a model with each of its values: all of a `Literal`, true and false, or a number for null."""
    for key, field in ModelConfig.model_fields.items():
        if get_origin(field.annotation) is Literal:
            yield from ((key, value) for value in get_args(field.annotation))
        elif field.annotation is bool:
            yield from ((key, value) for value in (False, True))
        elif type(None) in get_args(field.annotation):
            yield from ((key, value) for value in (None, 3))


_VARIANTS = list(_variants())
each_variant = pytest.mark.parametrize(("key", "value"), _VARIANTS, ids=[f"{key}-{value}" for key, value in _VARIANTS])


@dataclass(frozen=True)
class Pair:
    """A source that ends in EOS, and the decoder's input, which starts with BOS."""

    source: list[int]
    target: list[int]


def tiny_config(**changes: object) -> ModelConfig:
    settings: dict[str, object] = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
    settings |= {"d_k": 8, "d_v": 8, "dropout": 0.0, "max_positions": 64, "embedding_multiple": 8}
    return ModelConfig.model_validate(settings | changes)


def random_model(config: ModelConfig, *, vocab: int, seed: int, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model in evaluation mode whose biases and norms are random too, so that none can go missing unnoticed."""
    torch.manual_seed(seed)
    model = Transformer(config, source_vocab=vocab, target_vocab=vocab).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.normal_(mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return model.to(dtype)


def random_pairs(lengths: Sequence[tuple[int, int]], *, vocab: int, seed: int) -> list[Pair]:
    """Pairs of these numbers of source and target tokens, EOS or BOS among them."""
    generator = torch.Generator().manual_seed(seed)

    def pieces(count: int) -> list[int]:
        drawn: list[int] = torch.randint(FIRST_PIECE, vocab, (count,), generator=generator).tolist()
        return drawn

    return [Pair([*pieces(src - 1), EOS], [BOS, *pieces(tgt - 1)]) for src, tgt in lengths]


def packed(pairs: Sequence[Pair]) -> tuple[Packed, Packed]:
    """Source and target of a batch."""
    return pack([pair.source for pair in pairs], device=CPU), pack([pair.target for pair in pairs], device=CPU)


def logits_of(model: Transformer, pairs: Sequence[Pair]) -> list[torch.Tensor]:
    """The logits [T, V] of each pair, computed in one batch."""
    source, target = packed(pairs)
    logits = model.logits(model.decode(target, model.encode(source), source))
    return list(logits.split([len(pair.target) for pair in pairs]))
