"""The GPU's path through training and search on a null GPU: compiled, captured and replayed without a card.

make null-gpu

The null GPU is torch's CUDA build on a device that executes nothing. Kernels are compiled and launched, captures are
checked, and the host's time is real. Numbers that a kernel would compute are not. What runs: the demo's training from
start to end, steps of base and big, one of eight ranks, two ranks over gloo, and the steps of a search. The parts are
in null_parts.py. What each part launched is written into --folder, where step_model.py finds it.

Ends with 1 and names each problem: a call that a capture forbids, a step that is not compiled or not replayed, a
warning, too many nodes, too much time of the host.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_NODES_OF_STEP = {"base": 520}
MOST_NODES_OF_SEARCH = {"base": 100}
MOST_HOST_MILLISECONDS = 2.0
"""For an update of one micro-batch on each of 8 ranks."""

_ROOT = Path(__file__).resolve().parents[2]
_CAPTURED = re.compile(r"\[nullgpu\] captured a graph of (\d+) nodes")
_RANKS, _FEW_TOKENS = 8, 3125
_PARTS = {
    "base": ("step", "--size", "base"),
    "big": ("step", "--size", "big"),
    "base-8": ("step", "--size", "base", "--tokens", str(_FEW_TOKENS), "--world-size", str(_RANKS)),
    "big-8": ("step", "--size", "big", "--tokens", str(_FEW_TOKENS), "--world-size", str(_RANKS)),
    "search-1": ("search", "--sentences", "1"),
    "search-256": ("search", "--sentences", "256"),
}
_DEMO = [
    *("training.updates=20", "training.checkpoint_every=10", "training.log_every=5"),
    *("validation.every=10", "validation.bleu=false", "validation.metric=loss"),
]
_SMALL_DEMO = ["limit=2000"]


@dataclass(slots=True)
class Outcome:
    """What a part found, the nodes of each graph that it captured, and its problems."""

    name: str
    facts: dict[str, Any]
    nodes: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def main() -> None:
    """Run the parts, print a table or JSON, and end with 1 if there are problems."""
    arguments = _arguments()
    folder = Path(arguments.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in arguments.parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        outcomes += _run_part(name, folder)
    for outcome in outcomes:
        outcome.problems += _judge(outcome)
    problems = [f"{outcome.name}: {problem}" for outcome in outcomes for problem in outcome.problems]
    if arguments.json:
        print(json.dumps({"parts": [_told(outcome) for outcome in outcomes], "problems": problems}, indent=2))
    else:
        print("\n".join(_table(outcomes)))
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


def _run_part(name: str, folder: Path) -> list[Outcome]:
    if name == "demo":
        return [_demo(folder)]
    if name == "ranks":
        return _two_ranks(folder)
    (outcome,) = _finished([_start(name, _PARTS[name], folder)])
    return [outcome]


def _demo(folder: Path) -> Outcome:
    """Prepare the demo and train it to its end. It is quiet, so everything that it prints is a warning or an error."""
    nmt = [sys.executable, "-P", "-m", "nmt_cli", "--quiet"]
    small = [word for setting in _SMALL_DEMO for word in ("--set", setting)]
    settings = [word for setting in _DEMO for word in ("--set", setting)]
    commands = [
        [*nmt, "prepare", "demo", "--workers", "1", "--overwrite", *small],
        [*nmt, "train", "demo", "--device", "cuda", *settings],
    ]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    outcome = Outcome("demo", {"updates": 20})
    for command in commands:
        process = subprocess.run(
            command, cwd=folder, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        _read_errors(outcome, process.stderr, code=process.returncode)
        if outcome.problems:
            return outcome
    lines = (folder / "runs" / "demo" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    outcome.facts["events"] = dict(Counter(json.loads(line)["event"] for line in lines))
    if not (folder / "runs" / "demo" / "model").exists():
        outcome.problems.append("the training has left no model")
    return outcome


def _two_ranks(folder: Path) -> list[Outcome]:
    store = folder / "ranks.store"
    store.unlink(missing_ok=True)
    options = ("ranks", "--tokens", str(_FEW_TOKENS), "--store", str(store))
    started = [_start(f"rank-{rank}", (*options, "--rank", str(rank)), folder, devices=2) for rank in range(2)]
    return _finished(started)


@dataclass(frozen=True, slots=True)
class _Started:
    """A part that is running."""

    name: str
    process: subprocess.Popen[str]
    output: Path
    errors: Path


def _start(name: str, options: Sequence[str], folder: Path, *, devices: int = 1) -> _Started:
    output, errors = folder / f"{name}.json", folder / f"{name}.log"
    output.unlink(missing_ok=True)
    script = Path(__file__).with_name("null_parts.py")
    with errors.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, str(script), *options, "--output", str(output)],
            cwd=folder,
            env=_environment() | {"NULLGPU_COUNT": str(devices)},
            stdout=file,
            stderr=file,
            text=True,
        )
    return _Started(name, process, output, errors)


def _finished(parts: Sequence[_Started]) -> list[Outcome]:
    found = []
    for part in parts:
        code = part.process.wait()
        facts = json.loads(part.output.read_text(encoding="utf-8")) if part.output.exists() else {}
        outcome = Outcome(part.name, facts)
        _read_errors(outcome, part.errors.read_text(encoding="utf-8"), code=code)
        found.append(outcome)
    return found


def _read_errors(outcome: Outcome, text: str, *, code: int) -> None:
    """Read nodes and problems from a process's stderr: everything but the sizes of graphs is a problem."""
    others: Counter[str] = Counter()
    for line in text.splitlines():
        if captured := _CAPTURED.search(line):
            outcome.nodes.append(int(captured[1]))
        elif line.strip():
            others[line.strip()] += 1
    if code:
        outcome.problems.append(f"ended with {code}: " + " | ".join(list(others)[-6:]))
    else:
        outcome.problems += [line if count == 1 else f"{line} ({count} times)" for line, count in others.items()]


