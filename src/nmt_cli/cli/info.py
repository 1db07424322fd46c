"""`nmt info`: one screen about a model, a run, a checkpoint or prepared data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer

from nmt_cli.cli.arguments import DebugOption, JsonOption, QuietOption
from nmt_cli.cli.printing import print_facts, print_json, print_table
from nmt_cli.console import duration_text, size_text, time_text
from nmt_cli.errors import ModelError, NmtError

_MAX_INPUTS = 10
_NO_VALUE = "-"
_RUN_COLUMNS = ("run", "corpus", "state", "updates", "BLEU", "loss", "time", "size")

Facts = Iterator[tuple[str, str]]


def info(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|RUN|DATA|CHECKPOINT",
            help="A folder, a folder of runs, or a model's name on the hub.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Describe a model, run, checkpoint or prepared data, or list a folder's runs.

    Example: nmt info runs/base
    """
    from nmt_cli.artifacts.directory_kinds import directories_in, kind_of
    from nmt_cli.artifacts.info import describe_checkpoint, describe_model, describe_run
    from nmt_cli.artifacts.run import open_run
    from nmt_cli.dataset.data_manifest import describe_data

    kind, name = kind_of(path), str(path)
    if kind is None and (runs := directories_in(path, "run")):
        _print_runs(path, runs, as_json=as_json)
        return
    if kind is None:
        path, name = _cached_hub_model(path)
        kind = "model"
    facts: Facts
    match kind:
        case "model":
            description = describe_model(path)
            facts = _model_facts(description, name=name)
        case "run":
            run = open_run(path)
            description = describe_run(run, history=run.history())
            facts = _run_facts(description)
        case "checkpoint":
            description = describe_checkpoint(path)
            facts = _checkpoint_facts(description)
        case "data":
            description = describe_data(path)
            facts = _data_facts(description)
        case other:
            assert_never(other)
    if as_json:
        print_json(description)
    else:
        print_facts(facts)


def _print_runs(folder: Path, runs: list[Path], *, as_json: bool) -> None:
    """Print one row per run of a folder. The row of a run that cannot be read says why."""
    from nmt_cli.artifacts.info import summarise_run
    from nmt_cli.artifacts.run import open_run

    rows: list[dict[str, Any]] = []
    for path in runs:
        try:
            rows.append(summarise_run(open_run(path)))
        except NmtError as error:
            rows.append({"name": path.name, "path": str(path), "state": "damaged", "problem": error.message})
    if as_json:
        print_json({"kind": "runs", "path": str(folder), "runs": rows})
        return
    print_table(_RUN_COLUMNS, map(_run_row, rows), right_aligned=_RUN_COLUMNS[3:])


def _run_row(run: dict[str, Any]) -> tuple[str, ...]:
    if run["state"] == "damaged":
        return (run["name"], "", run["problem"], *[""] * (len(_RUN_COLUMNS) - 3))
    return (
        run["name"],
        run["corpus"],
        run["state"],
        f"{run['update']:,} of {run['updates']:,}",
        _NO_VALUE if run["best_bleu"] is None else f"{run['best_bleu']:.2f}",
        _NO_VALUE if run["lowest_loss"] is None else f"{run['lowest_loss']:.4f}",
        duration_text(run["training_seconds"]),
        size_text(run["bytes"]),
    )


