"""Decoding speed of Hugging Face's `generate` or of CTranslate2 over a file, the peer of `nmt decode`; one JSON line.

python benchmarks/peers/decode.py --engine hf --model DIR --spm source.spm --input test.en --output hyp.de

Sentences are sorted by length. Loading is not counted, and tokenising is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import sentencepiece

_PAD, _EOS = 0, 3

Decoder = Callable[[Sequence[str]], tuple[list[str], int]]
"""Translations of lines, and the number of their pieces with EOS."""


def main() -> None:
    """Translate the file --runs times, after a warm-up on its first lines."""
    arguments = _arguments()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=arguments.spm)
    lines = Path(arguments.input).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    decode = (_ctranslate2_decoder if arguments.engine == "ctranslate2" else _hf_decoder)(arguments, tokenizer)
    decode(lines[:100])
    seconds, hypotheses, tokens = [], [""], 0
    for _ in range(arguments.runs):
        start = time.perf_counter()
        hypotheses, tokens = decode(lines)
        seconds.append(time.perf_counter() - start)
    if arguments.output:
        Path(arguments.output).write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
    median = statistics.median(seconds)
    told = ("precision", "device", "beam", "batch", "workers")
    result = {"system": arguments.engine} | {key: getattr(arguments, key) for key in told}
    rates = {"sentences_per_second": round(len(lines) / median, 1), "tokens_per_second": round(tokens / median)}
    print(json.dumps(result | rates | {"seconds": [round(each, 2) for each in seconds]}))


def _ctranslate2_decoder(arguments: argparse.Namespace, tokenizer: sentencepiece.SentencePieceProcessor) -> Decoder:
    import ctranslate2

    translator = ctranslate2.Translator(
        arguments.model,
        device=arguments.device,
        compute_type=arguments.precision,
        inter_threads=arguments.workers,
        intra_threads=arguments.threads,
    )

    def decode(lines: Sequence[str]) -> tuple[list[str], int]:
        results = translator.translate_batch(
            tokenizer.encode(lines, out_type=str),
            beam_size=arguments.beam,
            length_penalty=arguments.length_penalty,
            max_batch_size=arguments.batch,
            max_decoding_length=arguments.max_tokens,
        )
        pieces = [result.hypotheses[0] for result in results]
        return tokenizer.decode(pieces), sum(len(row) + 1 for row in pieces)

    return decode


def _hf_decoder(arguments: argparse.Namespace, tokenizer: sentencepiece.SentencePieceProcessor) -> Decoder:
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(arguments.threads)
    model = MarianMTModel.from_pretrained(arguments.model).eval()
    model = model.to(arguments.device, getattr(torch, arguments.precision))
    search = {"num_beams": arguments.beam, "do_sample": False, "length_penalty": arguments.length_penalty}

    def decode(lines: Sequence[str]) -> tuple[list[str], int]:
        ids = [[*row, _EOS] for row in tokenizer.encode(lines)]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        pieces: list[list[int]] = [[] for _ in ids]
        for start in range(0, len(order), arguments.batch):
            rows = order[start : start + arguments.batch]
            width = len(ids[rows[0]])
            padded = [ids[i] + [_PAD] * (width - len(ids[i])) for i in rows]
            source = torch.tensor(padded, device=arguments.device)
            inputs = {"input_ids": source, "attention_mask": (source != _PAD).long()}
            with torch.inference_mode():
                hypotheses = model.generate(**inputs, **search, max_new_tokens=arguments.max_tokens)
            for i, (_, *row) in zip(rows, hypotheses.tolist(), strict=True):
                end = row.index(_EOS) if _EOS in row else len(row)
                pieces[i] = [piece for piece in row[:end] if piece != _PAD]
        return tokenizer.decode(pieces), sum(len(row) + 1 for row in pieces)

    return decode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["hf", "ctranslate2"], required=True)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--spm", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="sentences")
    parser.add_argument("--length-penalty", type=float, default=0.6, help="the engine's own form, length ** penalty")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--precision", default="float32", help="hf: float32, bfloat16; ctranslate2: float32, int8, ...")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="of ctranslate2, in parallel")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of a worker")
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
