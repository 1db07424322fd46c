"""What the benchmarks share: circumstances of a measurement, summaries, verdicts, and running other programs."""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Figures = dict[str, Any]
NMT = [sys.executable, "-m", "nmt_cli"]
# torch prefers cuDNN for attention on an H100, and cuDNN plans anew for each shape: a peer would do little else.
_PEER_ENVIRONMENT = {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}


def argument_parser(document: str | None) -> argparse.ArgumentParser:
    """The parser of a script, whose --help begins with the script's docstring."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="commit of the code, if there is no git")
    return parser


def circumstances(device: str, *, commit: str | None) -> Figures:
    """Commit, hardware, versions and command; `commit` is for code outside of git."""
    import torch

    return {
        "commit": commit or commit_of(Path(__file__).parent) or "unknown",
        "hardware": hardware(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
        "command": shlex.join(["python", *sys.argv]),
    }


def commit_of(folder: Path) -> str:
    """The commit of the checkout that a folder lies in; empty without git or outside of a checkout."""
    try:
        asked = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def hardware(device: str) -> str:
    """The name of the GPU, or of the processor, with the number of CPUs that this process may use."""
    import torch

    from nmt_cli.devices import cpu_name, num_cpus

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {num_cpus()} CPUs, {torch.get_num_threads()} threads"


def wait_for(device: str) -> None:
    """Wait until the device has finished its work."""
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def summed_up(windows: Sequence[float], *, digits: int = 0) -> Figures:
    """Median, quartiles and all windows, rounded to `digits` digits."""
    quartiles = statistics.quantiles(windows, n=4) if len(windows) > 1 else [windows[0]] * 3
    return {
        "median": _rounded(statistics.median(windows), digits),
        "quartiles": [_rounded(quartiles[0], digits), _rounded(quartiles[2], digits)],
        "windows": [_rounded(window, digits) for window in windows],
    }


def cost(forward: Callable[[], Tensor], *, repeats: int) -> Figures:
    """CPU seconds of a forward and backward pass, its peak memory, and multiplications of the forward pass.

    Seconds are the least of `repeats` runs after two others; they leave out what other processes take. Memory is what
    torch allocates at most at once during the passes, in bytes. Only products of matrices and convolutions count as
    multiplications; a backward pass has twice as many.
    """
    os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler writes lines to stderr
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        gradient = torch.randn_like(forward())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        forward().backward(gradient)
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        forward().backward(gradient)
        seconds.append(time.process_time() - start)
    return {
        "seconds": float(f"{min(seconds):.4g}"),
        "peak_bytes": max(accumulate(sizes)),
        "multiplications": counter.get_total_flops() // 2,
    }


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def judged(measured: float, *, bar: float, stretch: float) -> Figures:
    """A figure beside its lower bounds, with a verdict."""
    verdict = "stretch reached" if measured >= stretch else "bar reached" if measured >= bar else "falls short"
    return {"measured": round(measured, 3), "bar": bar, "stretch": stretch, "verdict": verdict}


def judged_at_most(measured: float, *, bar: float, stretch: float) -> Figures:
    """A figure beside its upper bounds, with a verdict."""
    verdict = "stretch reached" if measured <= stretch else "bar reached" if measured <= bar else "falls short"
    return {"measured": round(measured, 4), "bar": bar, "stretch": stretch, "verdict": verdict}


def run_peer(command: Sequence[str]) -> str:
    """The output of a peer's command, which runs with kernels of attention that suit its batches."""
    return run(command, environment=_PEER_ENVIRONMENT)


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command; if it fails, this program ends with its messages."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}))
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def nmt_train(recipe: str, *, data: str | Path, output: Path, device: str, settings: Sequence[str]) -> None:
    """Train a run by `nmt train`, unless it is finished; the settings are KEY=VALUE."""
    options = [option for setting in settings for option in ("--set", setting)]
    run([*NMT, "train", recipe, "--data", str(data), "-o", str(output), "--device", device, *options])


def nmt_decode(model: str | Path, source: str | Path, output: str | Path, *options: str) -> None:
    """Translate a file by `nmt decode`."""
    run([*NMT, "decode", "-m", str(model), "-i", str(source), "-o", str(output), "--overwrite", *options])


def score(hypothesis: Path, reference: Path) -> float:
    """sacreBLEU of a translation, as `nmt score` has it."""
    from nmt_cli.scoring.metrics import bleu

    return round(bleu(*(lines_of(file) for file in (hypothesis, reference)), target_language=None).value, 2)


def processes_of(pid: int) -> list[int]:
    """A process and all that it has started, from any of its threads."""
    children: list[str] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread or the process has ended
            children += file.read_text().split()
    return [pid, *(process for child in children for process in processes_of(int(child)))]


def private_megabytes(pid: int) -> float:
    """Private_Clean + Private_Dirty of a process; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
        return (sizes["Private_Clean"] + sizes["Private_Dirty"]) * 1024 / 1e6
    return 0.0


@dataclass
class Largest:
    """The largest value so far."""

    value: float = 0.0


@contextmanager
def largest(measure: Callable[[], float], *, every_seconds: float) -> Iterator[Largest]:
    """The largest value of `measure` while the block runs."""
    found, done = Largest(), threading.Event()

    def look() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(every_seconds)
            found.value = max(found.value, measure())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def lines_of(file: Path) -> list[str]:
    """The lines of a text file, .gz or plain."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.decode().split("\n")[:-1]


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) if digits else round(value)
