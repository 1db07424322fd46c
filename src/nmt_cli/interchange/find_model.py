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
from nmt_cli.artifacts.directory_kinds import MODEL_TYPES, OTHER_MODEL_HINT, kind_of, model_type
from nmt_cli.artifacts.manifest import LICENCE_FILES, verify_files
from nmt_cli.artifacts.run import model_of_run
from nmt_cli.cache import cache_lock
from nmt_cli.console import Progress
from nmt_cli.errors import ModelError, NmtError, UsageError
from nmt_cli.hub import INDEX_ENDING, WEIGHTS_FILES, HubName, hub_name

if TYPE_CHECKING:
    from nmt_cli.interchange.importing import ImportedModel
    from nmt_cli.recipe.schema import LanguagePair

logger = logging.getLogger(__name__)

# Beside config.json and the weights, by the type of the model; vocab.json is M2M-100's, and NLLB has none.
_NEEDED = {"marian": ("vocab.json", "source.spm", "target.spm"), "m2m_100": ("sentencepiece.bpe.model",)}
_OPTIONAL = (
    *("generation_config.json", "tokenizer_config.json", "target_vocab.json", "special_tokens_map.json"),
    *("tokenizer.json", *(f"{name}{INDEX_ENDING}" for name in WEIGHTS_FILES), "README.md", *LICENCE_FILES),
)

# Opens the display of a download; None leaves the display to the hub's library.
ShowProgress = Callable[[], AbstractContextManager[Progress | None]]


def find_model(given: str | Path, *, show_progress: ShowProgress) -> Path:
    """The model directory for a path, a run or a name on the hub.

    A path that exists wins over a name on the hub. A model of the hub is downloaded, imported and verified once, and
    then comes from the cache of nmt. Raises ModelError if a run has no model, if the hub has no such model or
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
    """Download a model from the hub, and write it as the model directory `output`.

    Raises ModelError as `find_model` and `import_model` do. Raises UsageError if the languages are unknown.
    """
    with show_progress() as progress:
        folder = _download(name, progress=progress)
    from nmt_cli.interchange.importing import import_model

    origin = f"{name.repository}@{folder.name}"
    try:
        return import_model(folder, output, languages=languages, imported_from=origin, overwrite=overwrite)
    except NmtError as error:
        raise _with_name_of_hub(error, name, folder) from None


def _is_cached(name: HubName) -> bool:
    """Whether the cache of nmt has the model, undamaged; a warning tells why it is to be imported again."""
    if kind_of(name.folder) != "model":
        return False
    try:
        verify_files(name.folder, hint="", names_to_hash=())
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
    """The folder of a commit in the hub's cache with a model, whose missing files are downloaded into it.

    It has the name of the commit. If the hub cannot be reached, all files must be in the cache already. Raises
    ModelError if a file is missing, or if the model is of a type that nmt does not import.
    """
    small = ["config.json", *dict.fromkeys(file for needed in _NEEDED.values() for file in needed), *_OPTIONAL]
    missing = f"there is no folder {name} here, and no model of that name on the hub, or it is private"
    with hub.hub_errors(ModelError, str(name), page=name.page, missing=missing):
        folder = hub.snapshot_of(name.repository, small, repo_type="model", revision=name.revision, only_cached=False)
        _check_is_importable(name, folder)
        for weights in _weights_files(name, folder):
            if not (folder / weights).exists():
                logger.info("%s: downloading %s from %s", name, weights, hub.endpoint())
                hub.download_file(name.repository, weights, repo_type="model", revision=folder.name, progress=progress)
    return folder


def _weights_files(name: HubName, folder: Path) -> list[str]:
    """The files of the weights of a model on the hub, whose small files are in `folder`."""
    import huggingface_hub

    if here := next((file for file in WEIGHTS_FILES if (folder / file).exists()), None):
        return [here]
    api = huggingface_hub.HfApi()
    for file in WEIGHTS_FILES:
        if (index := folder / f"{file}{INDEX_ENDING}").exists():
            from nmt_cli.interchange.huggingface_weights import files_in_index

            return files_in_index(index)
        if api.file_exists(name.repository, file, revision=folder.name):
            return [file]
    message = f"{name} on the hub has no weights that nmt reads: neither {' nor '.join(WEIGHTS_FILES)}"
    hint = "load it with transformers, save it, and nmt import the folder"
    raise ModelError(message, where=name.page, hint=hint)


def _check_is_importable(name: HubName, folder: Path) -> None:
    """Raise ModelError unless the small files belong to a model of a type that nmt imports, and are complete."""
    kind = model_type(folder / "config.json")
    if kind not in MODEL_TYPES:
        description = f"a model of type {kind!r}" if kind else "no model of transformers: no config.json names its type"
        message = f"{name} on the hub is {description}, and nmt reads Marian, M2M-100 and dense NLLB-200 models"
        raise ModelError(message, where=name.page, hint=OTHER_MODEL_HINT)
    for file in _NEEDED[str(kind)]:
        if not (folder / file).exists():
            hint = f"choose a model with {', '.join(_NEEDED[str(kind)])}, as the original ones have"
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
