"""A run's directory: begun once, continued by the same command, refused if the recipe or the data differ."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import files
from nmt_cli.artifacts.directory_kinds import kind_of
from nmt_cli.artifacts.manifest import RUN_FILE, licence_files
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import CHECKPOINTS, InitialModel, Run, RunRecord, open_run
from nmt_cli.dataset.data_manifest import read_manifest
from nmt_cli.dataset.prepared_data import Array, PreparedData
from nmt_cli.dataset.sampled_pieces import SAMPLED
from nmt_cli.decoding.attention_maps import layer_of_alignments
from nmt_cli.errors import DataError, ModelError, RecipeError, UsageError
from nmt_cli.recipe.loading import ResolvedRecipe, dump_recipe
from nmt_cli.recipe.mistakes import as_written
from nmt_cli.recipe.schema import Recipe, TrainedLines
from nmt_cli.recipe.section import as_name, flatten
from nmt_cli.recipe.training import ConstantConfig, InverseSqrtConfig, NoamConfig
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.training.initial_weights import describe_initial_model

logger = logging.getLogger(__name__)

_Settings = Mapping[tuple[str, ...], Any]  # by key path
_MAX_NAMED = 3  # settings in an error

# Settings that may change between the starts of a run, because its updates do not depend on them.
_MAY_CHANGE = (
    ("name",),
    ("description",),
    ("corpus",),
    ("averaging",),
    ("decoding",),
    ("validation",),
    *(("training", key) for key in ("log_every", "checkpoint_every", "keep_last", "keep_best", "patience")),
    *(("training", key) for key in ("max_skipped_updates", "spike_nats", "watchdog_seconds")),
    *(("training", key) for key in ("max_tokens_per_device", "compile")),  # the same updates, other dropout masks
    ("training", "precision"),  # checked against what the checkpoints were trained in
)

# How many pairs' lengths are read at once.
_BLOCK_PAIRS = 1 << 20


def named_after_data_and_model(
    resolved: ResolvedRecipe, data: Path, *, init_from: Path | None, is_packaged: bool
) -> ResolvedRecipe:
    """The recipe with another corpus or an initial model added to its name, which its run has too.

    A recipe of the package describes its own corpus, so with another corpus it gets another description. A name that
    the user sets stays.
    """
    recipe = resolved.recipe
    is_name_set = resolved.origins["name"].startswith("--set ")
    changes: dict[str, str] = {}
    try:
        corpus: str | None = read_manifest(data).name
    except DataError:  # opening the data says what is wrong with it
        corpus = recipe.corpus
    if corpus is not None and corpus != recipe.corpus and is_packaged and not is_name_set:
        changes["name"] = f"{corpus}-{recipe.name}"
        changes["description"] = f"The recipe {recipe.name}, trained on the corpus {corpus}."
        changes["corpus"] = corpus
    origins = dict.fromkeys(changes, f"--data {data}")
    if init_from is not None and not is_name_set:
        changes["name"] = f"{changes.get('name', recipe.name)}-from-{_name_of(init_from)}"
        origins["name"] = f"--init-from {init_from}"
    return ResolvedRecipe(recipe.model_copy(update=changes), resolved.origins | origins)


def _name_of(model: Path) -> str:
    """The name of a model for the name of a run: the name of the model's run, or of its directory."""
    model = model.resolve()
    name = model.parent.name if kind_of(model.parent) == "run" else model.name
    return as_name(name, default="model")


def is_restart_repeated(run: Path) -> bool:
    """Whether torchrun, or the requeued Slurm job that began the run, repeats --restart, which is ignored then."""
    is_repeated = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if not is_repeated and os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and kind_of(run) == "run":
        is_repeated = open_run(run).record.slurm_job == os.environ.get("SLURM_JOB_ID", "")
    if is_repeated:
        logger.info("--restart is ignored in a later try of the same command: %s is kept if it is there", run)
    return is_repeated


