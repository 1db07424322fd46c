"""Decoding on a GPU beside Hugging Face `generate`, the hardware's floor, and itself in float32 and on a CPU.

python benchmarks/decode_gpu.py --model runs/base/averaged --input newstest2013.en --reference newstest2013.fr \
    --peer benchmarks/peers/decode.py --parts speed latency precision

Parts, each of some minutes:
speed      Sentences per second in bf16 by sentences per batch, in turn with the peer's script on the exported model;
           the ratio at --batch, and of the best batches of both; the share of the floor with 256 sentences and more.
           The floor is the time that the bytes or the products of a step need at least.
latency    Milliseconds per step of single sentences: the slope of their time over their tokens.
precision  BLEU in bf16 and in float32, identical lines of both, and identical lines of float32 on GPU and CPU.

The peer's script takes --engine hf --model --spm --input --beam --batch --precision --device --runs --max-tokens and
prints a JSON line with `sentences_per_second`. Prints one JSON object, in which `bars` has the verdicts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import (
    NMT,
    Figures,
    argument_parser,
    circumstances,
    judged,
    judged_at_most,
    lines_of,
    run,
    run_peer,
    summed_up,
    wait_for,
)

if TYPE_CHECKING:
    from nmt_cli.artifacts.model_directory import LoadedModel
    from nmt_cli.decoding.translator import LineTranslator

_ONE_BATCH = 1 << 30  # tokens


def main() -> None:
    """Measure the parts of --parts and print their results."""
    arguments = _arguments()
    lines = [line for line in lines_of(Path(arguments.input)) if line.strip()][: arguments.lines]
    parts = {"speed": _speed, "latency": _latency, "precision": _precision}
    found = [parts[name](arguments, lines) for name in parts if name in arguments.parts]
    told = ("model", "input", "device", "beam", "runs", "batch", "batches", "peer_batches")
    result: Figures = {
        "benchmark": "decoding on a GPU",
        **circumstances(arguments.device, commit=arguments.commit),
        **{key: vars(arguments)[key] for key in told},
        "lines": len(lines),
        "bars": {},
    }
    for part in found:
        result["bars"] |= part.pop("bars")
        result |= part
    print(json.dumps(result, indent=2))


def _speed(arguments: argparse.Namespace, lines: Sequence[str]) -> Figures:
    """Our speed and the peer's by sentences per batch, and the share of the floor."""
    batches = sorted({arguments.batch, *arguments.batches})
    peer_batches = sorted({arguments.batch, *arguments.peer_batches}) if arguments.peer else []
    loaded, translator = _open(arguments, device=arguments.device, precision="bf16")
    ours: dict[int, Figures] = {}
    theirs: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        peer = _peer(arguments, lines, folder=Path(temporary)) if peer_batches else None
        for batch in sorted({*batches, *peer_batches}):
            if batch in batches:
                ours[batch] = _rates(arguments, loaded, translator, lines, batch=batch)
            if peer is not None and batch in peer_batches:
                told = run_peer([*peer, "--batch", str(batch)]).splitlines()[-1]
                theirs[batch] = float(json.loads(told)["sentences_per_second"])
    rates = {batch: found["sentences_per_second"]["median"] for batch, found in ours.items()}
    bars = {}
    if theirs:
        at_batch = rates[arguments.batch] / theirs[arguments.batch]
        bars[f"times_peer_at_batch_{arguments.batch}"] = judged(at_batch, bar=15, stretch=30)
        bars["times_peer_at_best"] = judged(max(rates.values()) / max(theirs.values()), bar=10, stretch=10)
    large = [found["share_of_floor"] for batch, found in ours.items() if batch >= arguments.large]
    if large:
        bars["share_of_floor"] = judged(max(large), bar=0.25, stretch=0.40)
    return {"ours": ours, "peer_sentences_per_second": theirs, "bars": bars}


