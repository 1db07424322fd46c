"""The output directory of a preparation, which replaces only prepared data, and the work folder beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from nmt_cli import files
from nmt_cli.artifacts.directory_kinds import kind_of
from nmt_cli.dataset.data_manifest import Manifest, read_manifest
from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.errors import DataError
from nmt_cli.preparing.corpus import DESCRIPTIVE_KEYS, Corpus
from nmt_cli.preparing.report import read_report
from nmt_cli.recipe.mistakes import as_written
from nmt_cli.recipe.section import flatten

logger = logging.getLogger(__name__)

_RECORD = "stage.json"
# Keys of a corpus that do not change its prepared data. Sources are compared one by one, and by their contents.
_KEYS_WITHOUT_EFFECT = DESCRIPTIVE_KEYS | {"name", "train", "valid", "test"}


class WorkFolder:
    """A folder beside the output, with a subfolder for each stage and the key that the stage was made for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stage(self, name: str, *, key: str, build: Callable[[Path], None]) -> Path:
        """The folder of a stage, which is there whole or not at all; `build` fills it unless it has this key."""
        folder, record = self.path / name, json.dumps({"key": key}).encode()
        if (folder / _RECORD).is_file() and (folder / _RECORD).read_bytes() == record:
            logger.info("%s: finished before, kept", name)
            return folder
        files.remove_directory(folder)  # of another key
        with files.new_directory(folder, error=DataError) as temporary:
            build(temporary)
            (temporary / _RECORD).write_bytes(record)
        return folder

    def discard_stages(self) -> None:
        """Remove all stages, each so that a kill leaves it whole or gone."""
        for record in sorted(self.path.glob(f"*/{_RECORD}")):
            files.remove_directory(record.parent)


@contextmanager
def open_work_folder(output: Path) -> Iterator[WorkFolder]:
    """The work folder of an output, locked against a second process; half-written files of a killed process go.

    The folder stays if stages are finished in it.
    """
    path = work_path(output)
    with files.disk_errors(path, DataError):
        path.mkdir(parents=True, exist_ok=True)
    with files.lock_path(output, busy=f"another nmt prepare is writing {output}", error=DataError):
        files.clear_partial_directories(path, name="*")
        files.clear_partial_directories(output.parent, name=escape(output.name))
        try:
            yield WorkFolder(path)
        finally:
            with suppress(OSError):
                path.rmdir()  # fails while stages are in it


def work_path(output: Path) -> Path:
    """The path of the work folder of an output."""
    return output.with_name(f"{output.name}.partial")


def finished_report(
    output: Path, corpus: Corpus, *, compute_fingerprint: Callable[[], str], overwrite: bool
) -> dict[str, Any] | None:
    """The report of `output` if this corpus's data is there, complete; None if it has to be prepared.

    `compute_fingerprint` reads the vocabulary of the corpus, which need not be there if there is no data to compare
    with. `overwrite` replaces prepared data of any kind, but never foreign files. DataError if `output` may not be
    replaced.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    if kind_of(output) != "data":
        message = f"{output} exists and is not prepared data"
        raise DataError(message, where=str(output), hint="choose another folder with -o")
    if overwrite:
        return None
    try:
        manifest = read_manifest(output)
    except DataError as error:
        raise DataError(error.message, where=error.where, hint="add --overwrite to prepare it again") from None
    if manifest.fingerprint != compute_fingerprint():
        message = f"{output} holds other data: {_first_difference(manifest, corpus)}"
        hint = "choose another folder with -o, or add --overwrite to replace it"
        raise DataError(message, where=str(output), hint=hint)
    try:
        open_prepared(output)
        return read_report(output)
    except DataError as error:
        logger.warning("%s is damaged (%s): preparing it again", output, error.message)
        return None


def _first_difference(manifest: Manifest, corpus: Corpus) -> str:
    """The first key whose value in the manifest is another than in the corpus, with both values."""
    old, new = flatten(manifest.corpus), flatten(corpus.model_dump(mode="json"))
    for path, value in new.items():
        if path[0] not in _KEYS_WITHOUT_EFFECT and old.get(path) != value:
            return f"{'.'.join(path)} is {as_written(old.get(path))} there, {as_written(value)} here"
    return "its sources differ, or another version of nmt prepared it"
