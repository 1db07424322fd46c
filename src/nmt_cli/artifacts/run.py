"""A run directory on disk: its recipe, record, checkpoints and measurements, and the model that stands for it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from nmt_cli import __version__, files
from nmt_cli.artifacts.checkpoints import Checkpoint, read_checkpoints
from nmt_cli.artifacts.directory_kinds import directories_in
from nmt_cli.artifacts.history import History, read_history
from nmt_cli.artifacts.manifest import DAMAGED_HINT, MANIFEST, RUN_FILE, read_manifest
from nmt_cli.artifacts.model_directory import SavedModelConfig, ValidationResult, Vocabulary, load_saved_config
from nmt_cli.errors import ModelError, NmtError
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.few_pairs import few_pairs_warning
from nmt_cli.recipe.loading import parse_recipe
from nmt_cli.recipe.mistakes import first_mistake
from nmt_cli.recipe.schema import Recipe, TrainedLines

CHECKPOINTS = "checkpoints"
State = Literal["training", "finished", "stopped", "not begun"]
_DAMAGED_RUN_HINT = "restore the file, or start the run anew in another folder"
_UNFINISHED_HINT = "let it finish, or average the checkpoints so far: nmt average {run}"


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class InitialModel(_Fields):
    """The model directory whose weights a run began with, and the licence and base model that its models inherit.

    It is not read again once the run has a checkpoint.
    """

    path: str
    weights_sha256: str
    updates: list[int]
    inherited: dict[str, Any] = {}


class MeasuredTokens(_Fields):
    """The tokens per device that fit this hardware. They are measured if the recipe says auto."""

    tokens: PositiveInt
    devices: PositiveInt
    device: str
    precision: str


class RunRecord(_Fields):
    """run.json: the origin of the run's data, its start, and its command."""

    languages: Directions
    data: str
    corpus: str
    source_vocab: int
    target_vocab: int
    tokenizers: dict[str, str]
    command: list[str]
    started: str
    finished: str | None = None
    init_from: InitialModel | None = None
    max_tokens_per_device: MeasuredTokens | None = None
    trained_lines: TrainedLines | None = None
    guided_layer: int | None = None
    slurm_job: str | None = None
    data_summary: dict[str, Any] = {}

    @property
    def few_pairs_warning(self) -> tuple[str, str] | None:
        """The warning of a training from random weights on too few pairs; None if they suffice."""
        num_pairs, pairs = self.data_summary.get("unique_pairs"), self.languages.pairs
        if self.init_from is not None or num_pairs is None:
            return None
        return few_pairs_warning(self.corpus, num_pairs=num_pairs, pair=pairs[0] if len(pairs) == 1 else None)


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its directory, the recipe with every value, and run.json."""

    directory: Path
    recipe: Recipe
    record: RunRecord

    @property
    def metrics_file(self) -> Path:
        """The events of all trainings of the run."""
        return self.directory / "metrics.jsonl"

    @property
    def num_best_kept(self) -> int:
        """How many of the best checkpoints are kept; if any, the best one becomes the model."""
        training, begins_with_model = self.recipe.training, self.record.init_from is not None
        return max(training.keep_best, int(begins_with_model or training.patience is not None))

    def read_tokenizer(self, side: Literal["source", "target"]) -> bytes:
        """The content of source.spm or target.spm; ModelError unless it is the file that the run started with."""
        file = self.directory / f"{side}.spm"
        if not file.is_file():
            raise ModelError(f"{file.name} is missing", where=str(file), hint=f"copy it from {self.record.data}")
        if files.sha256(file) != self.record.tokenizers[side]:
            message = f"{file.name} is not the tokenizer that this run was trained with"
            raise ModelError(message, where=str(file), hint=f"copy the right one from {self.record.data}")
        return file.read_bytes()

    def saved_config_of(self, updates: list[int]) -> SavedModelConfig:
        """The config.yaml of a model made of the checkpoints at `updates`, with their validation results."""
        record = self.record
        return SavedModelConfig(
            nmt_version=__version__,
            languages=record.languages,
            vocabulary=Vocabulary(
                source=record.source_vocab,
                target=record.target_vocab,
                shared=record.tokenizers["source"] == record.tokenizers["target"],
            ),
            updates=sorted(updates),
            validation=[measured for measured in self.validations() if measured.update in updates],
            trained_lines=record.trained_lines,
            guided_layer=record.guided_layer,
            recipe=self.recipe,
        )

    def validations(self) -> list[ValidationResult]:
        """The validation results of the weights that the run has, by update."""
        return [point.measured for point in self.history().validations]

    def history(self) -> History:
        """The curves, starts and skipped updates of the run, from metrics.jsonl."""
        return read_history(self.events())

    def state(self, history: History) -> State:
        """Whether a process trains the run at this moment, and otherwise how far it came."""
        if files.is_locked(self.directory):
            return "training"
        if self.record.finished is not None:
            return "finished"
        return "stopped" if history.last_update else "not begun"

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in metrics.jsonl. Lines that are not JSON, such as one cut short by a crash, are skipped."""
        if not self.metrics_file.is_file():
            return
        with self.metrics_file.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    event = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if isinstance(event, dict):
                    yield event

    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        return read_checkpoints(self.directory / CHECKPOINTS)


