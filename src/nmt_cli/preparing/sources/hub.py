"""Data sets of the Hugging Face hub: the files of a split, downloaded into the hub's own cache."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmt_cli.console import Progress
from nmt_cli.errors import DataError, NmtError
from nmt_cli.preparing.download import Unreachable, cache_folder, file_hash, writing_errors
from nmt_cli.preparing.sources.base import WEIGHT, Location, Source, Weight
from nmt_cli.preparing.sources.tables import TableFile, translation_columns

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 20.0
_UNCHANGED = ("name", "version", "data_dir", "data_files", "description", "features")
_NETWORK_HINT = (
    "check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY; HF_ENDPOINT=https://HOST "
    "names a mirror of the hub; HF_HUB_OFFLINE=1 uses what is in its cache, a folder (HF_HOME) that can be copied"
)


class HubSource(Source):
    """A data set of the Hugging Face hub, or a directory laid out like one (starts with ./, ../ or /)."""

    kind: Literal["hub"] = Field(description="two columns of a data set")
    repository: str = Field(description="OWNER/NAME on the hub, or a directory")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = Field(description="split of the data set, such as train or validation")
    revision: str | None = Field(None, description="commit, tag or branch; null: the newest")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")
    weight: Weight = Field(1.0, description=WEIGHT)

    @property
    def is_local(self) -> bool:
        """True if `repository` is a directory."""
        return self.repository.startswith(("./", "../", "/"))

    def describe(self) -> list[str]:
        """Data set, subset, split and revision."""
        revision = f" at {self.revision}" if self.revision else ""
        on_hub = f"{self.repository} on the hub, {self.subset or 'default'}, {self.split}{revision}"
        return [] if self.is_local else [on_hub]

    def files(self, at: Location) -> list[Path]:
        """All files of the directory. DataError if it does not exist."""
        if not self.is_local:
            return []
        return sorted(path for path in self._directory(at).rglob("*") if path.is_file())

    def key(self) -> dict[str, Any]:
        """All keys, and the former key `otherwise`, so that prepared data keeps its fingerprint."""
        return {**self.key_without(), "otherwise": []}

    def fetch(self, at: Location, *, progress: Progress) -> Iterator[TableFile]:
        """The files of the split, in its order; each is downloaded when it is asked for."""
        split, columns = self.find_split(at), translation_columns(self.source, self.target, at)
        for file in split.files:
            path, name = fetch_file(split, file, progress=progress), file_name(split, file)
            origin = f"{self.repository}/{name.rsplit('/', 1)[-1]}"
            yield TableFile(((name, path),), origin, self.weight, path, *columns, split.builder, split.options)

    def find_split(self, at: Location) -> HubSplit:
        """The files of the split. If the hub cannot be reached, they are the files found before that are still cached.

        The hub is asked once for each repository. Raises Unreachable if it cannot be reached and nothing is cached,
        DataError if there is no such repository, subset or split.
        """
        if self.is_local:
            return _split_of(self, str(self._directory(at).resolve()), commit=None, facts={})
        question = ("hub", self.repository, self.revision)
        answer = at.once(question, lambda: _ask(self))
        if isinstance(answer, Unreachable):
            remembered = _remembered(self)
            if remembered is None:
                raise answer
            warning = f"{answer.message}; using its files of commit {remembered.commit}, cached before"
            at.once(("warned", *question), lambda: logger.warning("%s", warning))
            return remembered
        commit, facts = answer
        split = _split_of(self, self.repository, commit=commit, facts=facts)
        with suppress(OSError):  # it only helps if the hub cannot be reached another time
            _memory(self).parent.mkdir(parents=True, exist_ok=True)
            _memory(self).write_text(json.dumps(dataclasses.asdict(split), indent=1), encoding="utf-8")
        return split

    def _directory(self, at: Location) -> Path:
        directory = at.folder / self.repository
        if not directory.is_dir():
            raise DataError(
                f"no such directory: {directory}", where=str(directory), hint="check the path of the repository"
            )
        return directory


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a data set: its path in the repository, and size and SHA-256 as the hub states them."""

    path: str
    bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubSplit:
    """The files of a split in order, at one commit, and the module of `datasets` that reads them, with its options.

    `commit` is None if the repository is a directory; then the paths are local.
    """

    repository: str
    commit: str | None
    files: tuple[HubFile, ...]
    builder: str
    options: tuple[tuple[str, Any], ...]


