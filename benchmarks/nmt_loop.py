"""`nmt`'s own training loop without validation, checkpoints and log: data order, loader, compiled updates."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from measuring import Figures

from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import choose_device, choose_precision, multiply_float32_fast
from nmt_cli.memory import keep_freed_memory
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.loader import Loader
from nmt_cli.training.micro_batch_size import max_tokens_before_fitting
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.profile import Profiler
from nmt_cli.training.reporting.training_metrics import ComputeCost, measure_compute, memory_gb
from nmt_cli.training.update import LaunchedUpdate, Updater


class NmtLoop:
    """A context that takes updates of a recipe on prepared data; compiling and recording are done when it begins.

    All of an update is taken at once: the recipe says how many tokens a device takes.
    """

    def __init__(self, recipe: Recipe, data: PreparedData, *, device: str) -> None:
        self.recipe = recipe
        self._ranks = Ranks(0, 1, choose_device(device))
        if self._ranks.device.type == "cpu":
            keep_freed_memory()
            multiply_float32_fast(self._ranks.device)
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._order = DataOrder(
            data,
            recipe,
            world_size=1,
            max_tokens=max_tokens_before_fitting(recipe.training),
            run_directory=folder,
            beat=lambda: None,
        )
        self._model = build_model(recipe, data).to(self._ranks.device)
        precision = choose_precision(recipe.training.precision, device=self._ranks.device, training=True)
        self._updater = Updater(recipe, self._model, precision=precision, ranks=self._ranks)
        self._loader = Loader(self._order, self._ranks, is_interrupted=lambda: False)
        self._number, self._source, self._target, self._slots = 0, 0, 0, 0
        self._launched: LaunchedUpdate | None = None
        self._ready_seconds, self._graphs, self._memory_gb = 0.0, 0, 0.0

    def __enter__(self) -> NmtLoop:
        self._cost: ComputeCost = measure_compute(self._model, self._ranks)
        start = time.perf_counter()
        extremes, device = (self._order.longest_rows, self._order.full_rows), self._ranks.device
        self._updater.warm_up([self._order.batch(rows, device=device, pinned=False) for rows in extremes])
        self._ready_seconds, self._graphs = time.perf_counter() - start, _graphs_compiled()
        self._memory_gb = memory_gb(self._ranks.device)  # before other models come to lie in the same process
        self._stack.enter_context(self._loader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def tokens_an_update(self) -> tuple[float, float]:
        """Mean source and target tokens per update, with EOS."""
        return self._source / self._number, self._target / self._number

    @property
    def flops_per_target_token(self) -> float:
        """The model's operations per target token and its share of the source, counted as in the log of a training."""
        return self._cost.flops(source_tokens=self._source, target_tokens=self._target) / self._target

    def facts(self) -> Figures:
        """Padding, waiting, shape, memory, and the time of compiling."""
        shape = self._order.shape
        source, target = self.tokens_an_update
        return {
            "not_compiled": self._updater.reason_not_to_compile,
            "seconds_to_compile_and_record": round(self._ready_seconds, 1),
            "padding": round(1 - (self._source + self._target) / self._slots, 4),
            "seconds_waited_for_data": round(self._loader.waited_seconds, 3),
            "tokens_an_update": [round(source), round(target)],
            "slots": [shape.src_slots, shape.tgt_slots],
            "gflop_a_target_token": round(self.flops_per_target_token / 1e9, 4),
            "graphs_compiled_after_the_start": _graphs_compiled() - self._graphs,
            "peak_memory_gb": round(self._memory_gb, 2),
        }

    def update(self) -> int:
        """Take one update, and return its target tokens with EOS."""
        self._number += 1
        loaded = self._loader.next(num_left=self.recipe.training.updates)
        assert loaded is not None, "nothing interrupts this loop"
        update = loaded.planned
        launched = self._updater.launch(
            loaded.batches,
            number=self._number,
            num_micro_batches=len(update.micro_batches),
            target_tokens=update.target_tokens,
            received_signal=lambda: None,
        )
        # As in a training, the host reads the update before, if the device does not need it.
        read, self._launched = (self._launched, launched) if self._updater.reads_late else (launched, None)
        if read is not None:
            read.result()
        self._source += update.source_tokens
        self._target += update.target_tokens
        self._slots += update.slots
        return update.target_tokens

    def profile(self, folder: Path, *, updates: int) -> list[str]:
        """The lines that `nmt train --profile` prints; the folder gets them too, with the trace."""
        told: list[str] = []
        profiling = Profiler(
            folder,
            num_updates=updates,
            device=self._ranks.device,
            print_line=told.append,
        )
        with profiling:
            while not told:
                with profiling.update():
                    self.update()
        return [line for text in told for line in text.splitlines() if line]


def _graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
