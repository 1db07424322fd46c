"""What may be done with the output folder of a preparation: nothing is replaced that was not asked for."""

from __future__ import annotations

import logging
from pathlib import Path

from nmt_cli.dataset.manifest import MANIFEST, Manifest, read_manifest
from nmt_cli.dataset.store import open_prepared
from nmt_cli.errors import DataError
from nmt_cli.preparing.corpora import Corpus
from nmt_cli.recipe.loading import flatten

logger = logging.getLogger(__name__)


def is_finished(output: Path, corpus: Corpus, *, key: str, overwrite: bool) -> bool:
    """True where `output` holds the data with this key, whole; False where it is to be written.

    DataError where it holds anything else. Where `overwrite`, prepared data of any kind is replaced; foreign files
    never are.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    if not (output / MANIFEST).is_file() or not (output / "source.spm").is_file():
        raise DataError(
            f"{output} exists and is not prepared data", where=str(output), hint="choose another folder with -o"
        )
    if overwrite:
        return False
    try:
        manifest = read_manifest(output)
    except DataError as problem:
        raise DataError(problem.message, where=problem.where, hint="add --overwrite to prepare it again") from None
    if manifest.fingerprint == key:
        return _is_whole(output)
    raise DataError(
        f"{output} holds other data: {_first_difference(manifest, corpus)}",
        where=str(output),
        hint="choose another folder with -o, or add --overwrite to replace it",
    )


def _is_whole(output: Path) -> bool:
    try:
        open_prepared(output)
    except DataError as problem:
        logger.warning("%s is damaged (%s): preparing it again", output, problem.message)
        return False
    return True


def _first_difference(manifest: Manifest, corpus: Corpus) -> str:
    there, here = flatten(manifest.corpus), flatten(corpus.model_dump(mode="json"))
    for path, value in here.items():
        if path[0] not in ("name", "description", "train", "valid", "test") and there.get(path) != value:
            return f"{'.'.join(path)} is {there.get(path)} there, {value} here"
    return "its input files had other contents"
