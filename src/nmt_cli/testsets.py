"""Test sets by name: sacreBLEU's, which it downloads once and checks."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from nmt_cli.errors import DataError, NmtError, nearest_word
from nmt_cli.files import disk_errors

logger = logging.getLogger(__name__)

_SHOWN_PAIRS = 12


@dataclass(frozen=True, slots=True)
class TestSetFiles:
    """The source and the references that sacreBLEU scores with, for one language pair; one segment per line."""

    source: Path
    references: list[Path]


def find_test_set(
    name: str, languages: str | None, *, error: type[NmtError], name_where: str, languages_where: str
) -> TestSetFiles:
    """The files of a test set such as wmt14/full, downloaded into sacreBLEU's folder unless they are there.

    Raises `error` for a name or a language pair that sacreBLEU does not know; `name_where` and `languages_where`
    are where the user gave them. Raises DataError, which names the folder, if the files can be neither found nor
    fetched.
    """
    if name not in DATASETS:
        near = nearest_word(name, DATASETS)
        hint = f"did you mean {near}? " if near else ""
        message = f"sacreBLEU knows no test set {name!r}"
        raise error(message, where=name_where, hint=f"{hint}sacrebleu --list names them all")
    dataset = DATASETS[name]
    if languages is None or languages not in dataset.langpairs:
        fault = "needs its languages" if languages is None else f"has no languages {languages!r}"
        pairs = sorted(dataset.langpairs)
        shown = ", ".join(pairs[:_SHOWN_PAIRS]) + (", ..." if len(pairs) > _SHOWN_PAIRS else "")
        raise error(f"the test set {name} {fault}", where=languages_where, hint=f"take one of {shown}")
    folder = Path(SACREBLEU_DIR) / name
    if not folder.is_dir():
        logger.info("fetching %s through sacreBLEU into %s", name, folder)
    try:
        with disk_errors(Path(SACREBLEU_DIR), DataError, elsewhere="name another folder: export SACREBLEU=FOLDER"):
            source: str = dataset.get_source_file(languages)
            # Some sets have references that sacreBLEU does not score with: of wmt21 it takes the first translator's.
            references: list[str] = dataset.get_reference_files(languages)
    except (Exception, SystemExit) as cause:
        raise cause if isinstance(cause, DataError) else _unusable_error(name, folder, cause) from None
    return TestSetFiles(Path(source), [Path(file) for file in references])


def _unusable_error(name: str, folder: Path, cause: BaseException) -> DataError:
    """The error for files that sacreBLEU cannot give; it raises anything, or exits because of a wrong checksum."""
    reason = "its checksum is wrong" if isinstance(cause, SystemExit) else cause or type(cause).__name__
    hint = (
        f"check the network and $https_proxy, and rm -r {shlex.quote(str(folder))}; without a network, copy"
        f" ~/.sacrebleu of another machine to {SACREBLEU_DIR}"
    )
    return DataError(f"the test set {name} cannot be fetched or read: {reason}", where=str(folder), hint=hint)
