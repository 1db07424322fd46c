"""Data sets of the Hugging Face hub: which files a split has, and the files themselves in the hub's own cache."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import logging
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.sources.cache import cache_folder, writing_errors
from nmt_cli.preparing.sources.downloads import Unreachable
from nmt_cli.preparing.sources.hub_errors import hub_errors
from nmt_cli.preparing.sources.kinds import HubSource
from nmt_cli.preparing.sources.records import file_hash

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 20.0
_UNCHANGED = ("name", "version", "data_dir", "data_files", "description", "features")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a data set: its path in the repository, and size and SHA-256 as the hub states them."""

    path: str
    bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubSplit:
    """The files of a split in their order, at one commit, and what reads them: a module of `datasets` with options.

    `commit` is None where the repository is a directory; the files' paths are then where they lie.
    """

    repository: str
    commit: str | None
    files: tuple[HubFile, ...]
    builder: str
    options: tuple[tuple[str, Any], ...]


class Hub:
    """The hub, asked once for each repository: where it cannot be reached, that is not tried again."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str | None], tuple[str, dict[str, HubFile]] | Unreachable] = {}

    def find_split(self, source: HubSource, *, folder: Path) -> HubSplit:
        """The files of a source's split; where the hub cannot be reached, those found before, if they are still cached.

        Raises Unreachable where neither is to be had, DataError where there is no such repository, subset or split.
        """
        if source.is_local:
            directory = (folder / source.repository).resolve()
            if not directory.is_dir():
                raise DataError(
                    f"no such directory: {directory}", where=str(directory), hint="check the path of the repository"
                )
            return _split_of(source, str(directory), commit=None, facts={})
        key = (source.repository, source.revision)
        is_first = key not in self._answers
        if is_first:
            self._answers[key] = _ask(source)
        answer = self._answers[key]
        if isinstance(answer, Unreachable):
            remembered = _remembered(source)
            if remembered is None:
                raise answer
            if is_first:
                logger.warning("%s; using its files of commit %s, cached before", answer.message, remembered.commit)
            return remembered
        commit, facts = answer
        split = _split_of(source, source.repository, commit=commit, facts=facts)
        with suppress(OSError):  # it only helps where the hub cannot be reached another time
            _memory(source).parent.mkdir(parents=True, exist_ok=True)
            _memory(source).write_text(json.dumps(dataclasses.asdict(split), indent=1), encoding="utf-8")
        return split


def fetch_file(split: HubSplit, file: HubFile, *, progress: Progress) -> Path:
    """A file of a split, from the hub's cache or downloaded into it; checked against the hub's SHA-256.

    Raises Unreachable where it cannot be downloaded; DataError where it is not what the hub says that it is: it is
    then kept under another name, and not used.
    """
    if split.commit is None:
        return Path(file.path)
    import huggingface_hub

    reporting: dict[str, Any] = {}
    if "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        reporting["tqdm_class"] = _reporting_bar(Path(file.path).name, progress)
    with hub_errors(f"{split.repository}/{file.path}"):
        local = Path(
            huggingface_hub.hf_hub_download(
                split.repository, file.path, repo_type="dataset", revision=split.commit, **reporting
            )
        )
    if file.sha256 is not None and (digest := file_hash(local)) != file.sha256:
        raise _mismatch(local, digest, file, split)
    return local


def file_name(split: HubSplit, file: HubFile) -> str:
    """How a file is named in records."""
    return file.path if split.commit is None else f"hf://datasets/{split.repository}@{split.commit}/{file.path}"


def _ask(source: HubSource) -> tuple[str, dict[str, HubFile]] | Unreachable:
    """The commit that the revision stands for now, and what the hub says of each file."""
    import huggingface_hub

    try:
        with hub_errors(source.repository):
            info = huggingface_hub.HfApi().dataset_info(
                source.repository, revision=source.revision, timeout=_TIMEOUT_SECONDS, files_metadata=True
            )
    except Unreachable as problem:
        return problem
    files = [HubFile(one.rfilename, one.size, one.lfs.sha256 if one.lfs else None) for one in info.siblings or []]
    return str(info.sha), {file.path: file for file in files}


def _split_of(source: HubSource, path: str, *, commit: str | None, facts: dict[str, HubFile]) -> HubSplit:
    """The files of a split as `datasets` resolves them from the data set's card or its layout."""
    import datasets

    datasets.disable_progress_bars()
    with hub_errors(_name(source)):
        builder = datasets.load_dataset_builder(path, source.subset, revision=commit)
        files = builder.config.data_files or {}
    if source.split not in files:
        raise DataError(
            f"the data set {source.repository} has no split {source.split}",
            where=_name(source),
            hint=f"its splits are {', '.join(map(str, files))}: write one of them as split",
        )
    prefix = f"hf://datasets/{source.repository}@{commit}/"
    paths = [str(file).removeprefix(prefix) for file in files[source.split]]
    found = tuple(facts.get(one, HubFile(one, None, None)) for one in paths)
    defaults = type(builder.config)()
    options = {
        field.name: getattr(builder.config, field.name)
        for field in dataclasses.fields(builder.config)
        if field.name not in _UNCHANGED and getattr(builder.config, field.name) != getattr(defaults, field.name)
    }
    module = type(builder).__module__.rsplit(".", 1)[-1]
    return HubSplit(source.repository, commit, found, module, tuple(sorted(options.items())))


