"""How a training ends, and the model that one leaves which has come to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nmt_cli.bundle.average import choose, make_model
from nmt_cli.bundle.config import load_config
from nmt_cli.bundle.kinds import kind_of
from nmt_cli.bundle.run import Run
from nmt_cli.training.checkpoints import TrainingState
from nmt_cli.training.progress import Reporter
from nmt_cli.training.runs import mark_finished

Ending = Literal["finished", "patience", "preempted", "interrupted"]


def leave_model(run: Run, state: TrainingState, ending: Ending, reporter: Reporter, *, command: Sequence[str]) -> None:
    """Leave a model directory: of the best checkpoint where the recipe keeps those, else of the last."""
    output, keeps_best = run.directory / "model", run.recipe.training.keep_best > 0
    (chosen,) = choose(run, last=None if keeps_best else 1, best=1 if keeps_best else None)
    update = state.update
    is_there = kind_of(output) == "model" and load_config(output).updates == [chosen.update]
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
    make_model(run, [chosen], output=output, overwrite=True, command=command)
    reporter.say(f"model of update {chosen.update:,} written to {output}")
