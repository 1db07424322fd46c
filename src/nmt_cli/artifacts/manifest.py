"""The kind of a directory, and the manifest that lists its files with sizes and SHA-256."""

from __future__ import annotations

import errno
import hashlib
import json
import pickletools
import shlex
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from nmt_cli import files
from nmt_cli.errors import ModelError, NmtError

MANIFEST = "manifest.json"
_FORMAT = 1
# Files that people edit. The manifest does not list them.
_UNLISTED = frozenset({"README.md", "LICENSE", "NOTICE"})
CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
DAMAGED = "copy the whole directory again from where it was made, or make it again: nmt average runs/NAME"
_MAX_PICKLE_OPERATIONS = 200_000  # are read, to recognise a checkpoint of fairseq
OWNER_AND_NAME = "a model on the hub is named OWNER/NAME, such as Helsinki-NLP/opus-mt-en-de"
Kind = Literal["model", "run", "checkpoint", "data"]
RUN_FILE = "run.json"
_CTRANSLATE2 = "a CTranslate2 model"
_HUGGING_FACE = "a Hugging Face model"
_MARIAN = "a Marian model"
# Directories of other toolkits, by files that only they have; the first row that fits counts.
_OTHER_TOOLKITS: Sequence[tuple[str, Sequence[str]]] = (
    (_CTRANSLATE2, ("model.bin", "config.json")),
    (_CTRANSLATE2, ("model.bin", "shared_vocabulary.*")),
    (_HUGGING_FACE, ("config.json",)),
    (_HUGGING_FACE, ("tokenizer_config.json",)),
    ("a fairseq model or data directory", ("dict.*.txt",)),
    ("a fairseq checkpoint directory", ("checkpoint_best.pt",)),
    ("a fairseq checkpoint directory", ("checkpoint_last.pt",)),
    (_MARIAN, ("*.npz",)),
    ("a Sockeye model", ("params.*", "version")),
    ("a JoeyNMT model", ("*.ckpt",)),
    ("a tensor2tensor model", ("model.ckpt-*.index",)),
    ("an OpenNMT-py or other PyTorch model", ("*.pt",)),
)


def write_manifest(directory: Path, fields: Mapping[str, Any]) -> None:
    """Write manifest.json: the format, `fields`, and size and SHA-256 of every file in `directory`.

    The card and the licence are not listed, because people edit them.
    """
    if clash := {"format", "files"} & fields.keys():
        raise ValueError(f"reserved in a manifest: {', '.join(sorted(clash))}")
    listed = {
        path.name: {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name not in _UNLISTED | {MANIFEST}
    }
    content = {"format": _FORMAT, **fields, "files": listed}
    (directory / MANIFEST).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path, *, error: type[NmtError], hint: str) -> dict[str, Any]:
    """The whole content of manifest.json, `files` included; no other file is read.

    Raises `error` if it is missing or damaged.
    """
    where = str(directory / MANIFEST)
    content = files.read_json(directory / MANIFEST, error=error, hint=hint)
    if not isinstance(content, dict) or not _lists_files(content.get("files")):
        raise error(f"{MANIFEST} is damaged: it lists no files", where=where, hint=hint)
    if content.get("format") != _FORMAT:
        raise error(
            f"{MANIFEST} has format {content.get('format')!r}, but this nmt reads format {_FORMAT}",
            where=where,
            hint="install the version of nmt that wrote it, or a newer one: pip install -U nmt-cli",
        )
    return content


def verify_files(
    directory: Path, *, error: type[NmtError], hint: str, hashed: Collection[str] | None = None
) -> dict[str, Any]:
    """The manifest's fields, after a check that the listed files are there, unchanged.

    `hashed` restricts the slow check of SHA-256 to these files; None checks all. Raises `error` with `hint` for the
    first file that is missing, truncated or changed. Other files may come and go: nothing reads them.
    """
    manifest = read_manifest(directory, error=error, hint=hint)
    listed = manifest["files"]
    for name, entry in listed.items():
        _check_size(directory / name, entry["bytes"], error=error, hint=hint)
    for name in listed if hashed is None else sorted(hashed):
        file = directory / name
        if name not in listed:
            raise error(f"{name} is not listed in {MANIFEST}", where=str(directory / MANIFEST), hint=hint)
        try:
            digest = files.sha256(file)
        except PermissionError:
            raise files.unreadable(file, name=name, error=error) from None
        if digest != listed[name]["sha256"]:
            changed = f"{name} was changed after it was written, or comes from another directory"
            raise error(f"{changed}: its SHA-256 is not the one in {MANIFEST}", where=str(file), hint=hint)
    return {key: value for key, value in manifest.items() if key not in ("format", "files")}


def _check_size(path: Path, expected: int, *, error: type[NmtError], hint: str) -> None:
    if not path.is_file():
        raise error(f"{path.name} is missing", where=str(path), hint=hint)
    size = path.stat().st_size
    if size < expected:
        raise error(f"{path.name} is cut short: {size:,} of {expected:,} bytes", where=str(path), hint=hint)
    if size > expected:
        raise error(f"{path.name} was changed: {size:,} bytes instead of {expected:,}", where=str(path), hint=hint)


def _lists_files(listed: Any) -> bool:
    """True for a mapping of plain file names to sizes and hashes; no name leads out of the directory."""
    return isinstance(listed, dict) and all(
        Path(name).name == name
        and isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for name, entry in listed.items()
    )