def _model_facts(model: dict[str, Any], *, name: str) -> Facts:
    """The facts of a model that the user calls `name`."""
    from nmt_cli.artifacts.model_card import licence_text
    from nmt_cli.recipe.directions import Directions

    vocabulary, recipe = model["vocabulary"], model["recipe"]
    updates = [f"{update:,}" for update in model["updates"]]
    directions = Directions.model_validate(model["languages"])
    yield "model", f"{model['name']}, {directions.title}"
    for name_of_side, codes in (("sources", directions.sources), ("targets", directions.targets)):
        if len(codes) > 1:
            yield name_of_side, ", ".join(codes)
    yield "directory", f"{model['path']}, {size_text(model['bytes'])}, written by nmt {model['nmt_version']}"
    yield "parameters", _parameters_text(model["parameters"])
    yield "architecture", _architecture_text(recipe["model"])
    yield "vocabulary", _pieces_text(vocabulary["source"], vocabulary["target"], is_shared=vocabulary["shared"])
    if model["tags"]:
        yield "tags", ", ".join(model["tags"])
    match updates:
        case []:
            origin = "imported from another program" + ("" if model["imported_from"] else " or an average of models")
        case [update]:
            origin = f"update {update}"
        case _:
            origin = f"average of {len(updates)} checkpoints: updates {', '.join(updates)}"
    yield "weights", origin
    if lines := model["trained_lines"]:
        longest, share = lines["usual_longest"], lines["several_sentences"]
        casing = f"{lines['in_capitals']:.1%} in capitals, {lines['in_title_case']:.1%} in title case"
        yield (
            "trained on",
            f"source lines of up to {longest:,} pieces (99 %), {share:.1%} of several sentences, {casing}",
        )
    for validation in model["validation"]:
        yield "validation", _validation_text(validation)
        yield from _direction_facts(validation)
    for signature in sorted({validation["signature"] for validation in model["validation"]} - {None, ""}):
        yield "signature", signature
    if model["imported_from"]:
        yield "hub", model["imported_from"]
    if model["license"]:
        yield "licence", licence_text(model["license"])
    yield "search", f"beam {recipe['decoding']['beam']}, length penalty {recipe['decoding']['length_penalty']}"
    yield _damage_fact(model) or ("use", directions.decode_command(name))


def _run_facts(run: dict[str, Any]) -> Facts:
    from nmt_cli.artifacts.info import next_command

    percent = 100 * run["update"] / run["updates"]
    if run["state"] == "training":
        state = "training now"
    else:
        state = f"finished {time_text(run['finished'])}" if run["finished"] else "not finished"
    yield "run", f"{run['name']}, {_languages_text(run)}, corpus {run['corpus']}"
    yield "directory", f"{run['path']}, {size_text(run['bytes'])}"
    yield "progress", f"update {run['update']:,} of {run['updates']:,} ({percent:.0f} %), {state}"
    yield "started", time_text(run["started"])
    if run["training_seconds"]:
        yield "time", f"{duration_text(run['training_seconds'])} of training and validations"
    yield "command", shlex.join(run["command"])
    if run["target_tokens_per_second"]:
        yield "speed", f"{run['target_tokens_per_second']:,.0f} target tokens/s in the last lines of metrics.jsonl"
    if run["parameters"]:
        yield "parameters", _parameters_text(run["parameters"])
    yield "architecture", _architecture_text(run["recipe"]["model"])
    if run["last_validation"]:
        yield "validation", f"last: {_validation_text(run['last_validation'])}"
    if run["best_validation"]:
        yield "", f"best by {run['metric']}: {_validation_text(run['best_validation'])}"
        yield from _direction_facts(run["best_validation"])
    checkpoints = run["checkpoints"]
    newest = f", the newest at update {checkpoints[-1]['update']:,}" if checkpoints else ""
    yield "checkpoints", f"{len(checkpoints)}{newest}"
    for checkpoint in checkpoints:
        if damage := checkpoint["damage"]:
            remove = f"rm -r {shlex.quote(checkpoint['path'])}"
            yield "damage", f"checkpoint at update {checkpoint['update']:,}: {damage}; {remove}"
    for model in run["models"]:
        yield "model", model
    yield "next", next_command(run)


def _checkpoint_facts(checkpoint: dict[str, Any]) -> Facts:
    yield "checkpoint", f"update {checkpoint['update']:,}"
    yield "directory", f"{checkpoint['path']}, {size_text(checkpoint['bytes'])}"
    yield "parameters", _parameters_text(checkpoint["parameters"])
    is_validated = checkpoint["loss"] is not None
    yield "validation", _validation_text(checkpoint) if is_validated else "not measured at this update"
    yield _damage_fact(checkpoint) or ("use", f"nmt average {shlex.quote(checkpoint['path'])} -o MODEL")


