"""Models of the Hugging Face hub by name: downloaded, imported and verified once, then kept in the cache of nmt.

There are two caches. The hub's cache has the files as the hub's library downloads them, and other programs use it, too.
The cache of nmt has a model directory for each name: models/OWNER/NAME. A model in the cache of nmt needs no network,
and neither torch nor the hub's library.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from nmt_cli import hub
from nmt_cli.artifacts.manifest import kind_of, verify_files
from nmt_cli.artifacts.model_directory import model_of_run
from nmt_cli.cache import cache_folder, cache_lock, difference
from nmt_cli.console import Progress, size_text
from nmt_cli.errors import ModelError, NmtError, UsageError

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

    from nmt_cli.interchange.importing import ImportedModel
    from nmt_cli.recipe.schema import LanguagePair

logger = logging.getLogger(__name__)

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-]+))?", re.ASCII)
_ADDRESS = re.compile(r"(?:https?:/+)?(?:huggingface\.co|hf\.co)/+")
_NEEDED = ("vocab.json", "source.spm", "target.spm")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json", "target_vocab.json", "README.md")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_MEGABYTE = 1_000_000
_OUR_FOLDERS = ("runs", "data", "models")  # nmt and its documents write there, so runs/x is a path

# Opens the display of a download; None leaves the display to the hub's library.
ShowProgress = Callable[[], AbstractContextManager[Progress | None]]


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub as OWNER/NAME, or as OWNER/NAME@REVISION with a commit, a tag or a branch."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"

    @property
    def folder(self) -> Path:
        """The place of the model directory in the cache of nmt."""
        return cache_folder() / "models" / str(self)


@dataclass(frozen=True, slots=True)
class _HubFiles:
    """The files of a model in the hub's cache, by name, at one commit."""

    commit: str
    files: Mapping[str, Path]


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
    return cached_model(name) or _fetch_model(name, show_progress=show_progress)


def hub_name(given: str | Path) -> HubName | None:
    """The name on the hub that the user gave, or None if the user gave a path.

    A text is a path if it exists, or if its first folder exists. The address of a model's page stands for the model's
    name. Raises ModelError if something follows owner and name, as in OWNER/NAME/tree/main.
    """
    path, text = Path(given), str(given)
    first = path.parts[0] if path.parts else ""
    # Path("./x/y") drops the dot, so the text is tested as well.
    is_path = path.is_absolute() or text.startswith("./") or first in ("", "..", *_OUR_FOLDERS)
    if is_path or path.exists() or Path(first).exists():
        return None
    plain = _ADDRESS.sub("", text, count=1).rstrip("/")
    if found := _NAME.fullmatch(plain):
        return HubName(found[1], found[2])
    longer = _NAME.match(plain)
    if longer is None or not plain.startswith("/", longer.end()):
        return None
    message = f"there is no {plain} here, and a model on the hub is named OWNER/NAME"
    raise ModelError(message, where=text, hint=f"check the path; for the model on the hub write {longer[1]}")


def cached_model(name: HubName) -> Path | None:
    """The model directory of a name on the hub if the cache of nmt has it, undamaged; else None."""
    if kind_of(name.folder) != "model":
        return None
    try:
        verify_files(name.folder, error=ModelError, hint="", hashed=())
    except ModelError as problem:
        logger.warning("%s in the cache is damaged, and is imported again: %s", name, problem.message)
        return None
    return name.folder


def import_from_hub(
    name: HubName, output: Path, *, languages: LanguagePair | None, overwrite: bool, show_progress: ShowProgress
) -> ImportedModel:
    """Download a Marian model from the hub, and write it as the model directory `output`.

    Raises ModelError as `find_model` and `import_marian` do. Raises UsageError if the languages are unknown.
    """
    try:
        with show_progress() as progress:
            found = _download(name, progress=None if progress is None else _in_megabytes(progress))
    except KeyboardInterrupt:
        logger.warning("interrupted: the same command goes on; files of %s that are complete are kept", name)
        raise
    from nmt_cli.interchange.importing import import_marian

    with _folder_of(name, found) as folder:
        return import_marian(
            folder,
            output,
            languages=languages,
            imported_from=f"{name.repository}@{found.commit}",
            overwrite=overwrite,
        )


