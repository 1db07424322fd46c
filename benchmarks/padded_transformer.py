"""The paper's model as it is usually written: padded rectangles, torch's fused attention, autocast, eager.

The parameters have the names and shapes of `nmt_cli.model.transformer.Transformer`, so that the weights of one fit the
other, and both compute the same loss (tests/benchmarks). Shapes: B sentences, S source and T target pieces of the
longest of them, D d_model, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt_cli.dataset.prepared_data import TokenPairs
from nmt_cli.recipe.schema import ModelConfig, Recipe
from nmt_cli.tokenization.tokenizer import BOS, PAD

Pairs = NDArray[np.int64]

# cuDNN, which torch prefers on an H100, plans anew for each shape: nearly every batch has a shape of its own.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Attention(nn.Module):
    """Multi-head attention, to itself or to the encoder's output."""

    def __init__(self, config: ModelConfig, *, is_cross: bool) -> None:
        super().__init__()
        width, bias = config.heads * config.d_k, config.attention_bias
        self.heads, self.is_cross = config.heads, is_cross
        if is_cross:
            self.q = nn.Linear(config.d_model, width, bias=bias)
            self.kv = nn.Linear(config.d_model, 2 * width, bias=bias)
        else:
            self.qkv = nn.Linear(config.d_model, 3 * width, bias=bias)
        self.output = nn.Linear(width, config.d_model, bias=bias)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, D], memory [B, S, D] (x itself but for cross-attention), mask [B, 1, 1, S]; None is causal."""
        parts = (self.q(x), *self.kv(memory).chunk(2, dim=-1)) if self.is_cross else self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two matrices with ReLU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(config.d_model, config.d_ff), nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] to [B, T, D]."""
        out: Tensor = self.outer(F.relu(self.inner(x)))
        return out


class Residual(nn.Module):
    """LayerNorm(x + Dropout(sub-layer(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(config.d_model, eps=config.norm_epsilon), nn.Dropout(config.dropout)

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """The new x [B, T, D]."""
        normalised: Tensor = self.norm(x + self.dropout(out))
        return normalised


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder with its attention to the encoder's output."""

    def __init__(self, config: ModelConfig, *, is_decoder: bool) -> None:
        super().__init__()
        self.self_attention = Attention(config, is_cross=False)
        self.self_attention_residual = Residual(config)
        self.cross_attention = Attention(config, is_cross=True) if is_decoder else None
        self.cross_attention_residual = Residual(config) if is_decoder else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        """x [B, T, D] to [B, T, D], in the decoder given memory [B, S, D]; mask [B, 1, 1, S] is of the source."""
        mixed = self.self_attention(x, x, mask if memory is None else None)
        x = self.self_attention_residual(x, mixed)
        if self.cross_attention is not None and self.cross_attention_residual is not None:
            x = self.cross_attention_residual(x, self.cross_attention(x, memory, mask))
        out: Tensor = self.feed_forward_residual(x, self.feed_forward(x))
        return out