def _judge(outcome: Outcome) -> list[str]:
    """The problems in the figures of a finished part."""
    facts, nodes, found = outcome.facts, max(outcome.nodes, default=0), []
    if "updates" in facts and not nodes:
        found.append("no step was captured")
    if "replays" in facts and not facts["replays"]:
        found.append("nothing was replayed")
    if facts.get("reason_not_to_compile"):
        found.append(f"not compiled: {facts['reason_not_to_compile']}")
    for key, problem in (("graph_breaks", "breaks in compiled graphs"), ("graphs_compiled_later", "graphs compiled")):
        if facts.get(key):
            found.append(f"{facts[key]} {problem}" + (" after the warm-up" if key == "graphs_compiled_later" else ""))
    bounds = MOST_NODES_OF_SEARCH if "sentences" in facts and "slots" not in facts else MOST_NODES_OF_STEP
    bound = bounds.get(facts.get("size", ""))
    if bound is not None and nodes > bound:
        found.append(f"a graph of {nodes} nodes, and the bound is {bound}")
    if facts.get("world_size") == _RANKS and facts["size"] == "base":
        host = facts["milliseconds_of_host"]
        if host > MOST_HOST_MILLISECONDS:
            found.append(f"{host:.2f} ms of the host an update, and the bound is {MOST_HOST_MILLISECONDS}")
    if "elements_summed" in facts:
        if facts["elements_summed"] != facts["parameters"]:
            found.append(f"{facts['elements_summed']} gradients are summed, and there are {facts['parameters']}")
        if not facts["is_sum_right"]:
            found.append("the sum over two ranks is not that of their gradients")
    return found


def _told(outcome: Outcome) -> dict[str, Any]:
    facts = {key: value for key, value in outcome.facts.items() if key not in ("captured", "launched")}
    return {"part": outcome.name, "nodes": outcome.nodes, "facts": facts, "problems": outcome.problems}


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    heads = ["part", "nodes", "bound", "replays", "host ms", "bound", "waits", "sums", "problems"]
    rows = [heads]
    for outcome in outcomes:
        facts, size = outcome.facts, outcome.facts.get("size", "")
        is_search = outcome.name.startswith("search")
        bound = (MOST_NODES_OF_SEARCH if is_search else MOST_NODES_OF_STEP).get(size, "")
        host = facts.get("milliseconds_of_host")
        is_bounded = facts.get("world_size") == _RANKS and size == "base"
        sums = facts.get("round_trips", len(facts["sums"]) if "sums" in facts else "")
        rows.append(
            [
                outcome.name,
                str(max(outcome.nodes, default="")),
                str(bound),
                str(facts.get("replays", "")),
                f"{host:.2f}" if host is not None else "",
                str(MOST_HOST_MILLISECONDS) if is_bounded else "",
                str(facts.get("waits", "")),
                str(sums),
                str(len(outcome.problems) or ""),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return [
        "  ".join(word.ljust(width) if place == 0 else word.rjust(width) for place, (word, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _environment() -> dict[str, str]:
    """The environment of a part: it imports this tree, and launches with too much shared memory are reported."""
    return os.environ | {"PYTHONPATH": str(_ROOT / "src"), "NULLGPU_SMEM": "1", "OMP_NUM_THREADS": "1"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ["demo", *_PARTS, "ranks"]
    parser.add_argument("parts", nargs="*", default=known, metavar="PART", help=f"of {', '.join(known)}; default all")
    parser.add_argument("--folder", default="build/null-gpu/parts", help="where data, logs and launches are written")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    main()