def _data_facts(data: dict[str, Any]) -> Facts:
    from nmt_cli.recipe.directions import Directions

    yield "data", f"{data['name']}, {_languages_text(data)}"
    yield "directory", f"{data['path']}, {size_text(data['bytes'])}, written by nmt {data['nmt_version']}"
    for name, counts in data["splits"].items():
        pieces = ""
        if lengths := data["lengths"]:
            source, target = (lengths[name][side]["pieces"]["total"] for side in ("source", "target"))
            pieces = f", {source:,} and {target:,} pieces"
        yield name, f"{counts['pairs']:,} pairs{pieces}"
        if sizes := counts.get("by_direction"):
            pairs = Directions.model_validate(data["languages"]).pairs
            yield "", "pairs: " + ", ".join(f"{pair} {size:,}" for pair, size in zip(pairs, sizes, strict=True))
        for unit in ("words", "pieces") if lengths else ():
            source, target = (lengths[name][side][unit] for side in ("source", "target"))
            yield (
                "",
                f"{unit} a sentence: mean {source['mean']:.1f} and {target['mean']:.1f}, "
                f"99 % up to {source['p99']} and {target['p99']}, longest {source['max']} and {target['max']}",
            )
    sizes = [data["tokenizers"][side]["vocab_size"] for side in ("source", "target")]
    yield "vocabulary", _pieces_text(*sizes, is_shared=data["shared_vocabulary"])
    for record in data["inputs"][:_MAX_INPUTS]:
        yield "input", f"{record['name']} ({record['split']})"
    if len(data["inputs"]) > _MAX_INPUTS:
        yield "", f"and {len(data['inputs']) - _MAX_INPUTS} more"
    yield "report", f"{data['path']}/report.html"
    if damage := _damage_fact(data):
        yield damage


def _damage_fact(description: dict[str, Any]) -> tuple[str, str] | None:
    return ("damage", description["damage"]) if description["damage"] else None


def _cached_hub_model(path: Path) -> tuple[Path, str]:
    """The model directory of a name on the hub, in the cache, and the name; ModelError if there is none."""
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.hub import hub_name

    name = hub_name(path)
    if name is None:
        raise _unknown_path_error(path)
    if kind_of(name.folder) != "model":
        message = f"there is no {path} here, and no model of that name of the hub is in the cache"
        hint = f"check the path; nmt decode -m {shlex.quote(str(path))} downloads a model of the hub"
        raise ModelError(message, where=str(path), hint=hint)
    return name.folder, str(name)


def _unknown_path_error(path: Path) -> ModelError:
    """The error for a path that nmt did not write, with the nearest name."""
    from nmt_cli.artifacts.directory_kinds import HUB_NAME_HINT, did_you_mean

    if not path.exists():
        near = did_you_mean(path, "data", "model", "run", "checkpoint")
        hint = f"{near}name a model, a run, a checkpoint or prepared data; {HUB_NAME_HINT}"
        return ModelError(f"there is no {path}", where=str(path), hint=hint)
    looked_for = "config.yaml (a model), run.json (a run) or manifest.json (a checkpoint, prepared data)"
    is_none_of_ours = f"{path} is no model, run, checkpoint or prepared data of nmt: it has no {looked_for}"
    message = f"{path} is a file" if path.is_file() else is_none_of_ours
    return ModelError(message, where=str(path), hint="name what nmt train, nmt average or nmt prepare wrote")


def _architecture_text(model: dict[str, Any]) -> str:
    return (
        f"{model['encoder_layers']} + {model['decoder_layers']} layers, d_model {model['d_model']}, d_ff"
        f" {model['d_ff']}, {model['heads']} heads, {model['norm']}-norm, {model['positions']} positions"
    )


def _validation_text(validation: dict[str, Any]) -> str:
    return f"update {validation['update']:,}: {_figures_text(validation)}"


def _figures_text(scores: dict[str, Any]) -> str:
    bleu = "" if scores["bleu"] is None else f", BLEU {scores['bleu']:.2f}"
    return f"loss {scores['loss']:.4f}{bleu}"


def _direction_facts(validation: dict[str, Any]) -> Facts:
    """A line for each direction, if there are several."""
    for direction, scores in validation.get("by_direction", {}).items():
        yield "", f"{direction}: {_figures_text(scores)}"


def _languages_text(description: dict[str, Any]) -> str:
    from nmt_cli.recipe.directions import Directions

    return Directions.model_validate(description["languages"]).title


def _pieces_text(source: int, target: int, *, is_shared: bool) -> str:
    return f"{source:,} pieces, shared" if is_shared else f"{source:,} and {target:,} pieces"


def _parameters_text(parameters: int | None) -> str:
    return "unknown: model.safetensors cannot be read" if parameters is None else f"{parameters:,}"