def _fetch_model(name: HubName, *, show_progress: ShowProgress) -> Path:
    """The model directory in the cache of nmt; made by this process, or by another while this process waited."""
    with cache_lock(name.folder):
        if (model := cached_model(name)) is not None:
            return model
        shutil.rmtree(name.folder, ignore_errors=True)
        try:
            imported = import_from_hub(name, name.folder, languages=None, overwrite=False, show_progress=show_progress)
        except UsageError as problem:
            if problem.setting != "languages":
                raise
            hint = f"nmt import {name} -o MODEL --languages en-de, with its languages, and then -m MODEL"
            raise ModelError(problem.message, where=problem.where, hint=hint) from None
    if imported.agreement is None:
        logger.info("%s: %s", name, imported.comparison)
    logger.info("%s: imported, and kept in %s", name, name.folder)
    return name.folder


def _download(name: HubName, *, progress: Progress | None) -> _HubFiles:
    """The files of a Marian model in the hub's cache; missing files are downloaded into it.

    If the hub cannot be reached, all files must be there already.
    """
    import huggingface_hub

    try:
        with hub.hub_errors(partial(_refusal, name)):
            info = huggingface_hub.HfApi().model_info(
                name.repository, revision=name.revision, timeout=hub.TIMEOUT_SECONDS, files_metadata=True
            )
    except _Unreachable:
        if (found := _downloaded_before(name)) is None:
            raise
        return found
    return _fetch_files(name, info, progress=progress)


def _fetch_files(name: HubName, info: ModelInfo, *, progress: Progress | None) -> _HubFiles:
    """The files of a Marian model, downloaded unless they are in the hub's cache.

    config.json comes first, because it says whether the model is a Marian model.
    """
    import huggingface_hub

    siblings = {file.rfilename: file for file in info.siblings or []}
    commit = str(info.sha)

    def fetch(file: str, revision: str = commit) -> Path:
        with hub.hub_errors(partial(_refusal, name)):
            local = hub.download(name.repository, file, repo_type="model", revision=revision, progress=progress)
        _check_hash(local, file, siblings[file].lfs, name=name)
        return local

    # By the name of a branch: then the hub's cache notes its commit, which `_downloaded_before` needs.
    config = fetch("config.json", name.revision or "main") if "config.json" in siblings else None
    _check_type(name, config)
    wanted = _wanted(name, siblings)
    in_cache = huggingface_hub.try_to_load_from_cache
    missing = [file for file in wanted if not isinstance(in_cache(name.repository, file, revision=commit), str)]
    if missing:
        size = size_text(sum(siblings[file].size or 0 for file in missing))
        logger.info("%s: downloading %s from %s", name, size, hub.endpoint())
    return _HubFiles(commit, {file: fetch(file) for file in ("config.json", *wanted)})


def _downloaded_before(name: HubName) -> _HubFiles | None:
    """The files of the model in the hub's cache, or None if a file is missing."""
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(name.repository, "config.json", revision=name.revision or "main")
    if not isinstance(config, str):
        return None
    snapshot = Path(config).parent
    files = {file.name: file for file in snapshot.iterdir()}
    _check_type(name, Path(config))
    try:
        return _HubFiles(snapshot.name, {file: files[file] for file in ("config.json", *_wanted(name, files))})
    except ModelError:
        return None


def _check_type(name: HubName, config: Path | None) -> None:
    """Raise ModelError unless config.json belongs to a Marian model."""
    try:
        content = None if config is None else json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind == "marian":
        return
    what = "no model of transformers: it has no config.json" if config is None else f"a model of type {kind!r}"
    hint = f"choose a Marian model, such as OPUS-MT's: {hub.endpoint()}/models?other=marian"
    message = f"{name} on the hub is {what}, and nmt reads Marian models"
    raise ModelError(message, where=f"{hub.endpoint()}/{name.repository}", hint=hint)