def _rates(
    arguments: argparse.Namespace, loaded: LoadedModel, translator: LineTranslator, lines: Sequence[str], *, batch: int
) -> Figures:
    """Sentences and tokens per second with `batch` sentences per batch, the floor, and the memory."""
    import torch
    from decode_floor import floor_seconds

    pieces = loaded.source.encode(list(lines))
    order = sorted(range(len(lines)), key=lambda index: -len(pieces[index]))
    chunks = [[lines[index] for index in order[start : start + batch]] for start in range(0, len(order), batch)]
    is_gpu = torch.device(arguments.device).type == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats(arguments.device)
    seconds, tokens, steps = [], 0, 0
    for number in range(arguments.runs + 1):
        wait_for(arguments.device)
        start = time.perf_counter()
        found = [translator.translate(chunk, beam=arguments.beam, batch_tokens=_ONE_BATCH) for chunk in chunks]
        wait_for(arguments.device)
        if number:  # the first records the steps
            seconds.append(time.perf_counter() - start)
        tokens = sum(one.num_pieces + 1 for chunk in found for one in chunk)
        steps = sum(max(one.num_pieces + 1 for one in chunk) for chunk in found)
    floor = floor_seconds(
        loaded.model,
        sentences=batch,
        beam=arguments.beam,
        source_tokens=sum(map(len, pieces)) / len(lines) + 1,
        target_tokens=tokens / len(lines),
        bytes_a_second=_device_rates(arguments.device)["bytes_a_second"],
        flops_a_second=_device_rates(arguments.device)["flops_a_second"],
    )
    tokens_per_second = tokens / statistics.median(seconds)
    return {
        "sentences_per_second": summed_up([len(lines) / one for one in seconds], digits=1),
        "tokens_per_second": round(tokens_per_second),
        "milliseconds_a_step": round(1000 * statistics.median(seconds) / steps, 4),
        "floor_milliseconds_a_step": round(1000 * floor, 4),
        "share_of_floor": round(tokens_per_second * floor / batch, 4),
        "peak_gpu_memory_megabytes": round(torch.cuda.max_memory_allocated(arguments.device) / 1e6) if is_gpu else None,
    }


_MEASURED: dict[str, dict[str, float]] = {}


def _device_rates(device: str) -> dict[str, float]:
    """The device's rates of copying and multiplying, measured once."""
    if device not in _MEASURED:
        import torch
        from decode_floor import bandwidth

        from nmt_cli.training.reporting.training_metrics import matrix_rate

        flops = matrix_rate(torch.device(device), torch.bfloat16)
        _MEASURED[device] = {"bytes_a_second": bandwidth(device), "flops_a_second": flops}
    return _MEASURED[device]


def _peer(arguments: argparse.Namespace, lines: Sequence[str], *, folder: Path) -> list[str]:
    """The peer's command on the exported model, without the number of sentences per batch."""
    text, marian = folder / "text", folder / "marian"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run([*NMT, "export", arguments.model, "--to", "huggingface", "-o", str(marian)])
    fixed = {"engine": "hf", "model": marian, "spm": f"{arguments.model}/source.spm", "input": text}
    fixed |= {"beam": arguments.beam, "precision": "bfloat16", "device": arguments.device, "runs": arguments.runs}
    fixed |= {"max-tokens": arguments.peer_max_tokens}
    flags = [part for name, value in fixed.items() for part in (f"--{name}", str(value))]
    return [arguments.peer_python or sys.executable, arguments.peer, *flags]


