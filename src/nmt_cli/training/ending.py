"""How a training ends: by its recipe, by patience or by a signal; and the model that it writes at its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from nmt_cli.artifacts.average import choose_checkpoints, write_averaged_model
from nmt_cli.artifacts.manifest import kind_of
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import Run
from nmt_cli.training.checkpoints import TrainingState
from nmt_cli.training.reporting.progress import Reporter
from nmt_cli.training.runs import mark_finished

Ending = Literal["finished", "patience", "preempted", "interrupted"]
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ONE_CTRL_C_SECONDS = 1.0


def ending_by_signal(number: int | None) -> Ending | None:
    """The ending for a signal."""
    return "preempted" if number == signal.SIGTERM else "interrupted" if number == signal.SIGINT else None


def write_final_model(
    run: Run, state: TrainingState, ending: Ending, reporter: Reporter, *, command: Sequence[str]
) -> None:
    """Write the model directory, unless it is there, report the end, and mark the run as finished.

    The model is the best checkpoint if the recipe keeps the best, else the last.
    """
    output, keeps_best = run.directory / "model", run.recipe.training.keep_best > 0
    (chosen,) = choose_checkpoints(run, last=None if keeps_best else 1, best=1 if keeps_best else None)
    update = state.update
    is_there = kind_of(output) == "model" and load_saved_config(output).updates == [chosen.update]
    if run.record.finished is not None and is_there:
        reporter.say(f"{run.directory} finished before, after update {update:,}; its model is {output}")
        return
    if ending == "patience":
        reporter.say(
            f"no better {run.recipe.validation.metric} in {state.validations_since_best} validations:"
            f" training ends after update {update:,}"
        )
    reporter.event("end", reason=ending, update=update)
    run = mark_finished(run, is_finished=True)
    write_averaged_model(run, [chosen], output=output, overwrite=True, command=command, measure=None)
    reporter.say(f"model of update {chosen.update:,} written to {output}")


class StopSignal:
    """The signal that has asked the process to end; None if there was none.

    Under torchrun a Ctrl-C `comes_twice`: from the terminal, and from torchrun, which passes it on.
    """

    def __init__(self, *, comes_twice: bool) -> None:
        self.received: int | None = None
        self._ignoring_seconds, self._since = _ONE_CTRL_C_SECONDS if comes_twice else 0.0, 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals while the block runs; a second Ctrl-C raises KeyboardInterrupt at once."""
        earlier = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
        elif number == signal.SIGINT and now - self._since >= self._ignoring_seconds:
            raise KeyboardInterrupt
