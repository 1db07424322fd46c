"""The weights in a Hugging Face directory: safetensors or pickled, in one file or in several, mapped into memory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nmt_cli import files
from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.errors import ModelError
from nmt_cli.hub import INDEX_ENDING, WEIGHTS_FILES
from nmt_cli.interchange.marian_model import FETCH_AGAIN, damaged_error

_MAX_POINTER_BYTES = 1000  # Git LFS stores a large file elsewhere, and a pointer of this size in git


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors in the types of the files; most take memory only when they are used.

    Raises ModelError if a file is missing or damaged, or is a pointer of Git LFS.
    """
    tensors: dict[str, Tensor] = {}
    for file in _weights_files(directory):
        if not file.is_file():
            raise damaged_error(f"{file.name} is missing", where=file)
        check_no_pointer(file)
        tensors |= read_tensors(file, hint=FETCH_AGAIN) if file.suffix == ".safetensors" else _read_pickled(file)
    return tensors


def files_in_index(index: Path) -> list[str]:
    """The names of the files in which an index of Hugging Face has tensors; ModelError if it is no such index."""
    content = files.read_json(index, error=ModelError, hint=FETCH_AGAIN)
    names = content.get("weight_map") if isinstance(content, dict) else None
    values = sorted(set(map(str, names.values()))) if isinstance(names, dict) else []
    if not values or any(Path(name).name != name for name in values):
        raise damaged_error(f"{index.name} does not say which file has which tensor", where=index)
    return values


def check_no_pointer(file: Path) -> None:
    """Raise ModelError if a file is a pointer of Git LFS."""
    if file.stat().st_size < _MAX_POINTER_BYTES and file.read_bytes().startswith(b"version https://git-lfs"):
        message = f"{file.name} is a pointer of Git LFS, not the file itself"
        hint = f"git -C {shlex.quote(str(file.parent))} lfs pull, or nmt import OWNER/NAME -o MODEL"
        raise ModelError(message, where=str(file), hint=hint)


def _weights_files(directory: Path) -> list[Path]:
    for name in WEIGHTS_FILES:
        if (directory / name).is_file():
            return [directory / name]
        if (index := directory / f"{name}{INDEX_ENDING}").is_file():
            return [directory / part for part in files_in_index(index)]
    message = f"{directory} has no weights: neither {' nor '.join(WEIGHTS_FILES)}"
    raise ModelError(message, where=str(directory), hint=FETCH_AGAIN)


def _read_pickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch pickled; code in the file is refused, not run."""
    try:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # torch before 1.6 wrote files that cannot be mapped
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever a damaged file makes of it
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise damaged_error(f"{file.name} cannot be read: {reason}", where=file) from None
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise damaged_error(f"{file.name} holds something else than tensors", where=file)
    return {str(name): tensor for name, tensor in content.items()}
