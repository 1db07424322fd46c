"""The files of a Marian model on the Hugging Face hub: downloaded into the hub's own cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nmt_cli import hub
from nmt_cli.artifacts.directory_kinds import model_type
from nmt_cli.artifacts.manifest import LICENCE_FILES
from nmt_cli.console import Progress
from nmt_cli.errors import ModelError
from nmt_cli.hub_names import WEIGHTS_FILES, HubName

logger = logging.getLogger(__name__)

_NEEDED = ("vocab.json", "source.spm", "target.spm")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json", "target_vocab.json", "README.md", *LICENCE_FILES)


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files of a model in the hub's cache, by name, at one commit."""

    commit: str
    files: Mapping[str, Path]


def download_model_files(name: HubName, *, progress: Progress | None) -> HubFiles:
    """The files of a Marian model in the hub's cache, into which missing files are downloaded.

    If the hub cannot be reached, all files must be in the cache already. Raises ModelError if a file is missing,
    or if the model is not a Marian model.
    """
    import huggingface_hub

    small = ["config.json", *_NEEDED, *_OPTIONAL]
    missing = f"there is no folder {name} here, and no model of that name on the hub, or it is private"
    with hub.hub_errors(ModelError, str(name), page=name.page, missing=missing):
        folder = hub.download_small_files(name.repository, small, repo_type="model", revision=name.revision)
        _check_is_marian(name, folder)
        commit, api = folder.name, huggingface_hub.HfApi()
        weights = next((file for file in WEIGHTS_FILES if (folder / file).exists()), None)
        if weights is None:
            on_hub = (file for file in WEIGHTS_FILES if api.file_exists(name.repository, file, revision=commit))
            weights = next(on_hub, None)
            if weights is None:
                message = f"{name} on the hub has no weights that nmt reads: neither {' nor '.join(WEIGHTS_FILES)}"
                hint = "load it with transformers, save it, and nmt import the folder"
                raise ModelError(message, where=name.page, hint=hint)
            logger.info("%s: downloading %s from %s", name, weights, hub.endpoint())
            hub.download(name.repository, weights, repo_type="model", revision=commit, progress=progress)
    return HubFiles(commit, {file: folder / file for file in (*small, weights) if (folder / file).exists()})


def _check_is_marian(name: HubName, folder: Path) -> None:
    """Raise ModelError unless the small files of a model belong to a Marian model, and are complete."""
    config = folder / "config.json"
    kind = model_type(config) if config.exists() else None
    if not config.exists():
        description = "no model of transformers: it has no config.json"
    elif kind is None:
        description = "no model that transformers could load: its config.json has no model_type"
    else:
        description = f"a model of type {kind!r}"
    if kind != "marian":
        hint = f"choose a Marian model, such as OPUS-MT's: {hub.endpoint()}/models?other=marian"
        message = f"{name} on the hub is {description}, and nmt reads Marian models"
        raise ModelError(message, where=name.page, hint=hint)
    for file in _NEEDED:
        if not (folder / file).exists():
            hint = "choose a model with source.spm, target.spm and vocab.json, as OPUS-MT's have"
            raise ModelError(f"{name} on the hub has no {file}", where=name.page, hint=hint)
