"""Names of models on the Hugging Face hub, OWNER/NAME, and how they are told from paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nmt_cli import hub
from nmt_cli.cache import cache_folder

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-]+))?", re.ASCII)
# /+ because Path shortens // to /.
_ADDRESS = re.compile(r"^(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/+")
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")  # of a model on the hub; nmt reads the first that is there
_OUR_FOLDERS = ("runs", "data", "models")  # nmt and its documents write there, so runs/x is a path


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub as OWNER/NAME, or as OWNER/NAME@REVISION with a commit, a tag or a branch."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"

    @property
    def page(self) -> str:
        """The address of the model's page on the hub."""
        return f"{hub.endpoint()}/{self.repository}"

    @property
    def folder(self) -> Path:
        """The place of the model directory in the cache of nmt."""
        return cache_folder() / "models" / str(self)


def hub_name(given: str | Path) -> HubName | None:
    """The name on the hub that the user gave; None if the user gave a path.

    A text is a path if it exists, or if its first folder exists. The address of a model's page stands for the model's
    name.
    """
    path, text = Path(given), str(given)
    first = next(iter(path.parts), "")
    # Path("./x/y") drops the dot, so the text is tested as well.
    is_path = path.is_absolute() or text.startswith("./") or first in ("", "..", *_OUR_FOLDERS)
    if is_path or path.exists() or Path(first).exists():
        return None
    match = _NAME.fullmatch(_ADDRESS.sub("", text).rstrip("/"))
    return HubName(match[1], match[2]) if match else None
