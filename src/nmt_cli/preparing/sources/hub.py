"""Data sets of the Hugging Face hub: the files of a split, downloaded into the hub's own cache."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, assert_never

from pydantic import Field

from nmt_cli import hub
from nmt_cli.cache import cache_folder, file_hash, mismatch, writing_errors
from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.preparing.download import Unreachable, wrong_file_error
from nmt_cli.preparing.sources.base import CorpusContext, HubAnswer, Source, Weight
from nmt_cli.preparing.sources.jsonl_parquet import TableFile, translation_columns

logger = logging.getLogger(__name__)

_BEGINNINGS_OF_PATHS = ("./", "../", "/")
# Settings of a builder of `datasets` that do not tell how it reads a file.
_NOT_OPTIONS = ("name", "version", "data_dir", "data_files", "description", "features")


class HubSource(Source):
    """A data set of the Hugging Face hub, or a directory laid out like one (starts with ./, ../ or /)."""

    kind: Literal["hub"] = Field(description="two columns of a data set")
    repository: str = Field(description="OWNER/NAME on the hub, or a directory")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = Field(description="split of the data set, such as train or validation")
    revision: str | None = Field(None, description="commit, tag or branch; null: the newest")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")
    weight: Weight = 1.0

    @property
    def is_local(self) -> bool:
        """True if `repository` is a directory."""
        return self.repository.startswith(_BEGINNINGS_OF_PATHS)

    def describe(self) -> list[str]:
        """Data set, subset, split and revision."""
        revision = f" at {self.revision}" if self.revision else ""
        on_hub = f"{self.repository} on the hub, {self.subset or 'default'}, {self.split}{revision}"
        return [] if self.is_local else [on_hub]

    def files(self, context: CorpusContext) -> list[Path]:
        """The files of the directory, but for empty files and hidden folders. DataError if it does not exist."""
        if not self.is_local:
            return []
        directory = self._directory(context)
        return sorted(
            path
            for path in directory.rglob("*")
            if path.is_file() and path.stat().st_size and not re.search(r"/\..*/", f"/{path.relative_to(directory)}")
        )

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[TableFile]:
        """The files of the split, in its order; each file is downloaded when its turn comes."""
        split, columns = self.find_split(context), translation_columns(self.source, self.target, context)
        for path in split.files:
            local, name = split.fetch(path, progress=progress), split.name_of(path)
            origin = f"{self.repository}/{name.rsplit('/', 1)[-1]}"
            yield TableFile(((name, local),), origin, self.weight, local, *columns, split.builder, split.options)

    def find_split(self, context: CorpusContext) -> HubSplit:
        """The files of the split; if the hub cannot be reached, the files that its cache holds.

        The hub is asked once per repository. Raises Unreachable if it cannot be reached and nothing is cached. Raises
        DataError if there is no such repository, subset or split.
        """
        if self.is_local:
            return _split_of(self, str(self._directory(context).resolve()), commit=None, checksums={})
        question = self.repository, self.revision
        # The answer may be an error. Then other sources of the same repository do not wait for the hub again.
        if is_first := question not in context.hub_answers:
            context.hub_answers[question] = _ask_hub(self)
        answer = context.hub_answers[question]
        if isinstance(answer, Unreachable):
            cached = _recorded_split(self) or _split_in_hub_cache(self)
            if cached is None:
                raise answer
            if is_first:
                logger.warning("%s; using its files of commit %s, cached before", answer.message, cached.commit)
            return cached
        commit, checksums = answer
        split = _split_of(self, self.repository, commit=commit, checksums=checksums)
        with suppress(OSError):  # the record is for a time when the hub cannot be reached
            _record_file(self).parent.mkdir(parents=True, exist_ok=True)
            _record_file(self).write_text(json.dumps(dataclasses.asdict(split), indent=1), encoding="utf-8")
        return split

    def _directory(self, context: CorpusContext) -> Path:
        directory = context.folder / self.repository
        if not directory.is_dir():
            message = f"no such directory: {directory}"
            raise DataError(message, where=str(directory), hint="check the path of the repository")
        return directory


@dataclass(frozen=True, slots=True)
class HubSplit:
    """The files of a split in order, at one commit, and the module of `datasets` that reads them, with its options.

    `files` has each file's path in the repository, with its SHA-256 if the hub states it. `commit` is None if the
    repository is a directory; then the paths are local.
    """

    repository: str
    commit: str | None
    files: Mapping[str, str | None]
    builder: str
    options: tuple[tuple[str, Any], ...]

    def name_of(self, path: str) -> str:
        """The name of a file in records."""
        return path if self.commit is None else f"hf://datasets/{self.repository}@{self.commit}/{path}"

    def fetch(self, path: str, *, progress: Progress) -> Path:
        """A file of the split, from the hub's cache or downloaded into it, checked against the hub's SHA-256.

        Raises Unreachable if it cannot be downloaded. Raises DataError if its checksum is wrong: the file is then kept
        under another name, and not used.
        """
        if self.commit is None:
            return Path(path)
        with hub.hub_errors(partial(_hub_error, self.repository, f"{self.repository}/{path}")):
            local = hub.download(self.repository, path, repo_type="dataset", revision=self.commit, progress=progress)
        if differs := mismatch(local, expected_size=None, expected_sha256=self.files[path]):
            raise wrong_file_error(path, differs, where=self.name_of(path), kept_as=_keep_mismatch(local))
        return local


def _hub_error(repository: str, name: str, error: Exception) -> DataError:
    """The error for a data set that the hub does not give, or that cannot be stored; messages call it `name`."""
    import datasets.exceptions

    failure, causes = hub.failure_of(error), list(hub.causes_of(error))
    if any(isinstance(cause, datasets.exceptions.DataFilesNotFoundError) for cause in causes):
        message = f"{repository} has no data files such as train.parquet, train.jsonl or train.csv"
        hint = (
            "kind: hub reads what is laid out like a data set of the hub; a single file is read by a source of kind "
            "text, tsv, jsonl or parquet, such as {kind: tsv, file: my/x.tsv}"
        )
        return DataError(message, where=name, hint=hint)
    is_missing = any(isinstance(cause, datasets.exceptions.DatasetNotFoundError) for cause in causes)
    if is_missing and failure.kind != "gated":
        failure = hub.HubFailure("no repository", failure.reason)
    if failure.kind == "not writable" and repository.startswith(_BEGINNINGS_OF_PATHS):
        failure = hub.HubFailure("other", failure.reason)
    kind = failure.kind
    match kind:
        case "disk full" | "not writable" | "gated" | "refused" | "overloaded":
            page = f"{hub.endpoint()}/datasets/{repository}"
            message, hint = hub.words_of_common_failure(kind, name, reason=failure.reason, page=page)
        case "no revision":
            message = f"{name} has no such revision on the hub"
            hint = "correct revision, or leave it out for the newest"
        case "no repository":
            message = f"there is no data set {name} on the hub, or it is private"
            hint = (
                "check repository: it is OWNER/NAME on the hub, or ./FOLDER; for a private one export HF_TOKEN=hf_..."
            )
        case "offline" | "unreachable":
            message = f"cannot reach {name} on the hub: {failure.reason}"
            cache = "HF_HUB_OFFLINE=1 uses what is in its cache, a folder (HF_HOME) that can be copied"
            hint = f"check the network; {hub.PROXY_HINT}; {cache}"
        case "other":
            message = f"cannot read the data set {name}: {failure.reason}"
            hint = "check repository, subset, split and revision"
        case other:
            assert_never(other)
    if failure.may_use_cache:
        return Unreachable(message, where=hub.endpoint(), hint=hint)
    return DataError(message, where=name, hint=hint)


def _ask_hub(source: HubSource) -> HubAnswer:
    """The commit that the revision stands for now, and the checksums of the files."""
    import huggingface_hub

    try:
        with hub.hub_errors(partial(_hub_error, source.repository, source.repository)):
            info = huggingface_hub.HfApi().dataset_info(
                source.repository, revision=source.revision, timeout=hub.TIMEOUT_SECONDS, files_metadata=True
            )
    except Unreachable as error:
        return error
    return str(info.sha), {file.rfilename: file.lfs.sha256 for file in info.siblings or [] if file.lfs}


def _split_of(source: HubSource, path: str, *, commit: str | None, checksums: Mapping[str, str]) -> HubSplit:
    """The files of a split as `datasets` resolves them from the data set's card or its layout."""
    import datasets

    datasets.disable_progress_bars()
    with hub.hub_errors(partial(_hub_error, source.repository, _name_in_messages(source))):
        builder = datasets.load_dataset_builder(path, source.subset, revision=commit)
        files = builder.config.data_files or {}
    if source.split not in files:
        raise DataError(
            f"the data set {source.repository} has no split {source.split}",
            where=_name_in_messages(source),
            hint=f"its splits are {', '.join(map(str, files))}: write one of them as split",
        )
    prefix = f"hf://datasets/{source.repository}@{commit}/"
    paths = [str(file).removeprefix(prefix) for file in files[source.split]]
    defaults = type(builder.config)()
    options = {
        field.name: getattr(builder.config, field.name)
        for field in dataclasses.fields(builder.config)
        if field.name not in _NOT_OPTIONS and getattr(builder.config, field.name) != getattr(defaults, field.name)
    }
    checksum_of_path = {path: checksums.get(path) for path in paths}
    module = type(builder).__module__.rsplit(".", 1)[-1]
    return HubSplit(source.repository, commit, checksum_of_path, module, tuple(sorted(options.items())))