def open_or_begin(
    directory: Path,
    recipe: Recipe,
    data: PreparedData,
    *,
    command: Sequence[str],
    restart: bool,
    init_from: Path | None,
) -> Run:
    """The run in `directory`; begun if there is none, or none that has saved anything.

    A new run begins with the weights of the model directory `init_from`, or with random weights for None. Raises
    RecipeError if the run has other settings, data or initial weights; `restart` removes the run first.
    """
    is_run = kind_of(directory) == "run"
    if is_run and not restart:
        run = open_run(directory)
        error = _difference_error(run, recipe, data, init_from, command)
        if error is None:
            return _continue_with(run, recipe, data, command, init_from)
        if not _has_saved_nothing(directory):
            raise error
    initial = None if init_from is None else describe_initial_model(init_from, recipe, data)
    if is_run:
        if initial is not None and Path(initial.path).is_relative_to(directory.resolve()):
            message = f"--restart would remove {init_from}, with which the new run is to begin"
            raise UsageError(message, setting="init_from", hint="give the new run another folder with -o")
        with files.disk_errors(directory, ModelError):
            files.remove_directory(directory.resolve())  # a link stays: `new_directory` follows it
    files.check_replaceable(directory, kind_name="a run", is_same_kind=False, overwrite=False)
    with files.new_directory(directory, error=ModelError) as temporary:
        shutil.copyfile(data.source_tokenizer_file, temporary / "source.spm")
        shutil.copyfile(data.target_tokenizer_file, temporary / "target.spm")
        for name, content in licence_files([] if initial is None else [Path(initial.path)]).items():
            (temporary / name).write_bytes(content)
        (temporary / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
        (temporary / RUN_FILE).write_text(_as_json(_record(data, recipe, command, initial)), encoding="utf-8")
    return open_run(directory)


def _continue_with(run: Run, recipe: Recipe, data: PreparedData, command: Sequence[str], init_from: Path | None) -> Run:
    """The run, whose settings may have changed, and whose data may have moved; then `command` is what continues it."""
    old, new = flatten(run.recipe.model_dump(mode="json")), flatten(recipe.model_dump(mode="json"))
    # A setting that only the old recipe has belongs to an optimizer or schedule that is no longer used: it is not told.
    changes = _differences(new, {path: old.get(path) for path in new})
    if not changes and Path(run.record.data).resolve() == data.directory.resolve():
        return run
    if changes:
        logger.info("the run goes on with %s", "; ".join(changes))
        files.write_file(run.directory / "recipe.yaml", dump_recipe(recipe), error=ModelError)
    initial = run.record.init_from if init_from is None else None  # later starts may leave it out
    command = [*command, *([] if initial is None else ["--init-from", initial.path])]
    return _update_record(run, data=str(data.directory), command=command)


def write_record(run: Run, *, is_finished: bool) -> Run:
    """Write the record of a run, run.json, with the time when the training finished, or without, if it continues."""
    return _update_record(run, finished=_now() if is_finished else None)


def recipe_fingerprint(recipe: Recipe, data: PreparedData, *, init_from: InitialModel | None) -> str:
    """A digest of everything the weights depend on: checkpoints of one training share it."""
    values = {".".join(path): value for path, value in _fixed_settings(recipe).items()}
    beginning = [] if init_from is None else [init_from.weights_sha256]
    text = json.dumps([values, data.manifest.fingerprint, _fingerprints(data), *beginning], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def locked_run(directory: Path) -> AbstractContextManager[None]:
    """Lock the run in `directory`, which need not exist yet; ModelError if another process has locked it."""
    return files.lock_path(directory, busy=f"another nmt train is at work in {directory}", error=ModelError)


def _update_record(run: Run, **values: Any) -> Run:
    record = run.record.model_copy(update=values)
    files.write_file(run.directory / RUN_FILE, _as_json(record), error=ModelError)
    return open_run(run.directory)


def _difference_error(
    run: Run, recipe: Recipe, data: PreparedData, init_from: Path | None, command: Sequence[str]
) -> RecipeError | None:
    """The error of a run that cannot continue with this recipe, data and initial model; None if it can."""
    record, has_other_vocabulary = run.record, run.record.tokenizers != _fingerprints(data)
    another = "give the new run another folder with -o, or begin anew with --restart (removes the run)"
    if not has_other_vocabulary and not run.recipe.model.differing_keys(recipe.model):
        other = run.directory.with_name(f"{run.directory.name}-2")
        has_model = any(kind_of(run.directory / name) == "model" for name in ("model", "averaged"))
        make_model = "" if has_model else f"{shlex.join(['nmt', 'average', str(run.directory), '--last', '1'])} && "
        # Of an option that is given twice, the last one counts.
        begin = shlex.join([*command, "--init-from", str(run.directory), "-o", str(other)])
        another = f"continue it with its own settings, or begin a new run with its weights: {make_model}{begin}"
    old, new = _fixed_settings(run.recipe), _fixed_settings(recipe)
    if changes := _differences(old, new):
        return RecipeError(
            f"the run in {run.directory} was trained with {'; '.join(changes[:_MAX_NAMED])}",
            where=str(run.directory / "recipe.yaml"),
            hint=another,
        )
    if has_other_vocabulary or record.data_summary.get("fingerprint") != data.manifest.fingerprint:
        return RecipeError(
            f"the run in {run.directory} was begun with the data in {record.data}, not with {data.directory}",
            where=str(data.directory),
            hint=another,
        )
    initial_weights = "random weights" if record.init_from is None else record.init_from.path
    if init_from is not None and initial_weights != str(init_from.resolve()):  # later starts may leave out --init-from
        return RecipeError(
            f"the run in {run.directory} was begun from {initial_weights}, not from {init_from}",
            setting="init_from",
            hint="leave out --init-from to continue it, or give the new run another folder with -o",
        )
    newest = max((checkpoint.update for checkpoint in run.checkpoints()), default=0)
    if newest > recipe.training.updates:
        return RecipeError(
            f"the run in {run.directory} has taken {newest:,} updates, more than training.updates,"
            f" {recipe.training.updates:,}",
            where="training.updates",
            hint=f"give --set training.updates={newest} or more, or another folder with -o",
        )
    return None


def _differences(settings: _Settings, others: _Settings) -> list[str]:
    """The settings that differ, as KEY VALUE, not OTHER VALUE."""
    return [
        f"{'.'.join(path)} {as_written(settings.get(path))}, not {as_written(others.get(path))}"
        for path in {**settings, **others}
        if settings.get(path) != others.get(path)
    ]


def _has_saved_nothing(directory: Path) -> bool:
    """True if a start failed before it had trained and saved anything, and left nothing else."""
    files.clear_partial_directories(directory / CHECKPOINTS, name="update-*")
    expected = {"recipe.yaml", RUN_FILE, "source.spm", "target.spm", "metrics.jsonl", CHECKPOINTS, ".sanity", SAMPLED}
    expected |= {"tensorboard", "profile", "report.html"}
    saved = {path.name for path in (directory / CHECKPOINTS).glob("*")}
    return saved <= {"update-00000000"} and all(path.name in expected for path in directory.iterdir())


def _fixed_settings(recipe: Recipe) -> _Settings:
    """The settings, by path, that must stay the same in all starts of a run."""
    settings = flatten(recipe.model_dump(mode="json"))
    may_change = [*_MAY_CHANGE]
    if isinstance(recipe.training.schedule, NoamConfig | InverseSqrtConfig | ConstantConfig):
        may_change.append(("training", "updates"))  # the rate does not depend on the length
    return {
        path: value
        for path, value in settings.items()
        if not any(path[: len(section)] == section for section in may_change)
    }


def _record(data: PreparedData, recipe: Recipe, command: Sequence[str], initial: InitialModel | None) -> RunRecord:
    manifest = data.manifest
    return RunRecord.model_validate(
        {
            "languages": manifest.languages.model_dump(),
            "data": str(data.directory),
            "corpus": manifest.name,
            "source_vocab": manifest.tokenizers.source.vocab_size,
            "target_vocab": manifest.tokenizers.target.vocab_size,
            "tokenizers": _fingerprints(data),
            "command": list(command),
            "started": _now(),
            "init_from": initial,
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
            "trained_lines": _trained_lines(data, initial, max_positions=recipe.model.max_positions),
            "guided_layer": _guided_layer(recipe, initial),
            "data_summary": {
                "fingerprint": manifest.fingerprint,
                "splits": {name: counts.model_dump() for name, counts in manifest.splits.items()},
                "unique_pairs": manifest.unique_pairs,
                "inputs": [entry.model_dump() for entry in manifest.inputs],
                "corpus": manifest.corpus,
            },
        }
    )


def _trained_lines(data: PreparedData, initial: InitialModel | None, *, max_positions: int) -> TrainedLines | None:
    """The record of the source lines in this training and in the initial model's training.

    Pairs that the model cannot take do not count. None if nothing is known about the one or the other.
    """
    pairs, counts = data.split("train"), np.zeros(max_positions, dtype=np.int64)
    tokenizer = Tokenizer.load(data.source_tokenizer_file)
    is_special = np.zeros(tokenizer.vocab_size, dtype=bool)
    is_special[tokenizer.control_ids] = True
    for start in range(0, len(pairs), _BLOCK_PAIRS):
        stop = min(start + _BLOCK_PAIRS, len(pairs))
        offsets = pairs.src.read_offsets(start, stop + 1)
        source, target = np.diff(offsets), np.diff(pairs.tgt.read_offsets(start, stop + 1))
        num_special: Array | int = 1  # EOS
        if tokenizer.symbols:  # of a language, and tags
            of_tokens = is_special[pairs.src.ids(start, stop)]
            num_special = np.add.reduceat(of_tokens, offsets[:-1] - offsets[0], dtype=np.int64)
        taken = (source - num_special)[np.maximum(source, target) <= max_positions]
        counts += np.bincount(taken, minlength=max_positions)
    share = data.manifest.several_sentences
    if share is None or not counts[1:].any():
        return None
    # Rounded down, so that a single outlier among few lines changes nothing.
    usual_longest = int(np.searchsorted(np.cumsum(counts), int(0.99 * (counts.sum() - 1)), side="right"))
    own = TrainedLines(
        several_sentences=share,
        in_capitals=data.manifest.in_capitals,
        in_title_case=data.manifest.in_title_case,
        usual_longest=max(1, usual_longest),
    )
    before = own if initial is None else load_saved_config(Path(initial.path)).trained_lines
    return TrainedLines.combined([own, before])


def _guided_layer(recipe: Recipe, initial: InitialModel | None) -> int | None:
    """The layer, from 1, of the head that is guided, or was in the initial model: other training hardly changes it."""
    if recipe.training.guided_alignment:
        return layer_of_alignments(recipe.model.decoder_layers) + 1
    return None if initial is None else load_saved_config(Path(initial.path)).guided_layer


def _fingerprints(data: PreparedData) -> dict[str, str]:
    tokenizers = data.manifest.tokenizers
    return {"source": tokenizers.source.fingerprint, "target": tokenizers.target.fingerprint}


def _as_json(record: RunRecord) -> str:
    return json.dumps(record.model_dump(mode="json"), indent=2) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
