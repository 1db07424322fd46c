"""Speed of training on a busy machine, and what waiting threads cost on an idle one; prints one JSON object.

nmt prepare --train multi30k/train --valid multi30k/val --languages en-de -o data/multi30k-en-de
python benchmarks/busy_training.py --data data/multi30k-en-de --busy 2
python benchmarks/busy_training.py --data data/multi30k-en-de --busy 0 --sides 2 2:300000

A side is a number of threads, with the spins of a waiting OpenMP thread if they are not those of `nmt train`. 300000 is
the default of GNU's OpenMP. Each side is a process with the loop of a training; sides take short windows in turns, and
the others sleep. A ratio is the median over the rounds. `--busy N` starts N loops of Python, which run all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measuring import Figures, argument_parser, circumstances, summed_up

from nmt_cli.devices import TRAINING_SPINS, bound_spinning

_WARM_UP = 3


def main() -> None:
    """Measure all sides in turns, and print rates and ratios."""
    arguments = _arguments()
    if arguments.windows_of_a_side:
        _measure_windows(arguments)
        return
    rates: dict[str, list[float]] = {side: [] for side in arguments.sides}
    with ExitStack() as stack:
        sides = {side: stack.enter_context(_side(side)) for side in arguments.sides}
        stack.enter_context(_busy_loops(arguments.busy, nice=arguments.nice))
        for number in range(arguments.rounds):
            for side in arguments.sides if number % 2 == 0 else arguments.sides[::-1]:
                rates[side].append(_rate(sides[side]))
            print({side: round(windows[-1]) for side, windows in rates.items()}, file=sys.stderr, flush=True)
    figures: Figures = circumstances("cpu", commit=arguments.commit)
    figures |= {"recipe": arguments.recipe, "busy loops": arguments.busy, "nice": arguments.nice}
    figures["target tokens a second"] = {side: summed_up(windows) for side, windows in rates.items()}
    first, *others = arguments.sides
    for other in others:
        ratio = statistics.median(a / b for a, b in zip(rates[first], rates[other], strict=True))
        figures[f"{first} over {other}"] = round(ratio, 3)
    print(json.dumps(figures, indent=2))


@contextmanager
def _busy_loops(number: int, *, nice: int) -> Iterator[None]:
    """Processes that compute without end, while the context lasts."""
    command = ["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def _side(side: str) -> Iterator[subprocess.Popen[str]]:
    """A process that measures a window for each line that it gets, after its warm-up."""
    threads, _, spins = side.partition(":")
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    environment |= {"GOMP_SPINCOUNT": spins} if spins else {}
    command = [sys.executable, __file__, *sys.argv[1:], "--windows-of-a-side"]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            _answer(process)
            yield process
        finally:
            process.kill()


def _rate(process: subprocess.Popen[str]) -> float:
    """Target tokens per second of the next window."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(_answer(process))


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    answer = process.stdout.readline()
    if not answer:
        sys.exit("a side has ended; its messages are above")
    return answer


def _measure_windows(arguments: argparse.Namespace) -> None:
    """Measure a window for each line of stdin, and print its rate."""
    bound_spinning(TRAINING_SPINS)  # as `nmt train` does, before torch is loaded
    import torch
    from nmt_loop import NmtLoop

    from nmt_cli.dataset.prepared_data import open_prepared
    from nmt_cli.recipe.loading import load_recipe

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    recipe, data = load_recipe(arguments.recipe, overrides=()), open_prepared(Path(arguments.data))
    with NmtLoop(recipe, data, device="cpu") as loop:
        for _ in range(_WARM_UP):
            loop.update()
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            tokens = sum(loop.update() for _ in range(arguments.updates))
            print(tokens / (time.perf_counter() - start), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", required=True, metavar="DIR", help="prepared data")
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--sides", nargs="+", default=["2", "1", "2:300000"], metavar="THREADS[:SPINS]")
    parser.add_argument("--busy", type=int, default=2, metavar="N", help="loops that run beside it")
    parser.add_argument("--nice", type=int, default=10, help="the nice level of the loops")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=4, help="updates per window")
    parser.add_argument("--windows-of-a-side", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
