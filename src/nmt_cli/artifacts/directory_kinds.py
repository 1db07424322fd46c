"""The kind of a directory: a model, run, checkpoint or prepared data of ours, or the model of another toolkit."""

from __future__ import annotations

import json
import pickletools
import shlex
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, islice
from os.path import isfile
from pathlib import Path
from typing import IO, Any, Literal

from nmt_cli.artifacts.manifest import CONFIG, MANIFEST, RUN_FILE
from nmt_cli.errors import ModelError, nearest_word

_MAX_NAMES_COMPARED = 10_000  # in a folder
_MAX_PICKLE_OPERATIONS = 200_000  # enough to see the keys of fairseq's checkpoints
OWNER_AND_NAME = "a model on the hub is named OWNER/NAME, such as Helsinki-NLP/opus-mt-en-de"
Kind = Literal["model", "run", "checkpoint", "data"]
_USUAL_FOLDERS: Mapping[Kind, Path] = {"model": Path("models"), "run": Path("runs"), "data": Path("data")}
_CTRANSLATE2 = "a CTranslate2 model"
_HUGGING_FACE = "a Hugging Face model"
_MARIAN_FILES = ("config.json", "vocab.json", "source.spm")  # of Hugging Face's form
# Directories of other toolkits, by files that only they have; the first row that fits counts.
_OTHER_TOOLKITS: Sequence[tuple[str, Sequence[str]]] = (
    (_CTRANSLATE2, ("model.bin", "config.json")),
    (_CTRANSLATE2, ("model.bin", "shared_vocabulary.*")),
    (_HUGGING_FACE, ("config.json",)),
    (_HUGGING_FACE, ("tokenizer_config.json",)),
    ("a fairseq model or data directory", ("dict.*.txt",)),
    ("a fairseq checkpoint directory", ("checkpoint_best.pt",)),
    ("a fairseq checkpoint directory", ("checkpoint_last.pt",)),
    ("a Marian model", ("*.npz",)),
    ("a Sockeye model", ("params.*", "version")),
    ("a JoeyNMT model", ("*.ckpt",)),
    ("a tensor2tensor model", ("model.ckpt-*.index",)),
    ("an OpenNMT-py or other PyTorch model", ("*.pt",)),
)


def kind_of(path: Path) -> Kind | None:
    """The kind of a directory of ours, by its manifest, or by its files if the manifest is lost; otherwise None."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    kinds: dict[str, Kind] = {"model": "model", "checkpoint": "checkpoint", "prepared data": "data"}
    if isfile(path / RUN_FILE):  # false in a directory that this user may not enter
        return "run"
    if isinstance(content, dict) and (kind := kinds.get(str(content.get("kind")))):
        return kind
    if isfile(path / CONFIG) and isfile(path / "source.spm"):
        return "model"
    if isfile(path / "optimizer.safetensors"):
        return "checkpoint"
    return "data" if isfile(path / "train.source.ids") else None


def directories_in(folder: Path, *kinds: Kind) -> list[Path]:
    """The directories of these kinds that lie directly in a folder; none for any other path."""
    return sorted(child for child in folder.glob("[!.]*") if kind_of(child) in kinds)  # .NAME.partial is none


def nearest_directory(path: Path, *kinds: Kind) -> Path | None:
    """The directory of these kinds whose name is nearest to that of a path, beside it or in their usual folders."""
    folders = [*(_USUAL_FOLDERS[kind] for kind in kinds if kind in _USUAL_FOLDERS), path.parent]
    return _nearest_model(path, folders, is_wanted=lambda child: kind_of(child) in kinds)


def did_you_mean(path: Path, *kinds: Kind) -> str:
    """The beginning of a hint, with the nearest directory of these kinds; empty if none is near."""
    near = nearest_directory(path, *kinds)
    return "" if near is None else f"did you mean {shlex.quote(str(near))}? "


def _nearest_model(path: Path, folders: Iterable[Path], *, is_wanted: Callable[[Path], bool]) -> Path | None:
    """The wanted path in one of the folders whose name is nearest to that of a path; the last folder comes first."""
    found = chain(*(islice(folder.glob("[!.]*"), _MAX_NAMES_COMPARED) for folder in folders))
    by_name = {child.name: child for child in found if child != path and is_wanted(child)}
    return by_name.get(nearest_word(path.name, by_name) or "")


def foreign_kind(path: Path) -> str | None:
    """The kind of another toolkit's directory, in words."""
    for name, patterns in _OTHER_TOOLKITS:
        if all(any(path.glob(pattern)) for pattern in patterns):
            return name
    return None


