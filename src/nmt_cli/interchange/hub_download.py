"""The files of a Marian model on the Hugging Face hub: downloaded into the hub's own cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from nmt_cli import hub
from nmt_cli.artifacts.directory_kinds import model_type
from nmt_cli.artifacts.manifest import LICENCE_FILES
from nmt_cli.console import Progress, size_text
from nmt_cli.errors import ModelError
from nmt_cli.hub_names import WEIGHTS_FILES, HubName

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

logger = logging.getLogger(__name__)

_NEEDED = ("vocab.json", "source.spm", "target.spm")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json", "target_vocab.json", "README.md", *LICENCE_FILES)
_MEGABYTE = 1_000_000


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

    try:
        with hub.hub_errors(partial(_download_error, name)):
            info = huggingface_hub.HfApi().model_info(
                name.repository, revision=name.revision, timeout=hub.TIMEOUT_SECONDS, files_metadata=True
            )
    except _Unreachable:
        if (cached := _files_if_cached(name)) is None:
            raise
        return cached
    return _download_files(name, info, progress=None if progress is None else _in_megabytes(progress))


def _download_files(name: HubName, info: ModelInfo, *, progress: Progress | None) -> HubFiles:
    """The files of a Marian model, downloaded unless they are in the hub's cache.

    config.json comes first, because it says whether the model is a Marian model.
    """
    import huggingface_hub

    siblings = {file.rfilename: file for file in info.siblings or []}
    commit = str(info.sha)

    def fetch(file: str, *, revision: str) -> Path:
        with hub.hub_errors(partial(_download_error, name)):
            return hub.download(name.repository, file, repo_type="model", revision=revision, progress=progress)

    # config.json is asked for by the name of the branch. Then the hub's cache notes the branch's commit, which
    # `_files_if_cached` needs.
    config = fetch("config.json", revision=name.revision or "main") if "config.json" in siblings else None
    _check_is_marian(name, config)
    wanted = _files_of_model(name, siblings)
    find_in_cache = partial(huggingface_hub.try_to_load_from_cache, name.repository, revision=commit)
    missing = [file for file in wanted if not isinstance(find_in_cache(file), str)]
    if missing:
        size = size_text(sum(siblings[file].size or 0 for file in missing))
        logger.info("%s: downloading %s from %s", name, size, hub.endpoint())
    return HubFiles(commit, {file: fetch(file, revision=commit) for file in ("config.json", *wanted)})


def _files_if_cached(name: HubName) -> HubFiles | None:
    """The files of the model in the hub's cache, or None if a file is missing."""
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(name.repository, "config.json", revision=name.revision or "main")
    if not isinstance(config, str):
        return None
    snapshot = Path(config).parent
    files = {file.name: file for file in snapshot.iterdir()}
    _check_is_marian(name, Path(config))
    try:
        return HubFiles(snapshot.name, {file: files[file] for file in ("config.json", *_files_of_model(name, files))})
    except ModelError:
        return None


def _check_is_marian(name: HubName, config: Path | None) -> None:
    """Raise ModelError unless config.json belongs to a Marian model."""
    kind = None if config is None else model_type(config)
    if kind == "marian":
        return
    if config is None:
        description = "no model of transformers: it has no config.json"
    elif kind is None:
        description = "no model that transformers could load: its config.json has no model_type"
    else:
        description = f"a model of type {kind!r}"
    hint = f"choose a Marian model, such as OPUS-MT's: {hub.endpoint()}/models?other=marian"
    message = f"{name} on the hub is {description}, and nmt reads Marian models"
    raise ModelError(message, where=name.page, hint=hint)


def _files_of_model(name: HubName, available: Mapping[str, Any]) -> list[str]:
    """The names of the files to download, config.json not among them; ModelError if one is missing."""
    for file in _NEEDED:
        if file not in available:
            hint = "choose a model with source.spm, target.spm and vocab.json, as OPUS-MT's have"
            raise ModelError(f"{name} on the hub has no {file}", where=name.page, hint=hint)
    weights = next((file for file in WEIGHTS_FILES if file in available), None)
    if weights is None:
        message = f"{name} on the hub has no weights that nmt reads: neither {' nor '.join(WEIGHTS_FILES)}"
        raise ModelError(message, where=name.page, hint="load it with transformers, save it, and nmt import the folder")
    return [*_NEEDED, *(file for file in _OPTIONAL if file in available), weights]


def _in_megabytes(progress: Progress) -> Progress:
    """The same progress, but in megabytes and without small files."""

    def show(stage: str, done: int, total: int | None) -> None:
        if total is not None and total >= _MEGABYTE:
            progress(f"{stage}, MB", done // _MEGABYTE, total // _MEGABYTE)

    return show


class _Unreachable(ModelError):
    """The hub cannot be reached now."""


def _download_error(name: HubName, error: Exception) -> ModelError:
    """The error for a model that the hub does not give, or that cannot be stored."""
    failure, page = hub.failure_of(error), name.page
    kind = failure.kind
    match kind:
        case "disk full" | "not writable" | "gated" | "refused" | "overloaded":
            message, hint = hub.words_of_common_failure(kind, str(name), reason=failure.reason, page=page)
        case "no revision":
            message = f"{name.repository} has no revision {name.revision} on the hub"
            hint = f"take a commit, a tag or a branch of {page}, or {name.repository} for the newest"
        case "no repository":
            message = f"there is no folder {name} here, and no model of that name on the hub, or it is private"
            search = f"{hub.endpoint()}/models?other=marian&search={name.short_name}"
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
    return (_Unreachable if failure.may_use_cache else ModelError)(message, where=page, hint=hint)
