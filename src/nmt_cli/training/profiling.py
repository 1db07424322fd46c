"""Where the time of an update goes: some of them watched by torch's profiler, and their operations put in kinds."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

FOLDER = "profile"
"""In the run."""

_WARM_UP_UPDATES = 3
_SILENT = "99"  # torch's profiler would tell on stderr when it begins and ends
_TOP = 15
_SPAN = "nmt: update"
_WAITING, _OTHER = "waiting for data", "other"
# An operation is of the first kind that its name, or that of one it is part of, belongs to: ours by their classes,
# torch's by operator, kernels of GPUs by what libraries and the compiler call them.
_KINDS = {
    "attention": r"attention|attend|_Products|flash|fmha",
    "optimizer": r"^Optimizer\.|_fused_adam|FusedAdam|multi_tensor_apply",
    "sums over ranks": r"nccl|gloo|c10d|all_?reduce",
    "matrix products": r"\b(mm|addmm|bmm|baddbmm|linear|matmul)\b|gemm|cutlass|nvjet|xmma|mkldnn_linear",
    "softmax and loss": r"CrossEntropy|softmax|logsumexp",
    "norms": r"layer_?norm|rms_?norm|NormBackward",
    "dropout": r"dropout|_BitMask|bernoulli",
    "copies and casts": r"\b(copy_|_to_copy|to|clone|contiguous|cat|index_select|embedding)\b|memcpy|copy_kernel",
}


@dataclass(slots=True)
class Times:
    """Milliseconds of the updates that were watched, by kind and by operation; `spans` of updates in microseconds."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    kinds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    operations: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total(self) -> float:
        """Milliseconds that the updates took."""
        return sum(end - begin for begin, end in self.spans) / 1000

    def add(self, name: str, kind: str, microseconds: float) -> None:
        """Count an operation."""
        self.kinds[kind] += microseconds / 1000
        self.operations[name, kind] += microseconds / 1000


class Profiling:
    """Watches `num_updates` of a training, if any, after a few that warm up, and writes what it saw into a folder.

    `waited` tells the seconds of the training that it waited for data; `pause` is called before what is no part of an
    update; `say` is given the summary, and where the files are. Leaving the context tells what was seen until then.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_updates: int,
        device: torch.device,
        waited: Callable[[], float],
        pause: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._num_updates, self._device = folder, num_updates, device
        self._waited, self._pause, self._say = waited, pause, say
        self._waits: list[float] = []
        self._profile: profile | None = None

    def __enter__(self) -> Profiling:
        if self._num_updates:
            os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
            watching = schedule(skip_first=_WARM_UP_UPDATES - 1, wait=0, warmup=1, active=self._num_updates, repeat=1)
            self._profile = profile(activities=activities, schedule=watching, on_trace_ready=self._tell)
            self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.stop()
        if self._num_updates and len(self._waits) <= _WARM_UP_UPDATES:
            self._say(f"--profile: the training ended before {_WARM_UP_UPDATES + 1} updates, and none was watched")

    @contextmanager
    def update(self) -> Iterator[None]:
        """A context for an update."""
        if self._profile is None:
            yield
            return
        before = self._waited()
        with record_function(_SPAN):
            yield
        self._waits.append(self._waited() - before)
        self._pause()
        self._profile.step()

    def _tell(self, found: profile) -> None:
        """Write and tell what was found, once."""
        self._profile = None
        times = times_of(found.events() or (), on_gpu=self._device.type == "cuda")
        if not times.spans:
            return
        waited = self._waits[_WARM_UP_UPDATES:][: len(times.spans)]
        summary = summary_of(times, waited_ms=1000 * sum(waited), device=self._device)
        trace, table = self._folder / "trace.json.gz", self._folder / "summary.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            table.write_text(summary, encoding="utf-8")
            found.export_chrome_trace(str(trace))
        except OSError as problem:  # no reason to end a training
            self._say(f"{summary}not written to {self._folder}: {problem.strerror}")
        else:
            self._say(f"{summary}written to {table}; {trace} is for https://ui.perfetto.dev")


def times_of(events: Iterable[Any], *, on_gpu: bool) -> Times:
    """The times of operations within the spans of updates: on a GPU of its kernels, else of those on the CPU."""
    events = list(events)
    of_cpu = [event for event in events if event.device_type.name == "CPU"]
    times = Times(sorted((e.time_range.start, e.time_range.end) for e in of_cpu if e.name == _SPAN))
    if not on_gpu:
        for event in of_cpu:
            chain = _chain(event)
            if event.name == _SPAN:
                times.add("Python", _OTHER, event.self_cpu_time_total)
            elif _SPAN in chain:
                times.add(event.name, kind_of(chain[: chain.index(_SPAN)]), event.self_cpu_time_total)
        return times
    launchers = {event.id: event for event in of_cpu}
    for event in events:
        is_kernel = event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
        if is_kernel and any(begin <= event.time_range.start <= end for begin, end in times.spans):
            launcher = launchers.get(event.id)
            kind = kind_of([event.name])
            if kind == _OTHER and launcher is not None:
                kind = kind_of(_chain(launcher))
            times.add(event.name, kind, event.time_range.elapsed_us())
    return times


def kind_of(names: list[str]) -> str:
    """The kind of an operation, by its name and those of the ones that it is part of."""
    for kind, pattern in _KINDS.items():
        if any(re.search(pattern, name, re.IGNORECASE) for name in names):
            return kind
    return _OTHER


def summary_of(times: Times, *, waited_ms: float, device: torch.device) -> str:
    """Two tables in words: where the time goes by kind, and the operations that take most of it."""
    updates, total = max(len(times.spans), 1), max(times.total, 1e-9)
    kinds: dict[str, float] = defaultdict(float, times.kinds)
    kinds[_WAITING] += waited_ms
    idle = total - sum(kinds.values())
    if device.type == "cuda":
        kinds["idle"] = max(idle, 0.0)
    else:
        kinds[_OTHER] = max(kinds[_OTHER] - waited_ms, 0.0)  # what Python does in between is counted there
    lines = [f"{len(times.spans)} updates on {device}, {total / updates:.2f} ms each, of which:", ""]
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    lines += [_line(kind, ms / updates, ms / total) for kind, ms in ordered]
    lines += ["", "the operations that take most:", ""]
    for (name, kind), ms in sorted(times.operations.items(), key=lambda item: -item[1])[:_TOP]:
        lines.append(_line(f"{name[:60]} ({kind})", ms / updates, ms / total))
    return "\n".join(lines) + "\n"


def _line(text: str, ms: float, share: float) -> str:
    return f"{share:>7.1%} {ms:>10.2f} ms  {text}"


def _chain(event: Any) -> list[str]:
    """The names of an operation and of those that it is part of, itself first."""
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    return names
