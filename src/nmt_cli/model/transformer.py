"""The Transformer (section 3) on packed sentences, whole for training and token by token for search.

Shapes: B sentences, M packed source tokens, N packed target tokens, R rows of a search, D d_model, V target vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt_cli.model.decoder_cache import DecoderCache
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import DecoderLayer, EncoderLayer, Norm, norm_of, position_angles
from nmt_cli.model.packing import Layout, Packed
from nmt_cli.recipe.schema import ModelConfig, num_embedding_rows


class Positions(nn.Module):
    """A table [max_positions, D] of vectors that are added to the token at each position; learned ones are parameters.

    Rotary positions have a table without rows, because attention rotates queries and keys instead.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = (config.max_positions, config.d_model)
        match config.positions:
            case "sinusoidal":
                self.register_buffer("table", sinusoids(*size), persistent=False)
            case "sinusoidal-halves":
                self.register_buffer("table", sinusoids_in_halves(*size), persistent=False)
            case "sinusoidal-fairseq":  # its positions begin after the id of its padding, which is 1
                table = sinusoids_in_halves(config.max_positions + 2, config.d_model)[2:]
                self.register_buffer("table", table, persistent=False)
            case "learned":
                self.table = _normal_matrix(*size)
            case "rotary":
                self.register_buffer("table", torch.zeros(0, config.d_model, device="cpu"), persistent=False)
            case other:
                assert_never(other)


class Embedding(nn.Module):
    """Rows of a matrix, scaled by sqrt(d_model), plus positions, with dropout on the sum (3.4, 3.5, 5.4).

    Word dropout (Sennrich et al. 2016, arXiv:1606.02891) zeroes whole rows, and does not scale the rest.
    """

    def __init__(self, weight: nn.Parameter, positions: Positions, config: ModelConfig, *, word_dropout: float) -> None:
        super().__init__()
        self.weight = weight
        self.positions = positions
        self.dropout = Dropout(config.dropout)
        self.word_dropout = word_dropout
        self.scale = math.sqrt(config.d_model)

    def forward(self, tokens: Packed) -> Tensor:
        """The tokens [N] of sentences to [N, D]."""
        rows = self.drop_words(self.look_up_ids(tokens.ids), tokens)
        return self.first_layer_input(rows, self.look_up_positions(tokens.positions))

    def step_input(self, ids: Tensor, positions: Tensor) -> Tensor:
        """One token of each row of a search, ids [R] at positions [R] or all at one position [1], to [R, D]."""
        return self.first_layer_input(self.look_up_ids(ids), self.look_up_positions(positions))

    def look_up_ids(self, ids: Tensor) -> Tensor:
        """The rows [N, D] of the matrix for ids [N]."""
        return self._look_up(self.weight, ids)

    def drop_words(self, rows: Tensor, tokens: Packed) -> Tensor:
        """The rows [N, D] of tokens, zero for cut tokens (`Packed.is_cut`) and, in training, for dropped words."""
        if self.training and self.word_dropout > 0:
            tokens = tokens.cut(torch.rand(tokens.ids.shape, device=rows.device) < self.word_dropout)
        return tokens.zero_cut_rows(rows)

    def look_up_positions(self, positions: Tensor) -> Tensor | None:
        """The rows [N, D] of the table for positions [N]; None if it has none."""
        return self._look_up(self.positions.table, positions) if len(self.positions.table) else None

    def first_layer_input(self, rows: Tensor, encodings: Tensor | None) -> Tensor:
        """Dropout(scale * rows + encodings) [N, D], for rows [N, D] of the matrix and of the position table."""
        summed = rows * self.scale if encodings is None else rows * self.scale + encodings
        return self.dropout.forward(summed.to(self.weight.dtype))

    def _look_up(self, table: Tensor, indices: Tensor) -> Tensor:
        # On a CPU torch sums the gradients of a row in the row's precision: a frequent one needs float32.
        sums_gradients = self.training and table.requires_grad and table.device.type == "cpu"
        return F.embedding(indices, table.float() if sums_gradients else table)


