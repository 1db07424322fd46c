"""The Transformer's equations (sections 3.1 to 3.5) in float64, one sentence, one token, one head at a time.

Written from the paper; of the model's code it knows `ModelConfig` and the names of `Transformer.state_dict()` alone.
D d_model, V vocabulary, S and T source and target tokens; a sentence is a list of token vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from nmt_cli.recipe.schema import ModelConfig
from tests.reference.attention import Sees, sees_all, sees_neighbours, sees_the_past

Vector = npt.NDArray[np.float64]
Sentence = list[Vector]
# The values of settings for which the code below was written.
COMPUTED: dict[str, tuple[object, ...]] = {
    "norm": ("post", "pre"),
    "norm_type": ("layer", "rms"),
    "activation": ("relu", "gelu", "silu", "swiglu"),
    "attention_bias": (False, True),
    "positions": ("sinusoidal", "sinusoidal-halves", "sinusoidal-fairseq", "learned", "rotary"),
    "encoder_window": (None, 3),
    "tying": ("all", "target", "none"),
    "output_bias": (False, True),
}


class LoopTransformer:
    """Logits of one sentence pair. In place of dropout, elements are multiplied by `dropout_factor` or `ffn_factor`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        vocab: int,
        dropout_factor: float = 1.0,
        ffn_factor: float = 1.0,
    ) -> None:
        self.config, self.vocab, self.dropout_factor, self.ffn_factor = config, vocab, dropout_factor, ffn_factor
        self.weights = {name: tensor.detach().double().numpy() for name, tensor in weights.items()}

    def logits(self, source: Sequence[int], target_input: Sequence[int]) -> npt.NDArray[np.float64]:
        """[T, V]: row t scores what follows the first t + 1 tokens of the decoder's input."""
        output, bias = self.weights["output_weight"], self.weights.get("output_bias", np.zeros(self.vocab))
        return np.stack([(output @ x)[: self.vocab] + bias[: self.vocab] for x in self.hidden(source, target_input)])

    def hidden(self, source: Sequence[int], target_input: Sequence[int]) -> Sentence:
        """The decoder's output, T vectors [D]."""
        memory = self.memory(source)
        tokens = self._embed(target_input, "target_embedding")
        for layer in range(self.config.decoder_layers):
            name = f"decoder.{layer}"
            tokens = self._self_attention_sub_layer(tokens, name, sees=sees_the_past)
            tokens = self._cross_attention_sub_layer(tokens, memory, name)
            tokens = self._feed_forward_sub_layer(tokens, name)
        return self._final_norm(tokens, "decoder_norm")

    def memory(self, source: Sequence[int]) -> Sentence:
        """The encoder's output, S vectors [D]."""
        window = self.config.encoder_window
        sees = sees_all if window is None else sees_neighbours(window)
        tokens = self._embed(source, "source_embedding")
        for layer in range(self.config.encoder_layers):
            tokens = self._self_attention_sub_layer(tokens, f"encoder.{layer}", sees=sees)
            tokens = self._feed_forward_sub_layer(tokens, f"encoder.{layer}")
        return self._final_norm(tokens, "encoder_norm")

    def _embed(self, ids: Sequence[int], name: str) -> Sentence:
        rows = self.weights[f"{name}.weight"]
        return [
            (rows[token] * math.sqrt(self.config.d_model) + self._position(place, name)) * self.dropout_factor
            for place, token in enumerate(ids)
        ]

    def _position(self, place: int, name: str) -> Vector:
        """A row of the table; the model keeps sinusoids in float32."""
        if self.config.positions == "rotary":
            return np.zeros(self.config.d_model)
        if self.config.positions == "learned":
            learned: Vector = self.weights[f"{name}.positions.table"][place]
            return learned
        formula = sinusoid if self.config.positions == "sinusoidal" else sinusoid_in_halves
        if self.config.positions == "sinusoidal-fairseq":
            place += 2  # fairseq counts from the id of its padding, 1, plus 1
        values = [formula(place, column, self.config.d_model) for column in range(self.config.d_model)]
        return np.array(values, dtype=np.float32).astype(np.float64)

    def _self_attention_sub_layer(self, tokens: Sentence, layer: str, *, sees: Sees) -> Sentence:
        name = f"{layer}.self_attention"
        inputs = self._before(tokens, name)
        width = self.config.heads * self.config.d_k
        projected = [self._linear(x, f"{name}.qkv") for x in inputs]
        q, k, v = ([x[part] for x in projected] for part in _thirds(width))
        if self.config.positions == "rotary":
            q, k = ([self._turned(x, place) for place, x in enumerate(side)] for side in (q, k))
        return self._after(tokens, self._attend(q, k, v, sees=sees, name=name), name)

    def _turned(self, x: Vector, place: int) -> Vector:
        """Each head as K/2 complex numbers, component i + K/2 the imaginary part, times e^(place * angle * i)."""
        turned, half = x.copy(), self.config.d_k // 2
        for head in self._heads():
            for i in range(half):
                real, imaginary = head * self.config.d_k + i, head * self.config.d_k + half + i
                angle = place / math.pow(10000, 2 * i / self.config.d_k)
                cos, sin = float(np.float32(math.cos(angle))), float(np.float32(math.sin(angle)))
                number = complex(x[real], x[imaginary]) * complex(cos, sin)
                turned[real], turned[imaginary] = number.real, number.imag
        return turned

    def _cross_attention_sub_layer(self, tokens: Sentence, memory: Sentence, layer: str) -> Sentence:
        name = f"{layer}.cross_attention"
        width = self.config.heads * self.config.d_k
        q = [self._linear(x, f"{name}.q") for x in self._before(tokens, name)]
        projected = [self._linear(x, f"{name}.kv") for x in memory]
        k, v = [x[:width] for x in projected], [x[width:] for x in projected]
        return self._after(tokens, self._attend(q, k, v, sees=sees_all, name=name), name)

    def _feed_forward_sub_layer(self, tokens: Sentence, layer: str) -> Sentence:
        name = f"{layer}.feed_forward"
        outputs = []
        for x in self._before(tokens, name):
            inner = self._linear(x, f"{name}.inner")
            if self.config.activation == "swiglu":
                gates, values = inner[: self.config.d_ff], inner[self.config.d_ff :]
                hidden = np.array([_silu(gate) * value for gate, value in zip(gates, values, strict=True)])
            else:
                hidden = np.array([self._activation(value) for value in inner])
            outputs.append(self._linear(self.ffn_factor * hidden, f"{name}.outer"))
        return self._after(tokens, outputs, name)

    def _attend(self, q: Sentence, k: Sentence, v: Sentence, *, sees: Sees, name: str) -> Sentence:
        mixed = []
        for place, query in enumerate(q):
            keys = [key for key in range(len(k)) if sees(place, key)]
            heads = [self._head(query, [k[key] for key in keys], [v[key] for key in keys], h) for h in self._heads()]
            mixed.append(self._linear(np.concatenate(heads), f"{name}.output"))
        return mixed

    def _head(self, query: Vector, keys: Sentence, values: Sentence, head: int) -> Vector:
        d_k, d_v = self.config.d_k, self.config.d_v
        of_keys, of_values = slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)
        scores = [float(query[of_keys] @ key[of_keys]) / math.sqrt(d_k) for key in keys]
        exponentials = [math.exp(score - max(scores)) for score in scores]
        mixed = np.zeros(d_v)
        for exponential, value in zip(exponentials, values, strict=True):
            mixed += exponential / sum(exponentials) * value[of_values]
        return mixed

    def _heads(self) -> range:
        return range(self.config.heads)

    def _before(self, tokens: Sentence, name: str) -> Sentence:
        return [self._norm(x, f"{name}_residual.norm") for x in tokens] if self.config.norm == "pre" else tokens

    def _after(self, tokens: Sentence, outputs: Sentence, name: str) -> Sentence:
        sums = [x + self.dropout_factor * out for x, out in zip(tokens, outputs, strict=True)]
        return sums if self.config.norm == "pre" else [self._norm(x, f"{name}_residual.norm") for x in sums]

    def _final_norm(self, tokens: Sentence, name: str) -> Sentence:
        return [self._norm(x, name) for x in tokens] if self.config.norm == "pre" else tokens

    def _norm(self, x: Vector, name: str) -> Vector:
        if self.config.norm_type == "rms":
            root = math.sqrt(sum(value**2 for value in x) / len(x) + self.config.norm_epsilon)
            divided: Vector = x / root * self.weights[f"{name}.weight"]
            return divided
        mean = sum(x) / len(x)
        variance = sum((value - mean) ** 2 for value in x) / len(x)
        scaled = (x - mean) / math.sqrt(variance + self.config.norm_epsilon)
        out: Vector = scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return out

    def _linear(self, x: Vector, name: str) -> Vector:
        out: Vector = self.weights[f"{name}.weight"] @ x
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def _activation(self, x: float) -> float:
        match self.config.activation:
            case "relu":
                return max(0.0, x)
            case "gelu":
                return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
            case "silu":
                return _silu(x)
            case "swiglu":
                raise ValueError("a gate is no function of one number")


def sinusoid(position: int, column: int, d_model: int) -> float:
    """Section 3.5: sin(pos / 10000^(2i / d_model)) in column 2i, the cosine of the same in column 2i + 1."""
    pair = column // 2
    angle = position / math.pow(10000, 2 * pair / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


def sinusoid_in_halves(position: int, column: int, d_model: int) -> float:
    """tensor2tensor's get_timing_signal_1d: wavelengths from 1 to 10000 inclusive, sines left, cosines right."""
    half = d_model // 2
    step = math.log(10000) / (half - 1)
    angle = position * math.exp(-step * (column % half))
    return math.sin(angle) if column < half else math.cos(angle)


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def _thirds(width: int) -> list[slice]:
    """Queries, keys, values in the fused projection."""
    return [slice(0, width), slice(width, 2 * width), slice(2 * width, None)]