class PaddedTransformer(nn.Module):
    """Encoder and decoder with one matrix for embeddings and output, post-norm, ReLU, sinusoids: base and big."""

    def __init__(self, config: ModelConfig, *, vocab: int) -> None:
        super().__init__()
        kinds = (config.norm, config.norm_type, config.activation, config.positions, config.tying)
        assert kinds == ("post", "layer", "relu", "sinusoidal", "all"), (
            f"the padded loop has the paper's model: {kinds}"
        )
        self.vocab, self.scale = vocab, math.sqrt(config.d_model)
        rows = math.ceil(vocab / config.embedding_multiple) * config.embedding_multiple
        self.output_weight = nn.Parameter(torch.randn(rows, config.d_model) * config.d_model**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("sinusoids", _sinusoids(config.max_positions, config.d_model), persistent=False)
        self.encoder = nn.ModuleList(Layer(config, is_decoder=False) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Layer(config, is_decoder=True) for _ in range(config.decoder_layers))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V] for source [B, S] and the shifted target [B, T]; V as padded by the recipe."""
        mask = (source != PAD)[:, None, None, :]
        memory = self._embedded(source)
        for layer in self.encoder:
            memory = layer(memory, None, mask)
        x = self._embedded(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return F.linear(x, self.output_weight)

    def _embedded(self, ids: Tensor) -> Tensor:
        sinusoids: Tensor = self.get_buffer("sinusoids")
        x: Tensor = self.dropout(F.embedding(ids, self.output_weight) * self.scale + sinusoids[: ids.size(1)])
        return x


class PaddedLoop:
    """A training of the model by a plain loop: length-bucketed batches, autocast in bf16, fused Adam."""

    def __init__(self, recipe: Recipe, pairs: TokenPairs, *, vocab: int, device: str) -> None:
        training = recipe.training
        assert training.optimizer.name == "adam"
        self.model = PaddedTransformer(recipe.model, vocab=vocab).to(device).train()
        self._pairs, self._smoothing, self._kind = pairs, training.label_smoothing, torch.device(device).type
        self._device, self._slots = device, 0
        adam = training.optimizer
        betas = (adam.beta1, adam.beta2)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5, betas=betas, eps=adam.epsilon, fused=True)
        self._batches = batches(pairs, max_tokens=training.batch_tokens, longest=recipe.model.max_positions, seed=1)
        self._tokens = 0

    @property
    def padding(self) -> float:
        """Share of empty slots so far, both sides together."""
        return 1 - self._tokens / max(self._slots, 1)

    def update(self) -> int:
        """Take one update, and return its target tokens with EOS, without padding."""
        batch = next(self._batches)
        source, target = (self._padded(batch, side) for side in ("src", "tgt"))
        shifted = F.pad(target[:, :-1], (1, 0), value=BOS)
        with torch.autocast(self._kind, dtype=torch.bfloat16), sdpa_kernel(_KERNELS):
            logits = self.model(source, shifted)
        pieces = logits.flatten(0, 1)[:, : self.model.vocab].float()
        loss = F.cross_entropy(pieces, target.flatten(), ignore_index=PAD, label_smoothing=self._smoothing)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        lengths = [int(side.lengths[batch].sum()) for side in (self._pairs.src, self._pairs.tgt)]
        self._tokens += sum(lengths)
        self._slots += source.numel() + target.numel()
        return lengths[1]

    def _padded(self, batch: Pairs, side: str) -> Tensor:
        ids = padded_ids(self._pairs, batch, side)
        tensor = torch.from_numpy(ids)
        return (tensor.pin_memory() if self._kind == "cuda" else tensor).to(self._device, non_blocking=True)


def padded_ids(pairs: TokenPairs, batch: Pairs, side: str) -> NDArray[np.int64]:
    """The pieces [B, T] of one side of some pairs, each row ending in EOS and padding."""
    rows = pairs.rows(batch)
    lengths = rows[f"{side}_length"].astype(np.int64)
    ids = np.full((len(batch), int(lengths.max())), PAD, dtype=np.int64)
    file = pairs.src if side == "src" else pairs.tgt
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = file.gather(rows[f"{side}_start"], lengths)
    return ids


def batches(pairs: TokenPairs, *, max_tokens: int, longest: int, seed: int) -> Iterator[Pairs]:
    """Pairs of like lengths, shuffled, without end: at most so many padded tokens on the longer side."""
    draw = np.random.default_rng(seed)
    most = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    usable = np.flatnonzero(most <= min(longest, max_tokens))
    order = usable[np.lexsort((pairs.src.lengths[usable], pairs.tgt.lengths[usable]))]
    cuts, first, widest = [], 0, 0
    for place, width in enumerate(most[order].tolist()):
        widest = max(widest, width)
        if widest * (place + 1 - first) > max_tokens:
            cuts.append(place)
            first, widest = place, width
    parts = np.split(order, cuts)
    while True:
        for number in draw.permutation(len(parts)):
            yield parts[number]


def _sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines [length, width] in turn (section 3.5)."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