def check_not_fairseq(file: Path) -> None:
    """Raise ModelError, with what can be done, if a file is a checkpoint of fairseq: a pickle with certain keys.

    Nothing is unpickled.
    """
    strings = _strings_in_pickle(file) if file.is_file() else set()
    if "model" not in strings or not strings & {"args", "cfg"}:
        return
    name = shlex.quote(str(file))
    raise ModelError(
        f"{file} is a checkpoint of fairseq, which only fairseq reads",
        where=str(file),
        hint=f"fairseq-interactive DATA --path {name} translates with it; to train such a model on the same text: "
        "nmt prepare --train PREFIX -l en-de -o data/NAME && nmt train base --data data/NAME",
    )


def _strings_in_pickle(file: Path) -> set[str]:
    """The strings in the pickles of a file of torch.save, of either form; none for any other path."""
    strings: set[str] = set()
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), ExitStack() as opened:
        stream: IO[bytes] = opened.enter_context(file.open("rb"))
        if zipfile.is_zipfile(stream):
            archive = opened.enter_context(zipfile.ZipFile(stream))
            inner = next((name for name in archive.namelist() if name.endswith("data.pkl")), "data.pkl")
            stream = opened.enter_context(archive.open(inner))
        else:
            stream.seek(0)
        # torch's older form has three short pickles before the one of the checkpoint.
        for _ in range(4):
            operations = islice(pickletools.genops(stream), _MAX_PICKLE_OPERATIONS)
            strings.update(value for _, value, _ in operations if isinstance(value, str))
    return strings


def check_is_model(path: Path) -> None:
    """Raise ModelError unless `path` is a model directory of ours.

    The error says what the path is, and what to type.
    """
    kind = kind_of(path)
    if kind == "model":
        return
    check_not_fairseq(path)
    message, hint = _message_and_hint(path, kind)
    raise ModelError(message, where=str(path), hint=hint)


def _message_and_hint(path: Path, kind: Kind | None) -> tuple[str, str]:
    """The message and the hint for a path that is no model directory of ours."""
    if not path.exists():
        hint = "check the path; nmt average RUN makes one"
        if len(path.parts) == 1 or path.parts[0].startswith("hf:"):
            hint = f"{hint}; {OWNER_AND_NAME}"
        return f"there is no model directory {path}", did_you_mean(path, "model", "run") + hint
    if not path.is_dir():
        return f"{path} is a file, not a model directory", _hint_for_file(path)
    if kind == "checkpoint":
        hint = f"make a model of it: nmt average {shlex.quote(str(path))} -o MODEL"
        return f"{path} is a checkpoint, not a model directory", hint
    if kind == "data":
        return f"{path} is prepared data, not a model directory", "give a model directory, such as runs/NAME/averaged"
    if runs := directories_in(path, "run"):
        return f"{path} is a folder of runs, not a model", f"name a run in it: {shlex.quote(str(runs[0]))}"
    foreign = foreign_kind(path)
    message = f"{path} is not a model directory: it has no {CONFIG}"
    if foreign is not None:
        message = f"{path} looks like {foreign}, for other programs; nmt reads its own model directories"
    return message, _way_to_a_model(path, foreign)


