"""Speed of this checkout over that of another one, alternating in one run; prints one JSON object.

git worktree add ../before 0b1fedd
python benchmarks/two_checkouts.py --other ../before --data data/multi30k-en-de --text multi30k/test_2016_flickr.en \
    --models small=runs/small/averaged base=runs/base/averaged --prepare mix-en-fr/train --languages en-fr --rounds 5

Each round measures every job in both checkouts, in turns: the first round begins with this one, the second with the
other. A job is a command of `nmt` in processes of its own. Training reads metrics.jsonl, translating reads `--stats`;
neither counts the time to load. Each client of a server sends its next sentence after the answer, so a ratio of rates
is the inverse of the ratio of mean latencies. `--jobs` picks some jobs by the beginning of their names. Put packages
that only the other checkout needs on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from measuring import Figures, argument_parser, circumstances, commit_of, lines_of, summed_up
from serve_load import answers_per_second, processor_seconds, server

Job = Callable[[Path, Path], float]  # (checkout, empty folder) -> units per second
_HERE = Path(__file__).resolve().parents[1]
_SMALL = ["model.encoder_layers=3", "model.decoder_layers=3", "model.d_model=256", "model.d_ff=1024", "model.heads=4"]
_TRAINED = {"small": (_SMALL, 40), "base": ([], 8)}  # settings, updates
_DECODED = {
    "beam 4": ["--beam", "4"],
    "greedy": ["--beam", "1"],
    "beam 4 int8": ["--beam", "4", "--engine", "torch", "--precision", "int8"],
    "greedy int8": ["--beam", "1", "--engine", "torch", "--precision", "int8"],
    "beam 4 ctranslate2": ["--beam", "4", "--engine", "ctranslate2", "--precision", "int8"],
    "single sentences": ["--beam", "4", "--batch-tokens", "1"],
}
_SERVED = {
    "torch": [],
    "ctranslate2": ["--engine", "ctranslate2", "--precision", "int8"],
    "alone": ["--max-batch-tokens", "1", "--max-wait-ms", "0"],  # no batches
}
_CLIENTS = (1, 8, 64, 256)


def main() -> None:
    """Measure all jobs and print the ratios."""
    arguments = _arguments()
    checkouts = {"this": _HERE, "other": arguments.other.resolve()}
    figures: Figures = circumstances("cpu", commit=arguments.commit)
    figures["other"] = commit_of(checkouts["other"])
    figures["jobs"] = {}
    for name, job in _jobs(arguments).items():
        if not name.startswith(tuple(arguments.jobs)):
            continue
        rates: dict[str, list[float]] = {"this": [], "other": []}
        for number in range(arguments.rounds):
            for side in ("this", "other") if number % 2 == 0 else ("other", "this"):
                with tempfile.TemporaryDirectory() as folder:
                    rates[side].append(job(checkouts[side], Path(folder)))
        ratio = statistics.median(a / b for a, b in zip(rates["this"], rates["other"], strict=True))
        figures["jobs"][name] = {"ratio": round(ratio, 3)} | {
            side: summed_up(windows, digits=2) for side, windows in rates.items()
        }
        print(f"{name}: {ratio:.3f}", file=sys.stderr, flush=True)
    print(json.dumps(figures, indent=2))


def _jobs(arguments: argparse.Namespace) -> dict[str, Job]:
    """All jobs by name, each a function of a checkout and an empty folder."""
    jobs: dict[str, Job] = {}
    if arguments.data:
        for size in _TRAINED:
            jobs[f"train {size}"] = lambda checkout, folder, size=size: _train(checkout, folder, size, arguments.data)
    for model in arguments.models:
        name, _, path = model.partition("=")
        for what, options in _DECODED.items():
            lines = lines_of(arguments.text)[: 200 if what.startswith("single") else arguments.lines]
            jobs[f"decode {name} {what}"] = lambda checkout, folder, path=path, options=options, lines=lines: _decode(
                checkout, folder, ["-m", path, "--threads", str(arguments.threads), *options], lines
            )
        for engine, options in _SERVED.items():
            serve = partial(_serve, options=["-m", path, *options], arguments=arguments)
            jobs |= {f"serve {name} {engine} {clients}": partial(serve, clients=clients) for clients in _CLIENTS}
        jobs[f"serve {name} HTTP"] = partial(
            _serve, options=["-m", path], arguments=arguments, clients=64, is_http=True
        )
    if arguments.prepare:
        jobs["prepare"] = lambda checkout, folder: _prepare(checkout, folder, arguments)
    return jobs


def _train(checkout: Path, folder: Path, size: str, data: str) -> float:
    """Target tokens per second, the median over the second half of the updates' log lines."""
    settings, updates = _TRAINED[size]
    values = [*settings, f"training.updates={updates}", "training.log_every=2", "training.batch_tokens=4000"]
    values += ["training.max_tokens_per_device=4096", "training.checkpoint_every=1000", "validation.every=1000"]
    values.append("validation.max_sentences=8")  # a model of a few updates never ends a translation
    options = [option for value in values for option in ("--set", value)]
    _nmt(checkout, "train", "base", "--data", data, "-o", str(folder / "run"), *options)
    entries = [json.loads(line) for line in lines_of(folder / "run" / "metrics.jsonl")]
    rates = [entry["target_tokens_per_second"] for entry in entries if "target_tokens_per_second" in entry]
    return statistics.median(rates[len(rates) // 2 :])


def _decode(checkout: Path, folder: Path, options: list[str], lines: list[str]) -> float:
    """Sentences per second, as `nmt decode --stats` says."""
    (folder / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    said = _nmt(checkout, "decode", *options, "--stats", "-i", str(folder / "text"), "-o", str(folder / "out"))
    found = re.search(r"([\d,.]+) sentences/s", said)
    assert found is not None, said
    return float(found[1].replace(",", ""))


def _prepare(checkout: Path, folder: Path, arguments: argparse.Namespace) -> float:
    """Preparations per second."""
    options = ["--train", arguments.prepare, "--languages", arguments.languages, "-o", str(folder / "data")]
    options += ["--valid", arguments.valid] if arguments.valid else []
    started = time.perf_counter()
    _nmt(checkout, "prepare", *options)
    return 1 / (time.perf_counter() - started)


def _serve(
    checkout: Path, _: Path, *, options: list[str], arguments: argparse.Namespace, clients: int, is_http: bool = False
) -> float:
    """Answers per second; with `is_http`, per second of processor time of the server without its workers."""
    lines = lines_of(arguments.text)
    with server(options, environment=_environment(checkout)) as (process, port):
        asyncio.run(answers_per_second(port, lines, clients=clients, seconds=2.0))
        before, started = processor_seconds(process), time.perf_counter()
        rate = asyncio.run(answers_per_second(port, lines, clients=clients, seconds=arguments.seconds))
        if not is_http:
            return rate
        return rate * (time.perf_counter() - started) / (processor_seconds(process) - before)


def _nmt(checkout: Path, *arguments: str) -> str:
    """What a command of `nmt` of this checkout writes on stderr; the program ends if the command fails."""
    command = [sys.executable, "-P", "-m", "nmt_cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | _environment(checkout))
    if done.returncode:
        sys.exit(f"{checkout}: nmt {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stderr


def _environment(checkout: Path) -> Mapping[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(checkout / "src"), os.environ.get("PYTHONPATH")]))}


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--other", type=Path, required=True, metavar="DIR", help="the other checkout")
    parser.add_argument("--data", metavar="DIR", help="prepared data, to train on")
    parser.add_argument("--models", nargs="*", default=[], metavar="NAME=DIR", help="model directories, to decode with")
    parser.add_argument("--text", type=Path, metavar="FILE", help="lines to translate")
    parser.add_argument("--lines", type=int, default=400, help="how many of them")
    parser.add_argument("--prepare", metavar="PREFIX", help="two aligned files of training text, to prepare")
    parser.add_argument("--valid", metavar="PREFIX", help="two aligned files of validation text")
    parser.add_argument("--languages", metavar="SRC-TGT", help="their languages")
    parser.add_argument("--threads", type=int, default=2, help="for translating")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a server's window")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="*", default=[""], metavar="NAME", help="beginnings of the names of jobs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