class Transformer(nn.Module):
    """Encoder and decoder; embeddings are shared as the recipe's `tying` says.

    Raises ValueError if source and target are to share embeddings but differ in vocabulary.
    """

    def __init__(self, config: ModelConfig, *, source_vocab: int, target_vocab: int) -> None:
        super().__init__()
        if config.ties.source and source_vocab != target_vocab:
            raise ValueError(f"one embedding needs one vocabulary, not {source_vocab} and {target_vocab} pieces")
        self.config = config
        self.source_vocab, self.target_vocab = source_vocab, target_vocab
        target = _embedding_matrix(target_vocab, config)
        source = target if config.ties.source else _embedding_matrix(source_vocab, config)
        word_dropout = config.word_dropout
        self.source_embedding = Embedding(source, Positions(config), config, word_dropout=word_dropout.source)
        self.target_embedding = Embedding(target, Positions(config), config, word_dropout=word_dropout.target)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm: Norm | nn.Identity = norm_of(config) if config.is_pre_norm else nn.Identity()
        self.decoder_norm: Norm | nn.Identity = norm_of(config) if config.is_pre_norm else nn.Identity()
        self.output_weight = target if config.ties.output else _embedding_matrix(target_vocab, config)
        self.output_bias = nn.Parameter(torch.zeros(len(target))) if config.output_bias else None
        self.packed_output: nn.Module | None = None
        self.guided_layer: int | None = None  # the decoder layer whose first head was trained to align words
        self._initialise()

    def encode(self, source: Packed) -> Tensor:
        """The memory [M, D] of the source sentences, each ending in EOS."""
        x: Tensor = self.source_embedding(source)
        for layer in self.encoder:
            x = run_encoder_layer(layer, x, source)
        return self.encoder_norm.forward(x)

    def decode(self, target: Packed, memory: Tensor, source: Packed) -> Tensor:
        """The decoder's output [N, D] at each target token; the target starts with BOS: section 3.1's shift by one."""
        x: Tensor = self.target_embedding(target)
        for layer in self.decoder:
            x = run_decoder_layer(layer, x, target, memory, source)
        return self.decoder_norm.forward(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N, V] of the next piece for hidden [N, D]; padded rows are left out."""
        if self.packed_output is not None:
            packed: Tensor = self.packed_output(hidden)
            return packed
        return F.linear(hidden, self.output_weight, self.output_bias)[:, : self.target_vocab]

    def new_cache(self, memory: Tensor, source: Packed) -> DecoderCache:
        """An empty cache over memory [M, D] of B sentences."""
        modules = [layer.cross_attention for layer in self.decoder if isinstance(layer, DecoderLayer)]
        return DecoderCache.of_source(modules, memory, source)

    def step(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """The decoder's output [R, D] for one more token ids [R] per row; R is a multiple of the cache's sentences."""
        step = cache.begin_step(len(ids), like=self.output_weight)
        x = self.target_embedding.step_input(ids, step.position)
        for layer, layer_cache in zip(self.decoder, cache.layers, strict=True):
            x = layer(
                x,
                self_attend=partial(layer_cache.self_attend, step=step),
                cross_attend=partial(layer_cache.cross_attend, bias=cache.source_bias),
            )
        return self.decoder_norm.forward(x)

    def num_parameters(self) -> int:
        """Parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _initialise(self) -> None:
        """Fill matrices from Xavier's uniform distribution, a fused one as a whole, and biases with zeros."""
        # As tensor2tensor at 3d9c62f2 does with `uniform_unit_scaling`.
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def run_encoder_layer(layer: nn.Module, x: Tensor, source: Layout) -> Tensor:
    """The output [M, D] of a layer of the encoder for x [M, D]."""
    out: Tensor = layer(x, self_attend=lambda module, y: module(y, source))
    return out


def run_decoder_layer(layer: nn.Module, x: Tensor, target: Layout, memory: Tensor, source: Layout) -> Tensor:
    """The output [N, D] of a layer of the decoder for x [N, D] and memory [M, D]."""
    out: Tensor = layer(
        x,
        self_attend=lambda module, y: module(y, target),
        cross_attend=lambda module, y: module(y, target, memory, source),
    )
    return out


def _embedding_matrix(vocab: int, config: ModelConfig) -> nn.Parameter:
    """Rows from N(0, 1 / d_model); their number is a multiple of the recipe's `embedding_multiple`."""
    return _normal_matrix(num_embedding_rows(vocab, multiple=config.embedding_multiple), config.d_model)


def _normal_matrix(num_rows: int, d_model: int) -> nn.Parameter:
    """Rows from N(0, 1 / d_model)."""
    weight = nn.Parameter(torch.empty(num_rows, d_model))
    if not weight.is_meta:  # there torch would import its compiler, which takes seconds
        nn.init.normal_(weight, std=d_model**-0.5)
    return weight


def sinusoids(num_positions: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(same), [positions, d_model]; section 3.5."""
    angles = position_angles(num_positions, d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def sinusoids_in_halves(num_positions: int, d_model: int) -> Tensor:
    """tensor2tensor's layout: all sines, then all cosines, exponent i / (d_model / 2 - 1), [positions, d_model]."""
    half = d_model // 2
    position = torch.arange(num_positions, dtype=torch.float64, device="cpu")[:, None]
    exponent = torch.arange(half, dtype=torch.float64, device="cpu") / max(half - 1, 1)
    angles = position * torch.exp(-math.log(10000.0) * exponent)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()
