"""A model's copy in CTranslate2's form, made once beside it and anew when the model changes."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from nmt_cli import files
from nmt_cli.bundle import directory as model_directory
from nmt_cli.bundle.manifest import MANIFEST, verify, write_manifest
from nmt_cli.decoding import ctranslate2_model
from nmt_cli.errors import NmtError

logger = logging.getLogger(__name__)

# Of what ctranslate2_model writes: another number where that becomes another.
_CONVERSION = 1


class _NotThere(NmtError):
    """The folder beside the model cannot be written or is being written."""


def converted(model: Path, *, version: str) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """The folder with CTranslate2's form of a model directory, and what keeps it where it is a temporary one."""
    folder = model.resolve().with_name(f".{model.resolve().name}.ctranslate2")
    key = {"conversion": _CONVERSION, "ctranslate2": version, "model": files.sha256(model / MANIFEST)}
    if _is_of(folder, key):
        return folder, None
    loaded = model_directory.load(model, device=torch.device("cpu"), dtype=torch.float32)
    try:
        with files.locked(folder, busy="it is being written", error=_NotThere):
            if _is_of(folder, key):  # since another process has written it, which may be reading it
                return folder, None
            with files.new_directory(folder, error=_NotThere) as temporary:
                ctranslate2_model.write(loaded, temporary, quantization="float32")
                write_manifest(temporary, key)
    except _NotThere:
        kept = tempfile.TemporaryDirectory(prefix="nmt-ctranslate2-")
        ctranslate2_model.write(loaded, Path(kept.name), quantization="float32")
        logger.info("converted for CTranslate2, for this once: %s cannot be written", folder.parent)
        return Path(kept.name), kept
    logger.info("converted for CTranslate2: %s, which later runs take", folder)
    return folder, None


def _is_of(folder: Path, key: Mapping[str, object]) -> bool:
    """Whether a folder is there that was written with this key, and its files have their sizes."""
    try:
        return verify(folder, error=_NotThere, hint="", hashed=()) == key
    except (_NotThere, OSError):  # OSError: it is another user's, and not for us to read
        return False