def _recorded_split(source: HubSource) -> HubSplit | None:
    """The split as an earlier call recorded it, if its first file is still in the hub's cache."""
    import huggingface_hub

    try:
        values = json.loads(_record_file(source).read_text(encoding="utf-8"))
        options = tuple((name, value) for name, value in values["options"])
        split = HubSplit(**{**values, "files": dict(values["files"]), "options": options})
        first = next(iter(split.files))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    cached = huggingface_hub.try_to_load_from_cache(split.repository, first, repo_type="dataset", revision=split.commit)
    return split if isinstance(cached, str) else None


def _split_in_hub_cache(source: HubSource) -> HubSplit | None:
    """The split in a cache of the hub that was filled by other means, such as `hf download`."""
    import huggingface_hub

    try:
        options: dict[str, Any] = {"repo_type": "dataset", "revision": source.revision, "local_files_only": True}
        snapshot = Path(huggingface_hub.snapshot_download(source.repository, **options))
        split = _split_of(source, str(snapshot), commit=None, checksums={})
    except (OSError, ValueError, DataError):
        return None
    files = [str(Path(path).relative_to(snapshot)) for path in split.files]
    numbered = re.search(r"-of-(\d{5})", files[0])
    if numbered is not None and len(files) != int(numbered[1]):
        return None  # some of its files were never fetched
    return dataclasses.replace(split, commit=snapshot.name, files=dict.fromkeys(files))


def _record_file(source: HubSource) -> Path:
    """The file that remembers a split."""
    parts = (source.repository, source.subset or "default", source.split, source.revision or "newest")
    return cache_folder() / "hub" / f"{'.'.join(part.replace('/', '--') for part in parts)}.json"


def _keep_mismatch(local: Path) -> Path:
    """Move a wrong file out of the hub's cache, so that the next call downloads it again; the new path."""
    kept = cache_folder() / "downloads" / "mismatch" / f"{local.name}.{file_hash(local)[:12]}"
    with writing_errors(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(local.resolve(), kept)
    if local.is_symlink():
        local.unlink()
    return kept


def _name_in_messages(source: HubSource) -> str:
    return " ".join(part for part in (source.repository, source.subset, source.split) if part)
