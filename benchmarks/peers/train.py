"""Training speed of a Hugging Face Marian model in a plain loop, the peer of `nmt train`; prints one JSON line.

python benchmarks/peers/train.py --src train.en --tgt train.de --spm source.spm --size base --precision bf16

The loop has batches of similar length, torch's fused attention, autocast and fused Adam. Rates are target pieces per
second, with EOS and without padding. With --minutes and --save it trains for a time and keeps the model.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import sentencepiece
import torch
from torch import Tensor
from torch.nn import functional
from transformers import MarianConfig, MarianMTModel

_PAD, _BOS, _EOS = 0, 2, 3
_SIZES = {"small": (3, 256, 1024, 4), "base": (6, 512, 2048, 8), "big": (6, 1024, 4096, 16)}
_WARM_UP = 3

Sentences = Sequence[Sequence[int]]


class Training:
    """A model with its optimizer, and the text that it learns."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=arguments.spm)
        special = (tokenizer.pad_id(), tokenizer.bos_id(), tokenizer.eos_id())
        assert special == (_PAD, _BOS, _EOS), "pieces 0 to 3 must be <pad> <unk> <s> </s>"
        self.src, self.tgt = (_read(path, tokenizer, arguments.limit) for path in (arguments.src, arguments.tgt))
        self.device = torch.device(arguments.device)
        self._arguments = arguments
        self.model = _build_model(arguments, vocabulary=tokenizer.vocab_size()).to(self.device).train()
        adam = {"lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
        self._optimizer = torch.optim.Adam(self.model.parameters(), **adam)
        self.num_updates = 0

    def update(self, batch: Sequence[int]) -> int:
        """Take an update on these pairs; its target pieces, with EOS and without padding."""
        self.num_updates += 1
        warmup, done = self._arguments.warmup, self.num_updates
        for group in self._optimizer.param_groups:
            group["lr"] = self._arguments.peak_lr * min(done / warmup, math.sqrt(warmup / done))
        source, target = self._padded([self.src[i] for i in batch]), self._padded([self.tgt[i] for i in batch])
        shifted = torch.cat([torch.full_like(target[:, :1], _BOS), target[:, :-1]], 1)
        is_bf16 = self._arguments.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_bf16):
            inputs = {"input_ids": source, "attention_mask": (source != _PAD).long(), "decoder_input_ids": shifted}
            logits = self.model(**inputs, use_cache=False).logits.flatten(0, 1).float()
        loss = functional.cross_entropy(logits, target.flatten(), ignore_index=_PAD, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return sum(len(self.tgt[i]) for i in batch)

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def batches(self) -> list[list[int]]:
        """The pairs of an epoch by batch, with similar lengths in each batch and the batches in random order.

        The longer side of a batch has at most --batch-tokens padded pieces.
        """
        order = list(range(len(self.src)))
        random.shuffle(order)
        order.sort(key=lambda i: (len(self.tgt[i]), len(self.src[i])))
        found: list[list[int]] = [[]]
        longest = 0
        for i in order:
            longest = max(longest, len(self.src[i]), len(self.tgt[i]))
            if found[-1] and longest * (len(found[-1]) + 1) > self._arguments.batch_tokens:
                found.append([])
                longest = max(len(self.src[i]), len(self.tgt[i]))
            found[-1].append(i)
        random.shuffle(found)
        return found

    def _padded(self, rows: Sentences) -> Tensor:
        width = max(map(len, rows))
        padded = torch.tensor([[*row, *[_PAD] * (width - len(row))] for row in rows])
        return padded.to(self.device, non_blocking=True)


def main() -> None:
    """Measure windows of updates, or train for --minutes."""
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    random.seed(1)
    torch.manual_seed(1)
    training = Training(arguments)
    told = ("size", "precision", "device", "batch_tokens")
    result = {"system": "transformers"} | {key: getattr(arguments, key) for key in told}
    measure = _train_for_minutes if arguments.minutes else _measure_windows
    print(json.dumps(result | measure(training, arguments)))


def _train_for_minutes(training: Training, arguments: argparse.Namespace) -> dict[str, Any]:
    start, tokens, limit = time.perf_counter(), 0, arguments.minutes * 60
    while time.perf_counter() - start < limit:
        for batch in training.batches():
            tokens += training.update(batch)
            if time.perf_counter() - start >= limit:
                break
    training.wait()
    seconds = time.perf_counter() - start
    if arguments.save:
        training.model.save_pretrained(arguments.save)
    figures = {"seconds": round(seconds, 1), "updates": training.num_updates, "target_tokens": tokens}
    return figures | {"tokens_per_second": round(tokens / seconds)}


def _measure_windows(training: Training, arguments: argparse.Namespace) -> dict[str, Any]:
    updates = arguments.updates or (20 if arguments.size == "small" else 4)
    needed, plan = _WARM_UP + arguments.windows * updates, training.batches()
    plan *= math.ceil(needed / len(plan))
    for batch in plan[:_WARM_UP]:
        training.update(batch)
    rates = []
    for start in range(_WARM_UP, needed, updates):
        training.wait()
        began = time.perf_counter()
        tokens = sum(map(training.update, plan[start : start + updates]))
        training.wait()
        rates.append(tokens / (time.perf_counter() - began))
    return {"tokens_per_second": round(statistics.median(rates)), "windows": [round(rate) for rate in rates]}


def _build_model(arguments: argparse.Namespace, *, vocabulary: int) -> MarianMTModel:
    layers, width, inner, heads = _SIZES[arguments.size]
    sides = {f"{side}_layers": layers for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": inner for side in ("encoder", "decoder")}
    sides |= {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    config = MarianConfig(
        **sides,
        vocab_size=vocabulary,
        d_model=width,
        dropout=arguments.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        pad_token_id=_PAD,
        eos_token_id=_EOS,
        bos_token_id=_BOS,
        decoder_start_token_id=_BOS,
        forced_eos_token_id=None,
        max_position_embeddings=1024,
        scale_embedding=True,
    )
    return MarianMTModel(config)


def _read(path: str, tokenizer: sentencepiece.SentencePieceProcessor, limit: int | None) -> Sentences:
    with open(path, encoding="utf-8") as lines:
        texts = [line.rstrip("\n") for line in islice(lines, limit)]
    return [[*ids, _EOS] for ids in tokenizer.encode(texts)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", required=True)
    parser.add_argument("--tgt", required=True)
    parser.add_argument("--spm", required=True)
    parser.add_argument("--size", choices=_SIZES, default="base")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's own choice")
    parser.add_argument("--batch-tokens", type=int, default=4000, help="padded pieces on the longer side of a batch")
    parser.add_argument("--limit", type=int, help="pairs to read; default: all")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--updates", type=int, help="in a window; default: 4, and 20 of small")
    parser.add_argument("--minutes", type=float, help="train for so long, and measure no windows")
    parser.add_argument("--peak-lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=400)
    parser.add_argument("--save", metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    main()