def kind_of(path: Path) -> Kind | None:
    """The kind of a directory of ours, by its manifest, or by its files if the manifest is lost; otherwise None."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    kinds: dict[Any, Kind] = {"model": "model", "checkpoint": "checkpoint", "prepared data": "data"}
    if (path / RUN_FILE).is_file():
        return "run"
    if isinstance(content, dict) and content.get("kind") in kinds:
        return kinds[content["kind"]]
    if (path / CONFIG).is_file() and (path / "source.spm").is_file():
        return "model"
    if (path / "optimizer.safetensors").is_file():
        return "checkpoint"
    return "data" if (path / "train.source.ids").is_file() else None


def foreign_kind(path: Path) -> str | None:
    """The kind of another toolkit's directory, in words."""
    for name, patterns in _OTHER_TOOLKITS:
        if all(any(path.glob(pattern)) for pattern in patterns):
            return name
    return None


def refuse_fairseq(file: Path) -> None:
    """Raise ModelError, with what can be done, if a file is a checkpoint of fairseq: a pickle with its keys.

    Nothing is unpickled.
    """
    if not file.is_file() or not ("model" in (words := _words_of_pickle(file)) and words & {"args", "cfg"}):
        return
    name = shlex.quote(str(file))
    raise ModelError(
        f"{file} is a checkpoint of fairseq, which only fairseq reads",
        where=str(file),
        hint=f"fairseq-interactive DATA --path {name} translates with it; to train such a model on the same text: "
        "nmt prepare --train PREFIX -l en-de -o data/NAME && nmt train base --data data/NAME",
    )


def _words_of_pickle(file: Path) -> set[str]:
    """The texts in the pickles of a file of torch.save, of either form; none for any other file."""
    words: set[str] = set()
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
            words.update(value for _, value, _ in operations if isinstance(value, str))
    return words


def require_model(path: Path) -> None:
    """Raise ModelError unless `path` is a model directory of ours.

    The error says what the path is, and what to type.
    """
    kind = kind_of(path)
    if kind == "model":
        return
    other = foreign_kind(path)
    if not path.exists():
        message, hint = f"there is no model directory {path}", "check the path; nmt average RUN makes one"
        if len(path.parts) == 1 or path.parts[0].startswith("hf:"):
            hint = f"{hint}; {OWNER_AND_NAME}"
    elif not path.is_dir():
        refuse_fairseq(path)
        message, hint = f"{path} is a file, not a model directory", f"try {path.parent}"
        if path.suffix == ".npz":
            hint = _import_of(path)
        elif kind_of(path.parent) is None:
            hint = _way_to_a_model(path.parent, foreign_kind(path.parent))
    elif kind == "run":
        made = [path / name for name in ("averaged", "model") if kind_of(path / name) == "model"]
        message = f"{path} is a run, not a model directory"
        hint = f"take its model, {made[0]}" if made else f"make a model of it first: nmt average {path}"
    elif kind == "checkpoint":
        message = f"{path} is a checkpoint, not a model directory"
        hint = f"make a model of it: nmt average {path} -o MODEL"
    elif kind == "data":
        message = f"{path} is prepared data, not a model directory"
        hint = "give a model directory, such as runs/NAME/averaged"
    elif other is not None:
        message = f"{path} looks like {other}, for other programs; nmt reads its own model directories"
        hint = _way_to_a_model(path, other)
    else:
        message, hint = f"{path} is not a model directory: it has no {CONFIG}", _way_to_a_model(path, other)
    raise ModelError(message, where=str(path), hint=hint)


def model_digest(directory: Path) -> str:
    """Twelve characters that identify the model of a directory, made of the hashes in its manifest.

    ModelError if the manifest cannot be read.
    """
    listed = read_manifest(directory, error=ModelError, hint=DAMAGED)["files"]
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()[:12]


def holds_model(directory: Path, digest: str) -> bool:
    """Whether the directory holds the model of that digest, and its manifest can be read.

    OSError if the process has no file left to open: that says nothing about the model.
    """
    try:
        return model_digest(directory) == digest
    except ModelError as problem:
        reason = problem.__context__
        if isinstance(reason, OSError) and reason.errno in (errno.EMFILE, errno.ENFILE):
            raise reason from None
        return False


def _way_to_a_model(path: Path, other: str | None) -> str:
    """The command to type if `path` is no model directory of ours."""
    if (path / "source.spm").is_file() and (path / "vocab.json").is_file():
        return _import_of(path)
    if other == _CTRANSLATE2:
        return "name the model directory that it was exported from: nmt decode -m MODEL --engine ctranslate2"
    if other == _MARIAN or (other == _HUGGING_FACE and _is_marian(path / "config.json")):
        return _import_of(path)
    if other is not None:
        return "nmt import reads only Marian models: a .npz file, or Hugging Face's form, such as OPUS-MT's"
    return "nmt average runs/NAME makes a model directory of a run"


def _import_of(path: Path) -> str:
    """The command that makes a model directory of a Marian model. A model in Marian's own form names no languages."""
    is_own_form = path.suffix == ".npz" or any(path.glob("*.npz"))
    languages, reason = (" --languages en-de", ", with its languages") if is_own_form else ("", "")
    output = shlex.quote(f"models/{path.resolve().name.removesuffix('.npz')}")
    return f"nmt import {shlex.quote(str(path))}{languages} -o {output}{reason}"


def _is_marian(config: Path) -> bool:
    """Whether a config.json of Hugging Face is a Marian model's."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("model_type") == "marian"
