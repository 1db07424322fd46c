"""The attention of every layer and head between the pieces of a sentence and of a translation of it.

Shapes: T queries, S keys, H heads, K = d_k, L layers, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

import torch
from torch import Tensor, nn

from nmt_cli.bundle import directory as model_directory
from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.errors import DataError
from nmt_cli.model.layers import CrossAttention, SelfAttention
from nmt_cli.model.packing import pack
from nmt_cli.tokenization.tokenizer import BOS, EOS

Part = Literal["cross", "encoder", "decoder"]

_WORD_START = "\u2581"
_END = "</s>"
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """Weights [L, H, T, S], each row of which sums to 1, and what the rows and columns are, as people read it.

    With `cross` a row is the target token that is being predicted, a column a source token.
    """

    part: Part
    rows: list[str]
    columns: list[str]
    weights: Tensor

    def as_json(self) -> dict[str, Any]:
        """The map as JSON takes it, weights rounded."""
        weights = [
            [[[round(w, _DIGITS) for w in row] for row in head] for head in layer] for layer in self.weights.tolist()
        ]
        return {"part": self.part, "rows": self.rows, "columns": self.columns, "weights": weights}


class AttentionMaps:
    """Attention of one model, which is given the translation and only asked what it looks at."""

    def __init__(self, loaded: LoadedModel, *, device: torch.device) -> None:
        self._loaded = loaded
        self._device = device

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> AttentionMaps:
        """For a model directory, in float32 on the CPU; ModelError where it is no model or a damaged one."""
        device = torch.device("cpu")
        return cls(model_directory.load(Path(directory), device=device, dtype=torch.float32), device=device)

    def pieces(self, source: str, target: str, *, part: Part) -> AttentionMap:
        """The map between pieces; DataError where a text is blank or too long for the model."""
        source_ids, target_ids = self._encode(source, target)
        source_pieces = [*self._loaded.source.pieces(source_ids), _END]
        target_pieces = self._loaded.target.pieces(target_ids)
        weights = self._weights(source_ids, target_ids, part=part)
        match part:
            case "cross":
                return AttentionMap(part, [*target_pieces, _END], source_pieces, weights)
            case "encoder":
                return AttentionMap(part, source_pieces, source_pieces, weights)
            case "decoder":
                return AttentionMap(part, [*target_pieces, _END], ["<s>", *target_pieces], weights)
            case other:
                assert_never(other)

    def cross_words(self, source: str, target: str) -> AttentionMap:
        """The map between whitespace-separated words; the ends of both sentences are the last row and column.

        It is the sum over a source word's pieces, and of that the mean over a target word's.
        """
        source, target = " ".join(source.split()), " ".join(target.split())
        found = self.pieces(source, target, part="cross")
        rows, columns = _word_of_each(found.rows), _word_of_each(found.columns)
        into = torch.zeros(columns[-1] + 1, len(columns))
        into[columns, torch.arange(len(columns))] = 1
        mean = torch.zeros(rows[-1] + 1, len(rows))
        mean[rows, torch.arange(len(rows))] = 1
        weights = (mean / mean.sum(dim=1, keepdim=True)) @ found.weights @ into.mT
        return AttentionMap("cross", _names(target, found.rows, rows), _names(source, found.columns, columns), weights)

    def _encode(self, source: str, target: str) -> tuple[list[int], list[int]]:
        source_ids, target_ids = self._loaded.source.encode([source])[0], self._loaded.target.encode([target])[0]
        positions = self._loaded.model.config.max_positions
        for name, ids in (("sentence", source_ids), ("translation", target_ids)):
            if not ids:
                raise DataError(f"the {name} is blank", where=name, hint="give a sentence and its translation")
            if len(ids) >= positions:
                hint = "give a shorter sentence"
                raise DataError(
                    f"the {name} has {len(ids):,} pieces, and the model takes {positions - 1:,}", where=name, hint=hint
                )
        return source_ids, target_ids

    def _weights(self, source_ids: Sequence[int], target_ids: Sequence[int], *, part: Part) -> Tensor:
        model = self._loaded.model
        layers = model.encoder if part == "encoder" else model.decoder
        name = "cross_attention" if part == "cross" else "self_attention"
        modules = [getattr(layer, name) for layer in layers]
        source = pack([[*source_ids, EOS]], device=self._device)
        target = pack([[BOS, *target_ids]], device=self._device)
        with torch.inference_mode(), _inputs_of(modules) as inputs:
            model.decode(target, model.encode(source), source)
            return torch.stack([_attention(module, *inputs[module]) for module in modules]).cpu()


@contextmanager
def _inputs_of(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, tuple[Any, ...]]]:
    """What each module is called with while the block runs."""
    inputs: dict[nn.Module, tuple[Any, ...]] = {}

    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[module] = arguments

    handles = [module.register_forward_pre_hook(keep) for module in modules]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _attention(module: nn.Module, x: Tensor, layout: Any, *rest: Any) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) [H, T, S] of one sentence, of the module's own Q and K, in float32 (equation 1)."""
    if isinstance(module, CrossAttention):
        q = module.q(x).unflatten(-1, (module.heads, module.d_k))
        k, _ = module.keys_values(rest[0])
        return _softmax(q, k, None)
    assert isinstance(module, SelfAttention)
    q, k, _ = module.project(x, layout.positions)
    places = torch.arange(len(x), device=x.device)
    distance = places[:, None] - places
    mask = distance >= 0 if module.is_causal else torch.ones_like(distance, dtype=torch.bool)
    if module.window is not None:
        mask &= distance.abs() <= module.window // 2
    return _softmax(q, k, mask)


def _softmax(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    scores_HTS = q.float().transpose(0, 1) @ k.float().transpose(0, 1).mT * q.size(-1) ** -0.5
    if mask is not None:
        scores_HTS = scores_HTS.masked_fill(~mask, -torch.inf)
    weights_HTS: Tensor = scores_HTS.softmax(-1)
    return weights_HTS


def _word_of_each(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece is of; the end is one by itself."""
    words, number = [], -1
    for place, piece in enumerate(pieces):
        if place == 0 or piece.startswith(_WORD_START) or place == len(pieces) - 1:
            number += 1
        words.append(number)
    return words


def _names(text: str, pieces: Sequence[str], words: Sequence[int]) -> list[str]:
    """The words of the text; those of its pieces, which may be bytes, where the tokenizer sees others."""
    names = [*text.split(), _END]
    return names if len(names) == words[-1] + 1 else [*_joined(pieces, words)]


def _joined(pieces: Sequence[str], words: Sequence[int]) -> Iterator[str]:
    for number in range(words[-1] + 1):
        yield "".join(piece for piece, word in zip(pieces, words, strict=True) if word == number).strip(_WORD_START)
