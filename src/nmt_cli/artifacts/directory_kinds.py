"""The kind of a path: a model, run, checkpoint or prepared data of ours, or a model to import; and hints for others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from os.path import isfile
from pathlib import Path
from typing import Literal

from nmt_cli.artifacts.manifest import CONFIG, MANIFEST, RUN_FILE
from nmt_cli.errors import ModelError, nearest_word

HUB_NAME_HINT = "a model on the hub is named OWNER/NAME, such as Helsinki-NLP/opus-mt-en-de"
MODEL_TYPES = {"marian": "a Marian model", "m2m_100": "an M2M-100 model"}
"""The kinds of Hugging Face models that nmt imports, by the names in their config.json; NLLB-200 is of M2M-100's."""
OTHER_MODEL_HINT = "take one of Helsinki-NLP (OPUS-MT), facebook/m2m100_418M or facebook/nllb-200-distilled-600M"
DirectoryKind = Literal["model", "run", "checkpoint", "data"]
_USUAL_FOLDERS: Mapping[DirectoryKind, Path] = {"model": Path("models"), "run": Path("runs"), "data": Path("data")}
_MARIAN_FILES = ("config.json", "vocab.json", "source.spm")  # of Hugging Face's form


def kind_of(path: Path) -> DirectoryKind | None:
    """The kind of a directory of ours, by its manifest, or by its files if the manifest is lost; otherwise None."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    kinds: dict[str, DirectoryKind] = {"model": "model", "checkpoint": "checkpoint", "prepared data": "data"}
    if isfile(path / RUN_FILE):  # false in a directory that this user may not enter
        return "run"
    if isinstance(content, dict) and (kind := kinds.get(str(content.get("kind")))):
        return kind
    if isfile(path / CONFIG) and isfile(path / "source.spm"):
        return "model"
    if isfile(path / "optimizer.safetensors"):
        return "checkpoint"
    return "data" if isfile(path / "train.source.ids") else None


def directories_in(folder: Path, *kinds: DirectoryKind) -> list[Path]:
    """The directories of these kinds that lie directly in a folder; none for any other path."""
    return sorted(child for child in folder.glob("[!.]*") if kind_of(child) in kinds)  # .NAME.partial is none


def did_you_mean(path: Path, *kinds: DirectoryKind) -> str:
    """The beginning of a hint, with the directory of these kinds whose name is nearest; empty if none is near.

    It lies beside the path or in the usual folders of these kinds.
    """
    folders = [*(_USUAL_FOLDERS[kind] for kind in kinds if kind in _USUAL_FOLDERS), path.parent]
    by_name = {child.name: child for folder in folders for child in directories_in(folder, *kinds) if child != path}
    near = by_name.get(nearest_word(path.name, by_name) or "")
    return "" if near is None else f"did you mean {shlex.quote(str(near))}? "


def check_is_model(path: Path) -> None:
    """Raise ModelError, with what to type, unless `path` is a model directory of ours."""
    kind = kind_of(path)
    if kind == "model":
        return
    quoted = shlex.quote(str(path))
    message = f"{path} is not a model directory: it has no {CONFIG}"
    hint = "nmt average runs/NAME makes a model directory of a run"
    if not path.exists():
        message = f"there is no model directory {path}"
        hint = did_you_mean(path, "model", "run") + f"check the path; {HUB_NAME_HINT}"
    elif kind is not None:
        message = f"{path} is {'prepared data' if kind == 'data' else f'a {kind}'}, not a model directory"
        hint = hint if kind == "data" else f"make a model of it: nmt average {quoted} -o MODEL"
    elif (name := _importable_kind(path)) is not None:
        message, hint = f"{path} is {name}, which must be imported first", import_command(path)
    elif isfile(path / "model.bin"):
        message = f"{path} is a model of CTranslate2"
        hint = "name the model that it was made of; nmt decode and nmt serve translate it with --engine ctranslate2"
    elif path.is_file():
        message = f"{path} is a file, not a model directory"
    elif runs := directories_in(path, "run"):
        message, hint = f"{path} is a folder of runs, not a model", f"name a run in it: {shlex.quote(str(runs[0]))}"
    raise ModelError(message, where=str(path), hint=hint)


def check_is_importable(path: Path) -> None:
    """Raise ModelError, with what to type, if `path` is surely no model of another program, by its files' names."""
    kind, quoted = kind_of(path), shlex.quote(str(path))
    if _importable_kind(path) is not None or (kind is None and any(isfile(path / name) for name in _MARIAN_FILES)):
        return
    message = f"{path} is no model to import: it has neither config.json nor a .npz file"
    hint = "name a folder of a Hugging Face model, a .npz file, or OWNER/NAME on the hub"
    if not path.exists():
        message = f"{path} does not exist"
    elif kind in ("model", "run"):
        message, hint = f"{path} is a {kind} of nmt already", f"use it as it is: nmt decode -m {quoted}"
    raise ModelError(message, where=str(path), hint=hint)


def _importable_kind(path: Path) -> str | None:
    """The kind of another program's model, in words: a .npz file, or a folder of either form; None for other paths."""
    if isfile(path):
        is_npz = path.suffix == ".npz"
    elif isfile(config := path / "config.json"):
        return MODEL_TYPES.get(str(model_type(config)))
    else:
        is_npz = any(path.glob("*.npz"))
    return MODEL_TYPES["marian"] if is_npz else None


def import_command(path: Path) -> str:
    """The command that makes a model directory of a model. A model in Marian's own form names no languages."""
    is_own_form = path.suffix == ".npz" or any(path.glob("*.npz"))
    languages, reason = (" --languages en-de", ", with its languages") if is_own_form else ("", "")
    output = Path("models", path.resolve().name.removesuffix(".npz"))
    other = f"{output}-nmt" if output.resolve() == path.resolve() else output
    return f"nmt import {shlex.quote(str(path))}{languages} -o {shlex.quote(str(other))}{reason}"


def model_type(config: Path) -> object:
    """The type of model that a config.json of Hugging Face names; None if it names none, or cannot be read."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("model_type") if isinstance(content, dict) else None