def command_to_continue(command: Sequence[str]) -> str:
    """The command line that trains on, by the command of a run's record: --restart would now remove the run."""
    return shlex.join(word for word in command if word != "--restart")


def open_run(directory: Path) -> Run:
    """The run in `directory`.

    Raises ModelError if it is no run, or if its recipe.yaml or run.json cannot be read.
    """
    if not (directory / RUN_FILE).is_file():
        raise ModelError(
            f"{directory} is not a run: it has no {RUN_FILE}", where=str(directory), hint="nmt train RECIPE makes a run"
        )
    content = files.read_json(directory / RUN_FILE, error=ModelError, hint=_DAMAGED_RUN_HINT)
    try:
        record = RunRecord.model_validate(content)
    except ValidationError as error:
        message = f"{RUN_FILE} is damaged: {first_mistake(error)}"
        raise ModelError(message, where=str(directory / RUN_FILE), hint=_DAMAGED_RUN_HINT) from None
    recipe_file = directory / "recipe.yaml"
    text = files.read_text(recipe_file, error=ModelError, hint=_DAMAGED_RUN_HINT)
    try:
        recipe = parse_recipe(text, source=str(recipe_file))
    except NmtError as error:
        raise ModelError(f"recipe.yaml: {error.message}", where=error.where, hint=_DAMAGED_RUN_HINT) from None
    return Run(directory, recipe, record)


def model_of_latest_run(runs: Path) -> Path:
    """The model, as `model_of_run` chooses it, of the run in `runs` whose model was written last.

    Raises ModelError, which says what to type, if there is no model.
    """
    paths = directories_in(runs, "run")
    if not paths:
        known = next(map(str, directories_in(Path("models"), "model")), "MODEL")
        hint = f"name a model with -m {shlex.quote(known)}, or train one: nmt train RECIPE"
        raise ModelError(f"there is no model: {runs.absolute()} holds no runs", where=str(runs), hint=hint)
    with_model = [run for run in paths if _model_written_at(run)]
    if not with_model:
        hint = _UNFINISHED_HINT.format(run=shlex.quote(str(max(paths))))
        raise ModelError(f"no run in {runs} has a finished model", where=str(runs), hint=hint)
    return model_of_run(max(with_model, key=lambda run: (_model_written_at(run), run)))


def model_of_run(run: Path) -> Path:
    """The averaged/ model of a run, or model/ if the average is missing, worse or older.

    `nmt average` measures which is better. Raises ModelError if the run has neither.
    """
    model, average = run / "model", run / "averaged"
    made = [path for path in (model, average) if (path / MANIFEST).is_file()]
    if not made:
        hint = _UNFINISHED_HINT.format(run=shlex.quote(str(run)))
        raise ModelError(f"the run {run} has no finished model", where=str(run), hint=hint)
    if len(made) == 1:
        return made[0]
    if _last_update(average) < _last_update(model):
        return model
    losses = load_saved_config(average).average_losses
    return model if losses is not None and losses.is_worse else average


def _model_written_at(run: Path) -> int:
    """The time when the last model of a run was written, in nanoseconds; 0 if it has none."""
    manifests = [run / name / MANIFEST for name in ("averaged", "model")]
    return max((file.stat().st_mtime_ns for file in manifests if file.is_file()), default=0)


def _last_update(model: Path) -> int:
    updates: list[int] = read_manifest(model, hint=DAMAGED_HINT).get("updates", [])
    return max(updates, default=0)