def _hint_for_file(file: Path) -> str:
    """The command to type if a file is given for a model directory, or the directory to try."""
    if file.suffix == ".npz":
        return import_command(file)
    if kind_of(file.parent) is None:
        return _way_to_a_model(file.parent, foreign_kind(file.parent))
    return f"try {shlex.quote(str(file.parent))}"


def _way_to_a_model(path: Path, foreign: str | None) -> str:
    """The command to type if `path` is no model directory of ours."""
    if (path / "source.spm").is_file() and (path / "vocab.json").is_file():
        return import_command(path)
    if foreign == _CTRANSLATE2:
        return "name the model directory that it was exported from: nmt decode -m MODEL --engine ctranslate2"
    if _is_marian(path):
        return import_command(path)
    if foreign is not None:
        return "nmt import reads only Marian models: a .npz file, or Hugging Face's form, such as OPUS-MT's"
    return "nmt average runs/NAME makes a model directory of a run"


def check_is_marian(path: Path) -> None:
    """Raise ModelError if `path` is surely no Marian model, by the names of its files.

    The error says what the path is, and what to type.
    """
    may_be_marian = kind_of(path) is None and foreign_kind(path) in (None, _HUGGING_FACE)
    if _is_marian(path) or (may_be_marian and any(isfile(path / name) for name in _MARIAN_FILES)):
        return
    check_not_fairseq(path)
    message, hint = _message_and_import(path)
    raise ModelError(message, where=str(path), hint=hint)


def _message_and_import(path: Path) -> tuple[str, str]:
    """The message and the hint for a path that is no Marian model."""
    quoted, hint = shlex.quote(str(path)), "name a folder with a Marian model, a .npz file, or OWNER/NAME on the hub"
    if near := _nearest_model(path, (Path("models"), path.parent), is_wanted=_is_marian):
        hint = f"did you mean {shlex.quote(str(near))}? {hint}"
    if not path.exists():
        return f"{path} does not exist", hint
    kind = kind_of(path)
    if kind in ("model", "run"):
        noun = "a model directory" if kind == "model" else "a run"
        return f"{path} is {noun} of nmt already", f"use it as it is: nmt decode -m {quoted}"
    if not path.is_dir():
        return f"{path} is a file, not a directory", import_command(path.parent) if _is_marian(path.parent) else hint
    children = sorted(islice(path.glob("[!.]*"), _MAX_NAMES_COMPARED))
    if below := next(filter(_is_marian, children), None):
        return f"{path} is a folder of models, not a model", f"name one of them: {import_command(below)}"
    if foreign := foreign_kind(path):
        return f"{path} looks like {foreign}, and nmt import reads Marian models", hint
    return f"{path} is no Marian model: it has neither config.json nor a .npz file", hint


def _is_marian(path: Path) -> bool:
    """Whether a path is a Marian model: a .npz file, or a folder of either form."""
    if isfile(path):
        return path.suffix == ".npz"
    if isfile(config := path / "config.json"):
        return bool(model_type(config) == "marian")
    return any(path.glob("*.npz"))


def import_command(path: Path) -> str:
    """The command that makes a model directory of a Marian model. A model in Marian's own form names no languages."""
    is_own_form = path.suffix == ".npz" or any(path.glob("*.npz"))
    languages, reason = (" --languages en-de", ", with its languages") if is_own_form else ("", "")
    return f"nmt import {shlex.quote(str(path))}{languages} -o {import_output(path)}{reason}"


def import_output(path: Path) -> str:
    """The folder for the import of a model, as a command line has it: models/NAME, unless the model lies there."""
    output = Path("models", path.resolve().name.removesuffix(".npz"))
    return shlex.quote(f"{output}-nmt" if output.resolve() == path.resolve() else str(output))


def model_type(config: Path) -> Any:
    """The type of model that a config.json of Hugging Face names; None if it names none, or cannot be read."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content.get("model_type") if isinstance(content, dict) else None
