"""What a directory is: a model, a run, a checkpoint or prepared data of ours, or something of another toolkit's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nmt_cli.bundle.config import CONFIG
from nmt_cli.bundle.manifest import MANIFEST
from nmt_cli.errors import ModelError

Kind = Literal["model", "run", "checkpoint", "data"]
RUN_FILE = "run.json"

_CTRANSLATE2 = "a CTranslate2 model"
# Each toolkit by files that only it leaves; the first row that fits counts.
_OTHERS: Sequence[tuple[str, Sequence[str]]] = (
    (_CTRANSLATE2, ("model.bin", "config.json")),
    (_CTRANSLATE2, ("model.bin", "shared_vocabulary.*")),
    ("a Hugging Face model", ("config.json",)),
    ("a Hugging Face model", ("tokenizer_config.json",)),
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
    """Which of our directories this is, by its manifest or, where that is lost, by its files; None: none of them."""
    if (path / RUN_FILE).is_file():
        return "run"
    match _kind_in_manifest(path):
        case "model" | "checkpoint" as kind:
            return kind
        case "prepared data":
            return "data"
        case _:
            pass
    if (path / CONFIG).is_file() and (path / "source.spm").is_file():
        return "model"
    if (path / "optimizer.safetensors").is_file():
        return "checkpoint"
    return "data" if (path / "train.source.ids").is_file() else None


def foreign_kind(path: Path) -> str | None:
    """Whose directory this is, in words, where another toolkit made it."""
    for name, patterns in _OTHERS:
        if all(any(path.glob(pattern)) for pattern in patterns):
            return name
    return None


def require_model(path: Path) -> None:
    """Raise ModelError, saying what `path` is instead and what to type, unless it is a model directory of ours."""
    if not path.exists():
        raise ModelError(
            f"there is no model directory {path}", where=str(path), hint="check the path; nmt average RUN makes one"
        )
    if not path.is_dir():
        hint = _hint(path.parent, foreign_kind(path.parent)) if kind_of(path.parent) is None else f"try {path.parent}"
        raise ModelError(f"{path} is a file, not a model directory", where=str(path), hint=hint)
    match kind_of(path):
        case "model":
            return
        case "run":
            made = [path / name for name in ("averaged", "model") if kind_of(path / name) == "model"]
            hint = f"take its model, {made[0]}" if made else f"make a model of it first: nmt average {path}"
            raise ModelError(f"{path} is a run, not a model directory", where=str(path), hint=hint)
        case "checkpoint":
            hint = f"make a model of it: nmt average {path} -o MODEL"
            raise ModelError(f"{path} is a checkpoint, not a model directory", where=str(path), hint=hint)
        case "data":
            hint = "give a model directory, such as runs/NAME/averaged"
            raise ModelError(f"{path} is prepared data, not a model directory", where=str(path), hint=hint)
        case None:
            other = foreign_kind(path)
            message = f"{path} is not a model directory: it has no {CONFIG}"
            if other is not None:
                message = f"{path} looks like {other}, for other programs; nmt reads its own model directories"
            raise ModelError(message, where=str(path), hint=_hint(path, other))


def _hint(path: Path, other: str | None) -> str:
    """What to type where `path` is no model directory, but maybe another toolkit's."""
    if (path / "source.spm").is_file() and (path / "vocab.json").is_file():
        return f"nmt import {path} -o MODEL makes a model directory of it"
    if other == _CTRANSLATE2:
        return "name the model directory that it was exported from: nmt decode -m MODEL --engine ctranslate2"
    if other is not None:
        return "nmt import makes model directories of Marian models in Hugging Face's form, such as OPUS-MT's"
    return "nmt average runs/NAME makes a model directory of a run"


def _kind_in_manifest(path: Path) -> str | None:
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("kind") if isinstance(content, dict) else None