def _wanted(name: HubName, available: Mapping[str, Any]) -> list[str]:
    """The names of the files to download, config.json not among them; ModelError if one is missing."""
    where = f"{hub.endpoint()}/{name.repository}"
    for file in _NEEDED:
        if file not in available:
            hint = "choose a model with source.spm, target.spm and vocab.json, as OPUS-MT's have"
            raise ModelError(f"{name} on the hub has no {file}", where=where, hint=hint)
    weights = next((file for file in _WEIGHTS if file in available), None)
    if weights is None:
        message = f"{name} on the hub has no weights that nmt reads: neither {_WEIGHTS[0]} nor {_WEIGHTS[1]}"
        raise ModelError(message, where=where, hint="load it with transformers, save it, and nmt import the folder")
    return [*_NEEDED, *(file for file in _OPTIONAL if file in available), weights]


def _check_hash(local: Path, file: str, stored: Any, *, name: HubName) -> None:
    """Remove a file with another SHA-256 than the hub states, and raise ModelError."""
    if stored is None or not (differs := difference(local, size=None, sha256=stored.sha256)):
        return
    local.resolve().unlink(missing_ok=True)
    local.unlink(missing_ok=True)
    message = f"{file} of {name} is not the file that it should be: {differs}"
    raise ModelError(message, where=str(local), hint="it is removed, and the same command downloads it again")


def _in_megabytes(progress: Progress) -> Progress:
    """A progress that shows bytes as megabytes, and nothing of small files."""

    def show(stage: str, done: int, total: int | None) -> None:
        if total is not None and total >= _MEGABYTE:
            progress(f"{stage}, MB", done // _MEGABYTE, total // _MEGABYTE)

    return show


@contextmanager
def _folder_of(name: HubName, found: _HubFiles) -> Iterator[Path]:
    """A folder with links to the files of the model; it has the model's name, by which an import guesses the languages.

    Errors in the block name the model on the hub, not the temporary folder.
    """
    in_hub_cache = next(iter(found.files.values())).parents[2]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name.repository.rpartition("/")[2]
        folder.mkdir()
        for file, local in found.files.items():
            (folder / file).symlink_to(local.resolve())
        try:
            yield folder
        except NmtError as problem:
            if str(folder) not in f"{problem.message} {problem.where}":
                raise
            from nmt_cli.interchange.marian import FETCH_AGAIN

            remove = f"rm -r {shlex.quote(str(in_hub_cache))}"
            again = f"download it again: {remove}, then the same command; or take another model"
            message, where = (text.replace(str(folder), str(name)) for text in (problem.message, str(problem.where)))
            hint = again if problem.hint == FETCH_AGAIN else problem.hint
            raise type(problem)(message, where=where, hint=hint, setting=problem.setting) from None


class _Unreachable(ModelError):
    """The hub cannot be reached now."""


def _refusal(name: HubName, problem: Exception) -> ModelError:
    """The error for a model that the hub does not give, or that cannot be stored."""
    failure, page = hub.failure_of(problem), f"{hub.endpoint()}/{name.repository}"
    kind = failure.kind
    match kind:
        case "disk full" | "gated" | "overloaded":
            message, hint = hub.common_refusal(kind, str(name), reason=failure.reason, page=page)
        case "no revision":
            message = f"{name.repository} has no revision {name.revision} on the hub"
            hint = f"take a commit, a tag or a branch of {page}, or {name.repository} for the newest"
        case "no repository":
            message = f"there is no folder {name} here, and no model of that name on the hub, or it is private"
            search = f"{hub.endpoint()}/models?other=marian&search={name.repository.rpartition('/')[2]}"
            hint = f"check the path or the name: {search}; for a private model export HF_TOKEN=hf_..."
        case "offline":
            message = f"{name} is neither a folder here nor in the cache, and HF_HUB_OFFLINE is set"
            hint = f"unset HF_HUB_OFFLINE, then the same command; or copy {name.folder} from another machine"
        case "unreachable":
            message = f"cannot download {name}: {failure.reason}"
            hint = f"check the path or the network, and give the same command again: it continues; {hub.PROXY_HINT}"
        case "other":
            message, hint = f"cannot download {name}: {failure.reason}", f"look at {page}"
        case other:
            assert_never(other)
    return (_Unreachable if failure.is_temporary else ModelError)(message, where=page, hint=hint)
