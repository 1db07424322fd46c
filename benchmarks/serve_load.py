"""Answers per second, latency and CPU of `nmt serve` under many clients, beside `nmt decode`; prints one JSON object.

python benchmarks/serve_load.py --model runs/demo --input data/demo/test.en --clients 1 8 64 --seconds 20

Engines, numbers of clients, and batching (on, or off: each sentence alone) are combined. Every client sends a sentence
on its open connection, waits for the answer, and sends the next. First, 64 clients send all lines at once, and the
answers are compared with `nmt decode`.

The CPU time of the server counts all its processes over the window. Machines are noisy, so rounds of windows take turns
with `nmt decode` of all lines of --input (at most 1,000), while the server is idle. A window's CPU is compared with the
mean of the translations before and after its round.

--open R sends R requests per second whatever the answers, for overload. --mixed S sends sentences, texts of some
lines, HTML (a third) and documents (a tenth) to all APIs for S seconds, with clients that vanish at any moment. It
prints the memory in each tenth of the time, and the seconds to the answers by kind. `--clients` without a number
measures only these two. The load's own CPU stands beside the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from clients import Connection, Window
from measuring import NMT, Figures, argument_parser, circumstances, lines_of, processes_of, summed_up
from mixed_load import MEMORY_SECONDS, mixed_load

_TICKS = os.sysconf("SC_CLK_TCK")
_COMPARED, _COMPARED_CLIENTS = 1000, 64
_MIXED_CLIENTS = 64


def main() -> None:
    """Measure all combinations and print the figures."""
    arguments = _arguments()
    lines = lines_of(arguments.input)[:_COMPARED]
    figures: Figures = circumstances("cpu", commit=arguments.commit)
    figures["engines"] = {
        engine: {batching: _measure_server(arguments, engine, batching, lines) for batching in arguments.batching}
        for engine in arguments.engines
    }
    print(json.dumps(figures, indent=2))


def _measure_server(arguments: argparse.Namespace, engine: str, batching: str, lines: Sequence[str]) -> Figures:
    found: Figures = {}
    with _server(arguments, engine, batching) as (pid, port):
        if arguments.clients:
            found |= _in_turn(arguments, engine, pid, port, lines, batching=batching)
        if arguments.open and batching == "on":
            found["overload"] = _measure(arguments, pid, port, lines, 0)
        if arguments.mixed and batching == "on":
            found["mixed"] = _measure_mixed(arguments, pid, port, lines)
    return found


def _in_turn(
    arguments: argparse.Namespace, engine: str, pid: int, port: int, lines: Sequence[str], *, batching: str
) -> Figures:
    """Rounds of a window for each number of clients, with `nmt decode` before, between and after them."""
    found: Figures = {}
    expected, first = _decode(arguments, engine, lines)
    if batching == "on":
        found["equal to decode"] = asyncio.run(_compare(port, lines, expected))
    decode, rounds = [first], []
    for _ in range(arguments.rounds):
        rounds.append([_measure(arguments, pid, port, lines, clients) for clients in arguments.clients])
        decode.append(_decode(arguments, engine, lines)[1])
    found["decode's CPU seconds a sentence"] = summed_up(decode, digits=5)
    beside = [statistics.fmean(both) for both in pairwise(decode)]
    for place, clients in enumerate(arguments.clients):
        windows = [round_[place] for round_ in rounds]
        shares = [window["server CPU seconds a sentence"] / each for window, each in zip(windows, beside, strict=True)]
        rates = [window["answers a second"] for window in windows]
        found[f"{clients} clients"] = {
            "answers a second": summed_up(rates, digits=1),
            "server CPU over decode's": summed_up(shares, digits=3),
            "windows": windows,
        }
    return found


def _measure(arguments: argparse.Namespace, pid: int, port: int, lines: Sequence[str], clients: int) -> Figures:
    asyncio.run(_closed(port, lines, clients=min(clients or 8, 8), seconds=1.0))
    cpu, memory = _cpu_seconds(pid), _megabytes(pid)
    load, started = time.process_time(), time.perf_counter()
    if clients:
        window = asyncio.run(_closed(port, lines, clients=clients, seconds=arguments.seconds))
    else:
        window = asyncio.run(_open(port, lines, rate=arguments.open, seconds=arguments.seconds))
    wall, load = time.perf_counter() - started, time.process_time() - load
    answered = window.statuses.get("200", 0)
    return {
        "clients": clients or f"{arguments.open:g} requests a second",
        "answers a second": round(answered / wall, 1),
        "statuses": window.statuses,
        "milliseconds": _percentiles(window.seconds),
        "refused after milliseconds": _percentiles(window.refused_seconds),
        "server CPU seconds a sentence": round((_cpu_seconds(pid) - cpu) / max(1, answered), 5),
        "CPU seconds of the load a sentence": round(load / max(1, answered), 5),
        "megabytes before and after": [memory, _megabytes(pid)],
    }


def _measure_mixed(arguments: argparse.Namespace, pid: int, port: int, lines: Sequence[str]) -> Figures:
    window, memory = asyncio.run(
        mixed_load(port, lines, clients=_MIXED_CLIENTS, seconds=arguments.mixed, megabytes=partial(_megabytes, pid))
    )
    later = memory[len(memory) * 2 // 3 :]
    return {
        "clients": _MIXED_CLIENTS,
        "seconds": arguments.mixed,
        "statuses": window.statuses,
        "clients that vanished": window.num_vanished,
        "milliseconds": {kind: _percentiles(seconds) for kind, seconds in window.seconds_of_kinds.items()},
        "megabytes": [round(statistics.fmean(part)) for part in _parts(memory, 10)],
        "megabytes a minute in the last third": round(60 * _slope(later) / MEMORY_SECONDS, 2),
    }


def _parts(values: Sequence[int], number: int) -> list[Sequence[int]]:
    cuts = [place * len(values) // number for place in range(number + 1)]
    return [values[one:other] for one, other in pairwise(cuts) if one < other]


def _slope(values: Sequence[int]) -> float:
    """How much they rise from one to the next, by least squares."""
    return statistics.linear_regression(range(len(values)), values).slope if len(values) > 1 else 0.0


async def answers_per_second(port: int, lines: Sequence[str], *, clients: int, seconds: float) -> float:
    """Answers with status 200 per second, while each client sends one sentence after the other."""
    started = time.perf_counter()
    window = await _closed(port, lines, clients=clients, seconds=seconds)
    return window.statuses.get("200", 0) / (time.perf_counter() - started)


async def _closed(port: int, lines: Sequence[str], *, clients: int, seconds: float) -> Window:
    window, until = Window(), time.perf_counter() + seconds

    async def client(first: int) -> None:
        connection = await Connection.open(port)
        place = first * 37
        while time.perf_counter() < until:
            started = time.perf_counter()
            status, _ = await connection.translate(lines[place % len(lines)])
            window.add(status, time.perf_counter() - started)
            place += 1
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return window


async def _open(port: int, lines: Sequence[str], *, rate: float, seconds: float) -> Window:
    window = Window()
    idle: list[Connection] = []

    async def ask(place: int) -> None:
        started = time.perf_counter()
        connection = idle.pop() if idle else await Connection.open(port)
        status, _ = await connection.translate(lines[place % len(lines)])
        window.add(status, time.perf_counter() - started)
        idle.append(connection)

    tasks = []
    begun = time.perf_counter()
    for place in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + place / rate - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(place)))
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return window


async def _compare(port: int, lines: Sequence[str], expected: Sequence[str]) -> str:
    waiting = list(reversed(list(enumerate(lines))))
    found: dict[int, str] = {}

    async def client() -> None:
        connection = await Connection.open(port)
        while waiting:
            place, line = waiting.pop()
            _, found[place] = await connection.translate(line)
        connection.close()

    await asyncio.gather(*(client() for _ in range(_COMPARED_CLIENTS)))
    same = sum(found[place] == line for place, line in enumerate(expected))
    return f"{same:,} of {len(expected):,} sentences"


@contextmanager
def _server(arguments: argparse.Namespace, engine: str, batching: str) -> Iterator[tuple[int, int]]:
    """The process id and the port of a server."""
    options = ["-m", str(arguments.model), "--engine", engine]
    options += ["--precision", "int8"] if engine == "ctranslate2" else []
    options += ["--max-batch-tokens", "1", "--max-wait-ms", "0"] if batching == "off" else []
    with server([*options, *arguments.serve]) as found:
        yield found


@contextmanager
def server(
    options: Sequence[str], *, environment: Mapping[str, str] | None = None, nmt: Sequence[str] = NMT
) -> Iterator[tuple[int, int]]:
    """The process id and the port of `nmt serve` with these options on a CPU, which ends with the context."""
    command = [*nmt, "serve", "--port", "0", "--device", "cpu", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    assert process.stderr is not None
    said = ""
    while (found := re.search(r"ready: http://\S+:(\d+)", said)) is None:
        line = process.stderr.readline()
        if not line:
            sys.exit(f"{shlex.join(command)} ended:\n{said}")
        said += line
    # What the server logs must not fill the pipe.
    drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        yield process.pid, int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        drain.wait()


def _decode(arguments: argparse.Namespace, engine: str, lines: Sequence[str]) -> tuple[list[str], float]:
    """What `nmt decode` makes of the lines, and its CPU seconds a sentence, without those of an empty input."""
    command = [*NMT, "-q", "decode", "-m", str(arguments.model), "--device", "cpu", "--engine", engine]
    command += ["--precision", "int8"] if engine == "ctranslate2" else []

    def timed(text: str) -> tuple[str, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    _, idle = timed(lines[0] + "\n")
    out, busy = timed("".join(line + "\n" for line in lines))
    return out.split("\n")[:-1], (busy - idle) / (len(lines) - 1)


def _cpu_seconds(pid: int) -> float:
    return sum(map(processor_seconds, processes_of(pid)))


def processor_seconds(pid: int) -> float:
    """The processor time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _megabytes(pid: int) -> int:
    pages = [int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in processes_of(pid)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if len(seconds) < 2:
        return None
    points = statistics.quantiles(seconds, n=100, method="inclusive")
    named = {"p50": points[49], "p95": points[94], "p99": points[98], "max": max(seconds)}
    return {name: round(1000 * value, 1) for name, value in named.items()}


def _arguments() -> Any:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a model or a run")
    parser.add_argument("--input", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--engines", nargs="+", default=["torch", "ctranslate2"])
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--batching", nargs="+", default=["on", "off"], choices=["on", "off"])
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each window")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of windows for all numbers of clients")
    parser.add_argument("--open", type=float, help="requests per second of one more window, for overload")
    parser.add_argument("--mixed", type=float, help="seconds of mixed load")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of nmt serve")
    return parser.parse_args()


if __name__ == "__main__":
    main()
