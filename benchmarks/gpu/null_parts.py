"""The parts that `null_gpu.py` runs on the null GPU, each in a process of its own; their numbers are not real.

step    Updates of a training: what is captured, launched and waited for, and the host's time.
search  Beam search with recorded steps.
ranks   One of two ranks that replay a micro-batch and sum their gradients over gloo.

A part writes what it found as JSON into --output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from launch_log import GRAPH, LaunchLog, to_json
from torch import distributed as dist

from nmt_cli.dataset.batches import Batch, make_batch
from nmt_cli.dataset.micro_batches import MicroBatchShape
from nmt_cli.dataset.prepared_data import SIDES, TokenWriter, open_pairs
from nmt_cli.devices import SHORT_SENTENCE_TOKENS
from nmt_cli.model.cuda_graphs import CudaGraphs
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.training_metrics import measure_compute
from nmt_cli.training.update import Updater

_PIECES = 37_000
_PIECES_OF_SEARCH = 32_000
_SPECIAL = 4
_STEPS = 20  # of a search that are replayed
_UPDATES = 12  # timed; the best counts, because other programs can only slow one down

Facts = dict[str, Any]


def main() -> None:
    """Run one part."""
    arguments = _arguments()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[argparse.Namespace], Facts]] = {"step": _step, "search": _search, "ranks": _ranks}
    facts = parts[arguments.part](arguments)
    Path(arguments.output).write_text(json.dumps(facts), encoding="utf-8")


def _step(arguments: argparse.Namespace) -> Facts:
    """Updates of one micro-batch, on one GPU or on one of several whose sums cost nothing."""
    log, device = LaunchLog(), torch.device("cuda", 0)
    if arguments.world_size > 1:
        _pretend_ranks(arguments.world_size)
    ranks = Ranks(0, arguments.world_size, device)
    recipe = _recipe(arguments)
    batch, facts = _batch(arguments.tokens, device=device)
    model = Transformer(recipe.model, source_vocab=_PIECES, target_vocab=_PIECES).to(device)
    updater = Updater(recipe, model, precision="bf16", ranks=ranks)
    start = time.perf_counter()
    updater.warm_up([batch])
    facts |= {"seconds_to_warm_up": round(time.perf_counter() - start, 1)}
    graphs = _graphs_compiled()
    numbers = itertools.count(1)

    def launch() -> Callable[[], object]:
        tokens = facts["target_tokens"] * arguments.world_size
        return _launch(
            updater, [(0, batch)], next(numbers), num_micro_batches=arguments.world_size, target_tokens=tokens
        )

    read_earlier = launch()

    def update() -> None:
        nonlocal read_earlier
        read, read_earlier = read_earlier, launch()
        read()

    milliseconds = [_milliseconds(update) for _ in range(_UPDATES)]
    before = log.waits
    with _SumsNoted() as sums, log.recording() as recording:
        launch()
    waits = log.waits - before
    cost = measure_compute(model, Ranks(0, 1, device))
    return facts | {
        "size": arguments.size,
        "tokens": arguments.tokens,
        "world_size": arguments.world_size,
        "torch": torch.__version__,
        "reason_not_to_compile": updater.reason_not_to_compile,
        "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
        "graphs_compiled": graphs,
        "graphs_compiled_later": _graphs_compiled() - graphs,
        "replays": sum(launch.kind == GRAPH for launch in recording.launched),
        "milliseconds_of_host": min(milliseconds),
        "waits": waits,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "heads": recipe.model.heads,
        "flops": cost.flops(source_tokens=facts["source_tokens"], target_tokens=facts["target_tokens"]),
        "sums": [[numel, str(dtype), size] for numel, dtype, size in sums.noted],
        "captured": to_json(recording.replayed),
        "launched": to_json(recording.launched),
    }


def _search(arguments: argparse.Namespace) -> Facts:
    """A search that ends after some replayed steps: without numbers it would never finish."""
    from nmt_cli.decoding.search.cuda import CudaSearch
    from nmt_cli.decoding.search.hypotheses import SourceSentence

    device = torch.device("cuda", 0)
    recipe, pieces = _recipe(arguments), _PIECES_OF_SEARCH
    model = Transformer(recipe.model, source_vocab=pieces, target_vocab=pieces).to(device, torch.bfloat16).eval()
    recorder = _LeavingGraphs(device)
    beam = CudaSearch([model], device=device, recorder=recorder)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.1, 0.5, arguments.sentences), 4, 60).astype(int)
    sources = [SourceSentence([int(piece) for piece in rng.integers(_SPECIAL, pieces, length)]) for length in lengths]
    with suppress(_Left):
        beam.search(sources, config=recipe.decoding, nbest=1)
    return {
        "size": arguments.size,
        "sentences": arguments.sentences,
        "torch": torch.__version__,
        "replays": recorder.num_replays,
    }


class _Left(Exception):
    """A search was left."""


class _LeavingGraphs(CudaGraphs):
    """Graphs; a search is left after some replays."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.num_replays = 0

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of what the function does; _Left after some replays."""
        replay = super().record(function)

        def replay_or_leave() -> None:
            if self.num_replays == _STEPS:
                raise _Left
            replay()
            self.num_replays += 1

        return replay_or_leave


def _ranks(arguments: argparse.Namespace) -> Facts:
    """One of two ranks: it replays, and the gradients set before the update are summed once."""
    log = LaunchLog()
    device = torch.device("cuda", arguments.rank)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"file://{arguments.store}", rank=arguments.rank, world_size=2)
    ranks = Ranks(arguments.rank, 2, device)
    recipe = _recipe(arguments)
    batch, facts = _batch(arguments.tokens, device=device)
    torch.manual_seed(1)
    model = Transformer(recipe.model, source_vocab=_PIECES, target_vocab=_PIECES).to(device)
    updater = Updater(recipe, model, precision="bf16", ranks=ranks)
    updater.warm_up([batch])
    gradients = updater.weights.gradients
    given = [torch.arange(gradients.numel(), dtype=torch.float32).remainder_(1021).add_(rank) for rank in range(2)]

    def update(number: int) -> None:
        tokens = 2 * facts["target_tokens"]
        _launch(updater, [(arguments.rank, batch)], number, num_micro_batches=2, target_tokens=tokens)()

    update(1)
    # Copies are real on the null GPU and kernels are not: an update changes the vector by its sum over gloo alone.
    gradients.copy_(given[arguments.rank])
    with _SumsNoted() as sums:
        replays = log.count(lambda: update(2), GRAPH)
    vectors = [numel for numel, dtype, _ in sums.noted if numel > 1000 and dtype.is_floating_point]
    dist.destroy_process_group()
    return {
        "rank": arguments.rank,
        "torch": torch.__version__,
        "replays": replays,
        "parameters": gradients.numel(),
        "elements_summed": sum(vectors),
        "dtypes_summed": sorted({str(dtype) for numel, dtype, _ in sums.noted if numel > 1000}),
        "round_trips": len(sums.noted),
        "is_sum_right": bool(torch.equal(gradients.cpu(), given[0] + given[1])),
    }


def _launch(
    updater: Updater, batches: list[tuple[int, Batch]], number: int, *, num_micro_batches: int, target_tokens: int
) -> Callable[[], object]:
    """Give an update to the device, as a training does; what reads its result, which waits for the device."""
    return updater.launch(
        batches,
        number=number,
        num_micro_batches=num_micro_batches,
        target_tokens=target_tokens,
        received_signal=lambda: None,
    ).result


def _recipe(arguments: argparse.Namespace) -> Recipe:
    return load_recipe(arguments.size, overrides=["training.precision=bf16"])


def _batch(tokens: int, *, device: torch.device) -> tuple[Batch, Facts]:
    """A batch whose sentences are as long as those of text, and its figures: 27 tokens on average, at most 126."""
    slots = math.ceil(tokens / 64) * 64
    rng = np.random.default_rng(1)
    src: list[int] = []
    while sum(src) + (length := int(min(120, max(2, rng.lognormal(3.1, 0.62))))) <= slots - 20:
        src.append(length)
    tgt = [max(2, min(126, round(length * rng.lognormal(0, 0.15)))) for length in src]
    while sum(tgt) > slots:
        src.pop()
        tgt.pop()
    places = (int(len(src) + 4 * len(src) ** 0.5) // 8 + 2) * 8
    with TemporaryDirectory() as folder:  # the files stay open
        for side, lengths in zip(SIDES, (src, tgt), strict=True):
            with TokenWriter(Path(folder), split="train", side=side, dtype="uint16") as writer:
                writer.append(rng.integers(_SPECIAL, _PIECES, sum(lengths)), np.array(lengths))
        pairs = open_pairs(Path(folder), "train", dtype="uint16")
    shape = MicroBatchShape(slots, slots, places, length_bound=SHORT_SENTENCE_TOKENS)
    batch = make_batch(pairs.rows(np.arange(len(src))), pairs, device=device, shape=shape, pinned=False)
    return batch, {
        "slots": slots,
        "sentences": len(src),
        "places": places,
        "source_tokens": sum(src),
        "target_tokens": sum(tgt),
    }


class _SumsNoted:
    """A context that notes the sums over ranks: elements, type, and bytes of each."""

    def __enter__(self) -> _SumsNoted:
        self.noted: list[tuple[int, torch.dtype, int]] = []
        self._all_reduce = dist.all_reduce
        dist.all_reduce = self._noted
        return self

    def __exit__(self, *_: object) -> None:
        dist.all_reduce = self._all_reduce

    def _noted(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        self.noted.append((tensor.numel(), tensor.dtype, tensor.numel() * tensor.element_size()))
        return self._all_reduce(tensor, *arguments, **options)


def _pretend_ranks(world_size: int) -> None:
    """Make torch believe in other ranks, whose collectives take no time and change nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())


def _milliseconds(work: Callable[[], None]) -> float:
    """The processor time of some work: other programs affect it less than wall time."""
    start = time.process_time()
    work()
    return 1000 * (time.process_time() - start)


def _graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("step", "search", "ranks"))
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--size", choices=("base", "big"), default="base")
    parser.add_argument("--tokens", type=int, default=25_000, help="slots of each side in the micro-batch")
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=1, help="in a search")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--store", metavar="FILE", help="by which two ranks find each other")
    return parser.parse_args()


if __name__ == "__main__":
    main()
