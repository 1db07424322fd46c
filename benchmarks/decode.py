"""Decoding speed, latency and memory of our engines and of others with the same weights, in turn.

python benchmarks/decode.py --model runs/multi30k/averaged --input test.en --beams 1 4 \
    --engines torch:fp32 torch:bf16 ctranslate2:fp32 ctranslate2:int8 \
    --peers build/peers/bin/python --json result.json

Each system translates the file in a process of its own, once as warm-up and then `--runs` times. Loading is not timed;
tokenising is. Every round takes all systems in turn. Latency is the time of single sentences. With --peers,
a Python with transformers and ctranslate2, the model is exported to Hugging Face, and from there to CTranslate2.
Prints a table; --json FILE has everything, --json - on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import NMT, Figures, argument_parser, circumstances, lines_of, run

_LATENCY_SENTENCES = 60
_PEERS = Path(__file__).with_name("peers")


def main() -> None:
    """Run all systems in turn and print the table."""
    arguments = _arguments()
    if arguments.one:
        print(json.dumps(_measure_here(arguments)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = folder / "text"
        lines = lines_of(Path(arguments.input))[: arguments.lines]
        text.write_text("".join(f"{line}\n" for line in lines if line.strip()), encoding="utf-8")
        commands = _commands(arguments, folder=folder, text=text)
        rounds: dict[str, list[Figures]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                rounds[name].append(json.loads(run(command).splitlines()[-1]))
                print(f"{name}: {rounds[name][-1]['sentences_per_second']} sentences/s", file=sys.stderr)
    systems = {name: _summary(runs) for name, runs in rounds.items()}
    print(_table(systems), file=sys.stderr if arguments.json == "-" else sys.stdout)
    if arguments.json:
        target = "/dev/stdout" if arguments.json == "-" else arguments.json
        Path(target).write_text(json.dumps(_record(arguments, systems), indent=2) + "\n", encoding="utf-8")


def _commands(arguments: argparse.Namespace, *, folder: Path, text: Path) -> dict[str, list[str]]:
    """The command of each system, by its name."""
    commands: dict[str, list[str]] = {}
    shared = ["--model", arguments.model, "--input", str(text), "--threads", str(arguments.threads)]
    for beam in arguments.beams:
        for engine in arguments.engines:
            for batch in arguments.batch_tokens:
                options = ["--one", engine, "--beams", str(beam), "--batch-tokens", str(batch)]
                more = ["--device", arguments.device, "--runs", str(arguments.runs)]
                if arguments.max_extra_tokens is not None:
                    more += ["--max-extra-tokens", str(arguments.max_extra_tokens)]
                name = f"nmt {engine} beam {beam} batch-tokens {batch}"
                commands[name] = [sys.executable, __file__, *shared, *options, *more]
    if arguments.peers:
        commands |= _peer_commands(arguments, folder=folder, text=text)
    return commands


def _peer_commands(arguments: argparse.Namespace, *, folder: Path, text: Path) -> dict[str, list[str]]:
    marian, converted, spm = folder / "marian", folder / "ct2", Path(arguments.model) / "source.spm"
    run([*NMT, "export", arguments.model, "--to", "huggingface", "-o", str(marian)])
    run([arguments.peers, str(_PEERS / "to_ctranslate2.py"), str(marian), str(spm), str(converted)])
    commands: dict[str, list[str]] = {}
    for beam in arguments.beams:
        for system in arguments.peer_systems:
            engine, precision, workers = (*system.split(":"), "1")[:3]
            threads = max(1, arguments.threads // int(workers))
            model = converted if engine == "ctranslate2" else marian
            for batch in arguments.peer_batches:
                options = {"engine": engine, "model": model, "spm": spm, "input": text, "beam": beam, "batch": batch}
                options |= {"precision": precision, "workers": workers, "threads": threads, "runs": arguments.runs}
                options |= {"max-tokens": arguments.peer_max_tokens, "device": arguments.device}
                flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
                name = f"{engine} {precision} {workers} x {threads} beam {beam} batch {batch}"
                commands[name] = [arguments.peers, str(_PEERS / "decode.py"), *flags]
    return commands


def _measure_here(arguments: argparse.Namespace) -> Figures:
    """Measure one of our engines in this process."""
    import torch

    from nmt_cli import Translator
    from nmt_cli.memory import collect_garbage_rarely

    torch.set_num_threads(arguments.threads)
    engine, _, rest = arguments.one.partition(":")
    precision, _, workers = rest.partition(":")
    if engine == "bare":
        return _measure_bare(arguments, precision)
    if int(workers or 1) > 1:
        return _measure_workers(arguments, engine, precision or "auto", int(workers))
    translator = Translator.from_pretrained(
        arguments.model, device=arguments.device, precision=precision or "auto", engine=engine
    )
    collect_garbage_rarely()  # as `nmt decode` does
    options = {"beam": arguments.beams[0], "batch_tokens": arguments.batch_tokens[0]}
    options["max_extra_tokens"] = arguments.max_extra_tokens
    lines = lines_of(Path(arguments.input))

    def translate() -> int:
        return sum(one.num_pieces + 1 for one in translator.translate(lines, **options))

    rates = _rates(translate, len(lines), runs=arguments.runs)
    latencies = []
    for line in lines[:_LATENCY_SENTENCES]:
        started = time.perf_counter()
        translator.translate([line], **options)
        latencies.append(time.perf_counter() - started)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    is_gpu = translator.device.startswith("cuda")
    return rates | {
        "latency_milliseconds": {f"p{share}": round(1000 * _percentile(latencies, share), 1) for share in (50, 90, 99)},
        "peak_memory_megabytes": round(memory / 1e6),
        "peak_gpu_memory_megabytes": round(torch.cuda.max_memory_allocated() / 1e6) if is_gpu else None,
    }


def _rates(translate: Callable[[], int], num_lines: int, *, runs: int) -> Figures:
    """Sentences and tokens per second of a function that translates all lines and returns their tokens, with EOS.

    The first run is a warm-up, in which workers load their models.
    """
    seconds, tokens = [], 0
    for _ in range(runs + 1):
        started = time.perf_counter()
        tokens = translate()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    return {
        "sentences_per_second": round(num_lines / median, 1),
        "tokens_per_second": round(tokens / median),
        "seconds": [round(one, 3) for one in seconds[1:]],
    }


def _measure_workers(arguments: argparse.Namespace, engine: str, precision: str, workers: int) -> Figures:
    """Measure several workers of one engine, which share the threads, as `nmt decode --workers` does.

    The text is cut to blocks of at most a thousand lines, of which each worker gets one at least.
    """
    from nmt_cli.decoding.parallel import LineBlock, TranslationJob, jobs_for_workers, parallel_translator

    settings = {"beam": arguments.beams[0], "batch_tokens": arguments.batch_tokens[0]}
    settings["max_extra_tokens"] = arguments.max_extra_tokens
    device = arguments.device
    one = TranslationJob(
        [Path(arguments.model)], engine, precision, device, arguments.threads, overrides=settings, options={}
    )
    lines = lines_of(Path(arguments.input))
    size = min(1000, math.ceil(len(lines) / workers))
    blocks = [LineBlock(start + 1, lines[start : start + size]) for start in range(0, len(lines), size)]
    with parallel_translator(jobs_for_workers(one, workers=workers, is_bulk=True)) as translations_of:

        def translate() -> int:
            return sum(
                translation.num_pieces + 1 for result in translations_of(blocks) for translation in result.translations
            )

        rates = _rates(translate, len(lines), runs=arguments.runs)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    # As if all were as large as the largest.
    return rates | {"peak_memory_megabytes": round(workers * largest / 1e6)}


def _measure_bare(arguments: argparse.Namespace, precision: str) -> Figures:
    """Measure CTranslate2 itself, with the workers, threads and search options of our engine."""
    import ctranslate2

    from nmt_cli.decoding.ctranslate2.engine import PATIENCE
    from nmt_cli.decoding.ctranslate2.model import converted_model
    from nmt_cli.memory import collect_garbage_rarely
    from nmt_cli.tokenization.tokenizer import Tokenizer

    source, target = (Tokenizer.load(Path(arguments.model) / f"{side}.spm") for side in ("source", "target"))
    compute_type = {"fp32": "float32"}.get(precision, precision)
    with converted_model(Path(arguments.model), version=ctranslate2.__version__) as folder:
        translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=arguments.threads, intra_threads=1
        )
    ids = {piece: number for number, piece in enumerate(target.pieces(range(target.vocab_size)))}
    beam = arguments.beams[0]
    options = {"beam_size": beam, "length_penalty": 1, "max_decoding_length": 256, "max_batch_size": 64}
    options["return_scores"] = True  # as every answer of this project has them
    if beam > 1:
        options |= {"patience": PATIENCE, "num_hypotheses": PATIENCE * beam}
    lines = lines_of(Path(arguments.input))
    collect_garbage_rarely()

    def translate() -> int:
        results = translator.translate_batch([source.pieces(row) for row in source.encode(lines)], **options)
        rows = [[ids[piece] for piece in result.hypotheses[0]] for result in results]
        target.decode(rows)
        return sum(len(row) + 1 for row in rows)

    return _rates(translate, len(lines), runs=arguments.runs)


def _percentile(values: list[float], share: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * share // 100)]


def _summary(runs: list[Figures]) -> Figures:
    """The median round, with the sentences per second of all rounds."""
    rates = [float(run["sentences_per_second"]) for run in runs]
    middle = min(runs, key=lambda run: abs(float(run["sentences_per_second"]) - statistics.median(rates)))
    return {**middle, "sentences_per_second": round(statistics.median(rates), 1), "rounds": rates}


def _table(systems: dict[str, Figures]) -> str:
    rows = [
        "| system | sentences/s | rounds | tokens/s | latency p50, p90, p99 (ms) | memory (MB) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in systems.items():
        latency = ", ".join(str(value) for value in found.get("latency_milliseconds", {}).values())
        rounds = ", ".join(f"{rate:g}" for rate in found["rounds"])
        memory = found.get("peak_gpu_memory_megabytes") or found.get("peak_memory_megabytes", "")
        rows.append(
            f"| {name} | {found['sentences_per_second']} | {rounds} | {found['tokens_per_second']} | {latency}"
            f" | {memory} |"
        )
    return "\n".join(rows)


def _record(arguments: argparse.Namespace, systems: dict[str, Figures]) -> Figures:
    return {
        "benchmark": "decoding",
        **circumstances(arguments.device, commit=arguments.commit),
        "model": arguments.name or arguments.model,
        "input": Path(arguments.input).stem,
        "lines": arguments.lines,
        "device": arguments.device,
        "threads": arguments.threads,
        "systems": systems,
    }


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True, help="a model directory of nmt")
    parser.add_argument("--name", help="what the charts call the model: small or base")
    parser.add_argument("--input", required=True, help="source text")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--beams", type=int, nargs="+", default=[4])
    parser.add_argument(
        "--engines",
        nargs="*",
        default=["torch:fp32"],
        help="ENGINE:PRECISION[:WORKERS] of nmt, or bare:PRECISION for CTranslate2 itself with the same options",
    )
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[12288])
    parser.add_argument("--max-extra-tokens", type=int, help="default: the model's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPUs of each system")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="timed runs in each round; their median counts")
    parser.add_argument("--peers", help="a Python with transformers and ctranslate2")
    parser.add_argument(
        "--peer-systems",
        nargs="*",
        default=["ctranslate2:float32:1", "ctranslate2:int8:1", "ctranslate2:int8:2", "hf:bfloat16", "hf:float32"],
        help="ENGINE:PRECISION[:WORKERS]",
    )
    parser.add_argument("--peer-batches", type=int, nargs="+", default=[64], help="sentences")
    parser.add_argument("--peer-max-tokens", type=int, default=256)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
