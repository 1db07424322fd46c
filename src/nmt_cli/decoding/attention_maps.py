"""Attention between a sentence and its translation: alignments, and maps of every layer and head.

Shapes: T target tokens or queries, S source tokens or keys, H heads, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, assert_never

import torch
from rich.cells import cell_len
from torch import Tensor
from torch.nn.functional import one_hot

from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.search.hypotheses import SourceSentence, SymbolIds
from nmt_cli.errors import DataError
from nmt_cli.model.teacher_forcing import AttentionPart, attention_weights
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.directions import Direction
from nmt_cli.templates.render import render
from nmt_cli.tokenization.pieces import SPACE_MARK

_END = "</s>"
_DIGITS = 3


# Below it, a source piece that nearly no target piece attends to would attract them.
_MIN_COLUMN_SUM = 0.1
# Source pieces with this weight of a guided head are aligned, beside the one with the largest.
_GUIDED_WEIGHT = 0.3


def alignment_layer(model: Transformer) -> int:
    """The decoder layer that gives alignments: the guided one, or else that of `layer_of_alignments`."""
    return layer_of_alignments(len(model.decoder)) if model.guided_layer is None else model.guided_layer


def layer_of_alignments(layers: int) -> int:
    """The index of the decoder layer that aligns best: the last of a few layers, or else the last but one.

    Garg et al. 2019, arXiv:1909.02074, section 3.2: of six layers it has the lowest alignment error. Of two or three
    layers it is the last (docs/design/search.md#alignments).
    """
    return layers - 1 if layers <= 3 else layers - 2


def aligned_pieces(weights_TS: Tensor, *, is_guided: bool) -> list[tuple[int, int]]:
    """Pairs of the positions of a source and of a target piece, from the attention between them.

    Each target piece has the source piece with the largest weight. A weight counts by its share in the attention to the
    source piece, because all target pieces attend to a few, such as the full stop. A guided head has learnt not to. It
    also divides its attention between pieces that belong together, so each of them counts.
    """
    if not weights_TS.numel():
        return []
    if is_guided:
        is_aligned_TS = weights_TS >= weights_TS.amax(dim=-1, keepdim=True).clamp(max=_GUIDED_WEIGHT)
        return [(source, target) for target, source in is_aligned_TS.nonzero().tolist()]
    shares_TS = weights_TS / (weights_TS.sum(dim=0) + _MIN_COLUMN_SUM)
    return [(source, target) for target, source in enumerate(shares_TS.argmax(dim=-1).tolist())]


def alignment_heads(model: Transformer) -> int:
    """The heads of that layer, from the first on, whose mean gives alignments: the guided one, or else all."""
    return model.config.heads if model.guided_layer is None else 1


def align(
    models: Sequence[Transformer],
    sources: Sequence[SourceSentence],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device,
) -> list[list[tuple[int, int]]]:
    """The pairs of source and target pieces of each sentence, by the mean attention of all heads and models.

    If models were trained with guided alignment, only their guided heads count. Targets are without EOS: a piece may
    attend to EOS and to symbols, but is not aligned to them.
    """
    guided = [model for model in models if model.guided_layer is not None]
    encoder_rows = [source.encoder_ids for source in sources]
    # A piece is predicted from the pieces before it, so the last one is no input. A guided head aligns what is read.
    inputs = [[*source.start_ids, *(ids if guided else ids[:-1])] for source, ids in zip(sources, targets, strict=True)]
    weights_by_model = [
        [
            weights_HTS[: alignment_heads(model)].mean(dim=0)
            for weights_HTS in attention_weights(
                model, encoder_rows, inputs, part="cross", layers=[alignment_layer(model)], device=device
            )[0]
        ]
        for model in guided or models
    ]
    alignments = []
    for source, ids, *weights_of_sentence in zip(sources, targets, *weights_by_model, strict=True):
        mean_TS = torch.stack(weights_of_sentence).mean(dim=0)
        mean_TS = mean_TS[len(mean_TS) - len(ids) :, len(source.symbols.source) : -1]
        alignments.append(aligned_pieces(mean_TS, is_guided=bool(guided)))
    return alignments


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """Weights [L, H, T, S], whose rows sum to 1, and readable names of the rows and columns.

    With `cross` each row is the target token that is predicted, and each column a source token.
    """

    part: AttentionPart
    rows: list[str]
    columns: list[str]
    weights: Tensor

    def as_json(self) -> dict[str, Any]:
        """The map as JSON, with rounded weights."""
        return {
            "part": self.part,
            "rows": self.rows,
            "columns": self.columns,
            "weights": _rounded(self.weights),
        }

    def panels_as_json(self, *, layers: Sequence[int], heads: Sequence[int | None]) -> dict[str, Any]:
        """Some layers and heads as JSON, each with a title and its rounded weights."""
        panels = [{"title": title, "weights": _rounded(weights)} for title, weights in self._panels(layers, heads)]
        return {"part": self.part, "rows": self.rows, "columns": self.columns, "panels": panels}

    def as_svg(self, *, layers: Sequence[int], heads: Sequence[int | None]) -> str:
        """The map as a drawing, with a line of panels per layer, and a panel per head."""
        return render(
            "attention.svg",
            attention=self,
            panels=[(title, weights.tolist()) for title, weights in self._panels(layers, heads)],
            per_line=len(heads),
            row_name_width=max(map(cell_len, self.rows)),
            column_name_width=max(map(cell_len, self.columns)),
        )

    def _panels(self, layers: Sequence[int], heads: Sequence[int | None]) -> list[tuple[str, Tensor]]:
        """A title and weights [T, S] of each layer and head, both from 0; the head None is the mean of all heads."""
        return [
            (f"layer {layer + 1}, mean of all heads", self.weights[layer].mean(dim=0))
            if head is None
            else (f"layer {layer + 1}, head {head + 1}", self.weights[layer, head])
            for layer in layers
            for head in heads
        ]


def _rounded(weights: Tensor) -> Any:
    """Nested lists of weights."""
    return weights.double().round(decimals=_DIGITS).tolist()


def attention_between_pieces(
    loaded: LoadedModel,
    source: str,
    target: str | None,
    *,
    direction: Direction,
    part: AttentionPart,
    device: torch.device,
) -> AttentionMap:
    """The map between pieces, with the symbols of a direction; DataError if a text is blank or too long for the model.

    Only the map of the encoder needs no target.
    """
    source_ids = loaded.source.encode_source([source])[0]
    target_ids = [] if target is None else loaded.target.encode_target([target])[0]
    symbols = SymbolIds.of(direction, source=loaded.source, target=loaded.target)
    max_pieces = loaded.model.config.max_positions - 1 - max(map(len, symbols))
    given = {"sentence": source_ids} if target is None else {"sentence": source_ids, "translation": target_ids}
    for name, ids in given.items():
        if not ids:
            hint = "give a sentence" + (" and its translation" if target is not None else "")
            raise DataError(f"the {name} is blank", where=name, hint=hint)
        if len(ids) > max_pieces:
            message = f"the {name} has {len(ids):,} pieces, and the model takes {max_pieces:,}"
            raise DataError(message, where=name, hint="give a shorter sentence")
    sentence = SourceSentence(source_ids, symbols=symbols)
    layers = range(len(loaded.model.encoder if part == "encoder" else loaded.model.decoder))
    weights_by_layer = attention_weights(
        loaded.model,
        [sentence.encoder_ids],
        [[*sentence.start_ids, *target_ids]],
        part=part,
        layers=layers,
        device=device,
    )
    weights = torch.stack([weights_HTS for (weights_HTS,) in weights_by_layer]).cpu()
    source_pieces = [*loaded.source.pieces([*symbols.source, *source_ids]), _END]
    target_pieces = loaded.target.pieces([*symbols.target, *target_ids])
    match part:
        case "cross":
            return AttentionMap(part, [*target_pieces, _END], source_pieces, weights)
        case "encoder":
            return AttentionMap(part, source_pieces, source_pieces, weights)
        case "decoder":
            return AttentionMap(part, [*target_pieces, _END], ["<s>", *target_pieces], weights)
        case other:
            assert_never(other)


def attention_between_words(
    loaded: LoadedModel, source: str, target: str, *, direction: Direction, device: torch.device
) -> AttentionMap:
    """The cross-attention between whitespace-separated words; the ends of both sentences are the last row and column.

    Weights are summed over the pieces of a source word, and averaged over the pieces of a target word.
    """
    source, target = " ".join(source.split()), " ".join(target.split())
    by_piece = attention_between_pieces(loaded, source, target, direction=direction, part="cross", device=device)
    target_words, source_words = _word_numbers(by_piece.rows), _word_numbers(by_piece.columns)
    target_membership, source_membership = _word_membership(target_words), _word_membership(source_words)
    target_means = target_membership / target_membership.sum(dim=1, keepdim=True)
    weights = target_means @ by_piece.weights @ source_membership.mT
    rows = _word_names(target, by_piece.rows, target_words)
    columns = _word_names(source, by_piece.columns, source_words)
    return AttentionMap("cross", rows, columns, weights)


def _word_numbers(pieces: Sequence[str]) -> list[int]:
    """For each piece, the number of its word; the end of the sentence counts as a word."""
    begins_word = [*(piece.startswith(SPACE_MARK) for piece in pieces[1:-1]), True]
    return list(accumulate(begins_word, initial=0))


def _word_membership(word_numbers: Sequence[int]) -> Tensor:
    """A matrix with a row per word and a column per piece: 1 if the piece belongs to the word, otherwise 0."""
    return one_hot(torch.tensor(word_numbers)).mT.float()


def _word_names(text: str, pieces: Sequence[str], word_numbers: Sequence[int]) -> list[str]:
    """The words of the text. If the tokenizer finds other words, the words of its pieces, which may be bytes."""
    names = [*text.split(), _END]
    if len(names) == word_numbers[-1] + 1:
        return names
    joined = [""] * (word_numbers[-1] + 1)
    for piece, number in zip(pieces, word_numbers, strict=True):
        joined[number] += piece
    return [name.strip(SPACE_MARK) for name in joined]
