"""The model directory that a user names: by a path, by a run, or by a name on the Hugging Face hub.

A model of the hub is downloaded, imported and verified once. There are two caches. The hub's cache has the files that
the hub's library downloads; other programs use it too. The cache of nmt has a model directory for each name:
models/OWNER/NAME. A model in the cache of nmt needs no network, and neither torch nor the hub's library.
"""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from nmt_cli import hub
from nmt_cli.artifacts.directory_kinds import kind_of, model_type
from nmt_cli.artifacts.manifest import LICENCE_FILES, verify_files
from nmt_cli.artifacts.run import model_of_run
from nmt_cli.cache import cache_lock
from nmt_cli.console import Progress
from nmt_cli.errors import ModelError, NmtError, UsageError
from nmt_cli.hub import WEIGHTS_FILES, HubName, hub_name

if TYPE_CHECKING:
    from nmt_cli.interchange.importing import ImportedModel
    from nmt_cli.recipe.schema import LanguagePair

logger = logging.getLogger(__name__)

_NEEDED = ("vocab.json", "source.spm", "target.spm")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json", "target_vocab.json", "README.md", *LICENCE_FILES)

# Opens the display of a download; None leaves the display to the hub's library.
ShowProgress = Callable[[], AbstractContextManager[Progress | None]]


def find_model(given: str | Path, *, show_progress: ShowProgress) -> Path:
    """The model directory for a path, a run or a name on the hub.

    A path that exists wins over a name on the hub. A model of the hub is downloaded, imported and verified once, and
    then comes from the cache of nmt. Raises ModelError if a run has no model, if the hub has no such Marian model or
    cannot be reached, and if the model cannot be imported.
    """
    path = Path(given)
    if kind_of(path) == "run":
        return model_of_run(path)
    name = hub_name(given)
    if name is None:
        return path
    if not _is_cached(name):
        _import_into_cache(name, show_progress=show_progress)
    return name.folder


def import_from_hub(
    name: HubName, output: Path, *, languages: LanguagePair | None, overwrite: bool, show_progress: ShowProgress
) -> ImportedModel:
    """Download a Marian model from the hub, and write it as the model directory `output`.

    Raises ModelError as `find_model` and `import_marian` do. Raises UsageError if the languages are unknown.
    """
    with show_progress() as progress:
        folder = _download(name, progress=progress)
    from nmt_cli.interchange.importing import import_marian

    origin = f"{name.repository}@{folder.name}"
    try:
        return import_marian(folder, output, languages=languages, imported_from=origin, overwrite=overwrite)
    except NmtError as error:
        raise _with_name_of_hub(error, name, folder) from None


def _is_cached(name: HubName) -> bool:
    """Whether the cache of nmt has the model, undamaged; a warning tells why it is to be imported again."""
    if kind_of(name.folder) != "model":
        return False
    try:
        verify_files(name.folder, error=ModelError, hint="", names_to_hash=())
    except ModelError as error:
        logger.warning("%s in the cache is damaged, and is imported again: %s", name, error.message)
        return False
    return True


def _import_into_cache(name: HubName, *, show_progress: ShowProgress) -> None:
    """Import the model into the cache of nmt, unless another process does so first."""
    with cache_lock(name.folder):
        if _is_cached(name):
            return
        shutil.rmtree(name.folder, ignore_errors=True)
        try:
            imported = import_from_hub(name, name.folder, languages=None, overwrite=False, show_progress=show_progress)
        except UsageError as error:
            if error.setting != "languages":
                raise
            hint = f"nmt import {name} -o MODEL --languages en-de, with its languages, and then -m MODEL"
            raise ModelError(error.message, where=error.where, hint=hint) from None
    if imported.agreement is None:
        logger.info("%s: %s", name, imported.comparison)
    logger.info("%s: imported, and kept in %s", name, name.folder)


def _download(name: HubName, *, progress: Progress | None) -> Path:
    """The folder of a commit in the hub's cache with a Marian model, whose missing files are downloaded into it.

    It has the name of the commit. If the hub cannot be reached, all files must be in the cache already. Raises
    ModelError if a file is missing, or if the model is not a Marian model.
    """
    import huggingface_hub

    small = ["config.json", *_NEEDED, *_OPTIONAL]
    missing = f"there is no folder {name} here, and no model of that name on the hub, or it is private"
    with hub.hub_errors(ModelError, str(name), page=name.page, missing=missing):
        folder = hub.snapshot_of(name.repository, small, repo_type="model", revision=name.revision, only_cached=False)
        _check_is_marian(name, folder)
        if not any((folder / file).exists() for file in WEIGHTS_FILES):
            api, commit = huggingface_hub.HfApi(), folder.name
            on_hub = (file for file in WEIGHTS_FILES if api.file_exists(name.repository, file, revision=commit))
            weights = next(on_hub, None)
            if weights is None:
                message = f"{name} on the hub has no weights that nmt reads: neither {' nor '.join(WEIGHTS_FILES)}"
                hint = "load it with transformers, save it, and nmt import the folder"
                raise ModelError(message, where=name.page, hint=hint)
            logger.info("%s: downloading %s from %s", name, weights, hub.endpoint())
            hub.download_file(name.repository, weights, repo_type="model", revision=commit, progress=progress)
    return folder


def _check_is_marian(name: HubName, folder: Path) -> None:
    """Raise ModelError unless the small files of a model belong to a Marian model, and are complete."""
    kind = model_type(folder / "config.json")
    if kind != "marian":
        description = f"a model of type {kind!r}" if kind else "no model of transformers: no config.json names its type"
        message = f"{name} on the hub is {description}, and nmt reads Marian models"
        hint = f"choose a Marian model, such as OPUS-MT's: {hub.endpoint()}/models?other=marian"
        raise ModelError(message, where=name.page, hint=hint)
    for file in _NEEDED:
        if not (folder / file).exists():
            hint = "choose a model with source.spm, target.spm and vocab.json, as OPUS-MT's have"
            raise ModelError(f"{name} on the hub has no {file}", where=name.page, hint=hint)


def _with_name_of_hub(error: NmtError, name: HubName, folder: Path) -> NmtError:
    """An error of the import that names the model on the hub, not its `folder` in the hub's cache."""
    from nmt_cli.interchange.marian_model import FETCH_AGAIN

    hint = error.hint
    if hint.startswith(FETCH_AGAIN):
        model_in_hub_cache = shlex.quote(str(folder.parents[1]))
        hint = f"download it again: rm -r {model_in_hub_cache}, then the same command; or take another model"
    message, where = (text.replace(str(folder), str(name)) for text in (error.message, error.where or ""))
    return type(error)(message, where=where or None, hint=hint, setting=error.setting)