def _remembered(source: HubSource) -> HubSplit | None:
    """The split as it was found before, where all of its files that were fetched are still in the hub's cache."""
    import huggingface_hub

    try:
        values = json.loads(_memory(source).read_text(encoding="utf-8"))
        files = tuple(HubFile(**one) for one in values["files"])
        options = tuple((name, value) for name, value in values["options"])
        split = HubSplit(values["repository"], values["commit"], files, values["builder"], options)
    except (OSError, ValueError, KeyError, TypeError):
        return _copied(source)
    first = huggingface_hub.try_to_load_from_cache(
        split.repository, files[0].path, repo_type="dataset", revision=split.commit
    )
    return split if isinstance(first, str) else None


def _copied(source: HubSource) -> HubSplit | None:
    """The split as it lies in a cache of the hub that was filled by other means, such as `hf download`."""
    import huggingface_hub

    try:
        snapshot = Path(
            huggingface_hub.snapshot_download(
                source.repository, repo_type="dataset", revision=source.revision, local_files_only=True
            )
        )
        split = _split_of(source, str(snapshot), commit=None, facts={})
    except (OSError, ValueError, DataError):
        return None
    files = tuple(HubFile(str(Path(file.path).relative_to(snapshot)), None, None) for file in split.files)
    numbered = re.search(r"-of-(\d{5})", files[0].path)
    if numbered is not None and len(files) != int(numbered[1]):
        return None  # some of its files were never fetched
    return dataclasses.replace(split, commit=snapshot.name, files=files)


def _memory(source: HubSource) -> Path:
    """Where the files of a split are remembered."""
    parts = (
        source.repository.replace("/", "--"),
        source.subset or "default",
        source.split,
        source.revision or "newest",
    )
    return cache_folder() / "hub" / f"{'.'.join(part.replace('/', '--') for part in parts)}.json"


def _mismatch(local: Path, digest: str, file: HubFile, split: HubSplit) -> DataError:
    """Move a wrong file out of the hub's cache, so that it is downloaded again, and say so."""
    content = local.resolve()
    aside = cache_folder() / "downloads" / "mismatch" / f"{Path(file.path).name}.{digest[:12]}"
    with writing_errors(aside):
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(content, aside)
    if local.is_symlink():
        local.unlink()
    return DataError(
        f"{file.path} is not the file that it should be: its SHA-256 is {digest}, not {file.sha256}",
        where=file_name(split, file),
        hint=f"it is kept as {aside}, and not used; the same command downloads it again",
    )


def _reporting_bar(name: str, progress: Progress) -> type[Any]:
    """A bar for the library of the hub that shows nothing itself and reports bytes to a progress."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm carries no types
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            progress(f"downloading {name}", int(self.n), int(self.total) if self.total else None)
            return shown

    return Bar


def _name(source: HubSource) -> str:
    return " ".join(part for part in (source.repository, source.subset, source.split) if part)
