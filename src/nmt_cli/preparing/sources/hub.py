"""Data sets of the Hugging Face hub: the files of a split, downloaded into the hub's own cache."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmt_cli import hub
from nmt_cli.console import Progress
from nmt_cli.errors import DataError, first_line
from nmt_cli.preparing.sources.base import CorpusContext, LocalSource, Source
from nmt_cli.preparing.sources.jsonl_parquet import (
    datasets_tables,
    parquet_tables,
    read_table,
    translation_columns,
)

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 20.0
_BEGINNINGS_OF_PATHS = ("./", "../", "/")
# Settings of a builder of `datasets` that do not tell how it reads a file.
_NOT_OPTIONS = ("name", "version", "data_dir", "data_files", "description", "features")


class HubSource(Source):
    """A data set of the Hugging Face hub, or a directory laid out like one (starts with ./, ../ or /)."""

    kind: Literal["hub"] = Field(description="two columns of a data set")
    path_keys = ("alignments", "repository")
    repository: str = Field(description="OWNER/NAME on the hub, or a directory")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = Field(description="split of the data set, such as train or validation")
    revision: str | None = Field(None, description="commit, tag or branch; null: the newest")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")

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

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalSource]:
        """The files of the split, in its order; each file is downloaded when its turn comes."""
        columns = translation_columns(self.source, self.target, context.languages)
        commit = None
        if self.is_local:
            split = self._find_split(str(self._directory(context).resolve()))
        else:
            commit, split = self._find_split_on_hub()
        for path in split.files:
            name, file = path, Path(path)
            if commit is not None:
                name = f"hf://datasets/{self.repository}@{commit}/{path}"
                with self._hub_errors():
                    file = hub.download_file(
                        self.repository, path, repo_type="dataset", revision=commit, progress=progress
                    )
            read_parts = partial(datasets_tables, file, split.builder, split.options)
            if split.builder == "parquet":
                read_parts = partial(parquet_tables, file, columns)
            origin = f"{self.repository}/{file.name}"
            read = partial(read_table, file, columns, read_parts, origin=origin)
            yield LocalSource([(name, file)], origin, read)

    def _directory(self, context: CorpusContext) -> Path:
        directory = context.folder / self.repository
        if not directory.is_dir():
            message = f"no such directory: {directory}"
            raise DataError(message, where=str(directory), hint="check the path of the repository")
        return directory

    def _hub_errors(self) -> AbstractContextManager[None]:
        page = f"{hub.endpoint()}/datasets/{self.repository}"
        missing = f"there is no data set {self.repository} on the hub, or it is private"
        return hub.hub_errors(DataError, self.repository, page=page, missing=missing)

    def _find_split_on_hub(self) -> tuple[str, _Split]:
        """The commit that the revision stands for now, and the split; from the hub's cache if it cannot be reached."""
        import huggingface_hub

        download_card = partial(
            hub.snapshot_of, self.repository, ["README.md"], repo_type="dataset", revision=self.revision
        )
        try:
            with self._hub_errors():
                huggingface_hub.HfApi().dataset_info(self.repository, revision=self.revision, timeout=_TIMEOUT_SECONDS)
                commit = download_card(only_cached=False).name
        except DataError as error:
            try:
                snapshot = download_card(only_cached=True)
            except FileNotFoundError:
                raise error from None
            logger.warning("%s; using its files of commit %s, cached before", error.message, snapshot.name)
            return snapshot.name, self._find_cached_split(snapshot)
        prefix = f"hf://datasets/{self.repository}@{commit}/"
        return commit, self._find_split(self.repository, revision=commit, prefix=prefix)

    def _find_cached_split(self, snapshot: Path) -> _Split:
        """The split in a snapshot of the hub's cache, which may lack other subsets. DataError if it is incomplete."""
        import huggingface_hub

        patterns = None
        if (card := snapshot / "README.md").exists():
            subsets = huggingface_hub.DatasetCard.load(card).data.to_dict().get("configs", [])
            patterns = next((each.get("data_files") for each in subsets if each["config_name"] == self.subset), None)
        split = self._find_split(str(snapshot), prefix=f"{snapshot}/", data_files=patterns)
        numbered = re.search(r"-of-(\d{5})", split.files[0])
        if numbered is not None and len(split.files) != int(numbered[1]):
            message = f"the hub's cache holds {len(split.files)} of {int(numbered[1])} files of {self._name}"
            hint = "give the same command with a network, or copy the cache (HF_HOME) from another machine"
            raise DataError(message, where=str(snapshot), hint=hint)
        return split

    def _find_split(self, path: str, *, prefix: str = "", **options: Any) -> _Split:
        """The split as `datasets` finds it from the data set's card or its layout; its files without `prefix`."""
        import datasets

        datasets.disable_progress_bars()
        try:
            builder = datasets.load_dataset_builder(path, self.subset, **options)
        except Exception as error:  # errors of datasets, of the hub's library and of pyarrow share no class
            message = f"cannot read the data set {self._name}: {first_line(error) or type(error).__name__}"
            hint = "check repository, subset and split; a single file is read by kind: text, tsv, jsonl or parquet"
            raise DataError(message, where=self._name, hint=hint) from error
        files = builder.config.data_files or {}
        if self.split not in files:
            message = f"the data set {self.repository} has no split {self.split}"
            hint = f"its splits are {', '.join(map(str, files))}: write one of them as split"
            raise DataError(message, where=self._name, hint=hint)
        defaults = type(builder.config)()
        settings = {
            name: value
            for name, value in vars(builder.config).items()
            if name not in _NOT_OPTIONS and value != getattr(defaults, name)
        }
        module = type(builder).__module__.rsplit(".", 1)[-1]
        return _Split([str(file).removeprefix(prefix) for file in files[self.split]], module, settings)

    @property
    def _name(self) -> str:
        return " ".join(part for part in (self.repository, self.subset, self.split) if part)


@dataclass(frozen=True, slots=True)
class _Split:
    """The files of a split in order, and the module of `datasets` that reads them, with its options."""

    files: Sequence[str]
    builder: str
    options: dict[str, Any]