def _latency(arguments: argparse.Namespace, lines: Sequence[str]) -> Figures:
    """Fit a line to the times of single sentences over their tokens."""
    _, translator = _open(arguments, device=arguments.device, precision="bf16")
    chosen = lines[: arguments.single]
    points = []
    for is_timed in (False, True):  # the first time records the steps
        for line in chosen:
            wait_for(arguments.device)
            start = time.perf_counter()
            (found,) = translator.translate([line], beam=arguments.beam)
            points += [(found.num_pieces + 1, 1000 * (time.perf_counter() - start))] if is_timed else []
    tokens, milliseconds = [point[0] for point in points], [point[1] for point in points]
    slope, intercept = statistics.linear_regression(tokens, milliseconds)
    ranked = sorted(milliseconds)
    return {
        "single_sentences": {
            "milliseconds_a_step": round(slope, 4),
            "milliseconds_before_the_first": round(intercept, 3),
            "milliseconds_over_tokens": round(sum(milliseconds) / sum(tokens), 4),
            "percentiles": {f"p{share}": round(ranked[len(ranked) * share // 100], 2) for share in (50, 90, 99)},
        },
        "bars": {"milliseconds_a_step_of_one_sentence": judged_at_most(slope, bar=0.30, stretch=0.20)},
    }


def _precision(arguments: argparse.Namespace, lines: Sequence[str]) -> Figures:
    """BLEU and identical lines of bf16 and float32, and of float32 on the device and on a CPU."""
    from nmt_cli.scoring.metrics import bleu

    texts: dict[str, list[str]] = {}
    for name, device, precision in (("bf16", None, "bf16"), ("fp32", None, "fp32"), ("cpu", "cpu", "fp32")):
        _, translator = _open(arguments, device=device or arguments.device, precision=precision)
        some = lines[: arguments.cpu_lines] if name == "cpu" else lines
        texts[name] = [one.text for one in translator.translate(some, beam=arguments.beam)]
    same = _share_of_same(texts["fp32"], texts["cpu"])
    result: Figures = {
        "identical_lines": {"bf16_and_fp32": _share_of_same(texts["bf16"], texts["fp32"]), "fp32_and_cpu": same},
        "bars": {"fp32_identical_to_cpu": judged(same, bar=0.99, stretch=0.99)},
    }
    if arguments.reference:
        sources = lines_of(Path(arguments.input))
        references = [
            reference
            for source, reference in zip(sources, lines_of(Path(arguments.reference)), strict=True)
            if source.strip()
        ][: len(lines)]
        scores = {name: bleu(texts[name], references, target_language=None).value for name in ("bf16", "fp32")}
        difference = abs(scores["bf16"] - scores["fp32"])
        result["bleu"] = {name: round(value, 3) for name, value in scores.items()}
        result["bars"]["bleu_of_bf16_from_fp32"] = judged_at_most(difference, bar=0.1, stretch=0.1)
    return result


def _share_of_same(some: Sequence[str], others: Sequence[str]) -> float:
    """The share of lines that are identical on both sides."""
    pairs = list(zip(some, others, strict=False))
    return round(sum(one == other for one, other in pairs) / len(pairs), 4)


def _open(arguments: argparse.Namespace, *, device: str, precision: str) -> tuple[LoadedModel, LineTranslator]:
    """The model and its translator."""
    import torch

    from nmt_cli.decoding.torch_engine import TorchEngine
    from nmt_cli.decoding.translator import LineTranslator
    from nmt_cli.devices import choose_precision, parse_precision

    chosen = torch.device(device)
    precise = choose_precision(parse_precision(precision), device=chosen, training=False)
    engine = TorchEngine.load([Path(arguments.model)], device=chosen, precision=precise)
    return engine.loaded[0], LineTranslator(engine)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parts = ["speed", "latency", "precision"]
    parser.add_argument("--model", required=True, help="a model directory of nmt")
    parser.add_argument("--input", required=True, help="source text")
    parser.add_argument("--reference", help="its translation, for BLEU")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--lines", type=int, default=1000, help="of the text, blank ones left out")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="sentences, the same on both sides")
    parser.add_argument(
        "--batches", type=int, nargs="*", default=[128, 256, 512, 1024], help="of which the best counts"
    )
    parser.add_argument(
        "--peer-batches", type=int, nargs="*", default=[128, 512], help="of which the peer's best counts"
    )
    parser.add_argument("--large", type=int, default=256, help="least batch for the floor")
    parser.add_argument("--single", type=int, default=60, help="sentences that are timed alone")
    parser.add_argument("--cpu-lines", type=int, default=1000, help="lines that a CPU translates too")
    parser.add_argument("--runs", type=int, default=2, help="timed runs, after a warm-up")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peer", help="the peer's script")
    parser.add_argument("--peer-python", help="the Python with the peer's packages; default: this one")
    parser.add_argument("--peer-max-tokens", type=int, default=256)
    return parser.parse_args()


if __name__ == "__main__":
    main()