def fetch_file(split: HubSplit, file: HubFile, *, progress: Progress) -> Path:
    """A file of a split, from the hub's cache or downloaded into it, checked against the hub's SHA-256.

    Raises Unreachable if it cannot be downloaded. Raises DataError if its checksum is wrong: the file is then kept
    under another name, and not used.
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
    """The name of a file in records."""
    return file.path if split.commit is None else f"hf://datasets/{split.repository}@{split.commit}/{file.path}"


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raise Unreachable if the hub does not answer, DataError if it refuses or the disk is full."""
    import datasets.exceptions
    from huggingface_hub import errors

    try:
        yield
    except NmtError:
        raise
    except Exception as problem:  # the libraries below raise errors of a dozen unrelated classes
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        causes = list(_causes(problem))
        if any(getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for cause in causes):
            hint = "free some space, or move the hub's cache: export HF_HOME=FOLDER; the same command continues"
            raise DataError(f"cannot download {name}: the disk is full", where=name, hint=hint) from problem
        if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes):
            reason = "HF_HUB_OFFLINE is set"
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        if any(isinstance(cause, errors.GatedRepoError) for cause in causes) or "gated" in reason.lower():
            message = f"{name} is gated: the hub wants to know who takes it"
            hint = f"accept its terms at {endpoint}/datasets/{name.split(' ')[0]}, then export HF_TOKEN=hf_..."
        elif any(isinstance(cause, errors.RevisionNotFoundError) for cause in causes):
            message, hint = (
                f"{name} has no such revision on the hub",
                "correct revision, or leave it out for the newest",
            )
        elif any(
            isinstance(cause, errors.RepositoryNotFoundError | datasets.exceptions.DatasetNotFoundError)
            for cause in causes
        ):
            message = f"there is no data set {name} on the hub, or it is private"
            hint = (
                "check repository: it is OWNER/NAME on the hub, or ./FOLDER; for a private one export HF_TOKEN=hf_..."
            )
        elif any(isinstance(cause, datasets.exceptions.DataFilesNotFoundError) for cause in causes):
            message = f"{name.split(' ')[0]} has no data files such as train.parquet, train.jsonl or train.csv"
            hint = (
                "kind: hub reads what is laid out like a data set of the hub; a single file is read by a source of "
                "kind text, tsv, jsonl or parquet, such as {kind: tsv, file: my/x.tsv}"
            )
        elif isinstance(problem, OSError) or any(_is_of_the_network(cause) for cause in causes):
            raise Unreachable(
                f"cannot reach {name} on the hub: {reason}", where=endpoint, hint=_NETWORK_HINT
            ) from problem
        else:
            message, hint = f"cannot read the data set {name}: {reason}", "check repository, subset, split and revision"
        raise DataError(message, where=name, hint=hint) from problem


def _ask(source: HubSource) -> tuple[str, dict[str, HubFile]] | Unreachable:
    """The commit that the revision stands for now, and size and checksum of each file."""
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
    """The split as it was found before, if its first file is still in the hub's cache."""
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
    """The split in a cache of the hub that was filled by other means, such as `hf download`."""
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
    """The file that remembers a split."""
    parts = (
        source.repository.replace("/", "--"),
        source.subset or "default",
        source.split,
        source.revision or "newest",
    )
    return cache_folder() / "hub" / f"{'.'.join(part.replace('/', '--') for part in parts)}.json"


def _mismatch(local: Path, digest: str, file: HubFile, split: HubSplit) -> DataError:
    """Move a wrong file out of the hub's cache, so that the next call downloads it again. The error says so."""
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
    """A silent bar for the hub's library that reports bytes to a progress."""
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


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that caused it."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _is_of_the_network(problem: BaseException) -> bool:
    """True for httpx's connection errors, which the hub's library passes on; they are no OSError."""
    return any(kind.__name__ == "TransportError" for kind in type(problem).__mro__)
