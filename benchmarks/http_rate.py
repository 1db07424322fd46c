"""Requests per second that the process of `nmt serve` carries if its workers answer at once; prints one JSON object.

python benchmarks/http_rate.py --model runs/demo --input data/demo/test.en --clients 64

Workers translate each sentence once; later the server itself gives the answer that it remembers, so all of its time
goes into HTTP, texts and the queue. The clients run in this process, each on one open connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from measuring import circumstances, lines_of, summed_up
from serve_load import answers_per_second, processor_seconds, server

_SENTENCES, _WORDS = 50, range(3, 9)  # short ones
_SERVE = "--as-server"


def main() -> None:
    """Measure windows of some seconds."""
    arguments = _arguments()
    lines = [line for line in lines_of(arguments.input) if len(line.split()) in _WORDS][:_SENTENCES]
    rates, per_processor = [], []
    options = ["--model", str(arguments.model), "--max-wait-ms", "0"]
    with server(options, nmt=[sys.executable, __file__, _SERVE]) as (process, port):
        asyncio.run(answers_per_second(port, lines, clients=8, seconds=4.0))
        for _ in range(arguments.rounds):
            before, started = processor_seconds(process), time.perf_counter()
            rate = asyncio.run(answers_per_second(port, lines, clients=arguments.clients, seconds=arguments.seconds))
            wall = time.perf_counter() - started
            rates.append(rate)
            per_processor.append(rate * wall / (processor_seconds(process) - before))
    figures = circumstances("cpu", commit=None) | {
        "clients": arguments.clients,
        "requests_per_second": summed_up(rates),
        "requests_per_processor_second": summed_up(per_processor),
    }
    print(json.dumps(figures, indent=2))


def _serve(arguments: list[str]) -> None:
    """`nmt` with these arguments, in which workers are asked only what nobody has asked before."""
    from nmt_cli.cli.app import main as nmt
    from nmt_cli.serving.worker_process import WorkerProcess

    ask, known = WorkerProcess.ask, dict[tuple[str, Any], dict[str, Any]]()

    async def ask_once(worker: WorkerProcess, lines: list[str], task: Any, *, timeout_seconds: float) -> Any:
        if new := [line for line in dict.fromkeys(lines) if (line, task) not in known]:
            answers = await ask(worker, new, task, timeout_seconds=timeout_seconds)
            known.update({(line, task): answer for line, answer in zip(new, answers, strict=True)})
        return [known[line, task] for line in lines]

    WorkerProcess.ask = ask_once
    sys.argv[1:] = arguments
    nmt()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model or a run")
    parser.add_argument("--input", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each window")
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        _serve(sys.argv[2:])
    else:
        main()
