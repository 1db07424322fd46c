"""Test sets by name: sacreBLEU's, which it downloads once and checks."""

from __future__ import annotations

import difflib
import logging
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.base import Dataset
from sacrebleu.utils import SACREBLEU_DIR

from nmt_cli.errors import DataError, NmtError
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
        raise _unknown_name_error(name, error=error, where=name_where)
    dataset = DATASETS[name]
    if languages not in dataset.langpairs:
        raise _unknown_languages_error(
            dataset, languages, error=error, name_where=name_where, languages_where=languages_where
        )
    assert languages is not None
    folder = Path(SACREBLEU_DIR) / name
    if not folder.is_dir():
        logger.info("fetching %s through sacreBLEU into %s", name, folder)
    try:
        with disk_errors(Path(SACREBLEU_DIR), DataError, elsewhere="name another folder: export SACREBLEU=FOLDER"):
            source: str = dataset.get_source_file(languages)
            # Some sets have references that sacreBLEU does not score with: of wmt21 it takes the first translator's.
            references: list[str] = dataset.get_reference_files(languages)
    except (Exception, SystemExit) as cause:
        raise cause if isinstance(cause, DataError) else _unusable_error(name, languages, folder, cause) from None
    return TestSetFiles(Path(source), [Path(file) for file in references])


def _unknown_name_error(name: str, *, error: type[NmtError], where: str) -> NmtError:
    message = f"sacreBLEU knows no test set {name!r}"
    if edition := re.fullmatch(r"newstest20(\d\d)", name):
        name = f"wmt{edition[1]}"
    near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.5)
    near += [other for other in DATASETS if other.startswith(name) and other not in near][: 3 - len(near)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return error(message, where=where, hint=f"{hint}sacrebleu --list names them all")


def _unknown_languages_error(
    dataset: Dataset, languages: str | None, *, error: type[NmtError], name_where: str, languages_where: str
) -> NmtError:
    pairs = sorted(dataset.langpairs)
    shown = ", ".join(pairs[:_SHOWN_PAIRS]) + (", ..." if len(pairs) > _SHOWN_PAIRS else "")
    known_pairs = f"{dataset.name} has {shown}"
    if languages is None:
        example = "en-de" if "en-de" in pairs else pairs[0]
        message = f"{name_where} needs the languages of the test set"
        return error(message, where=name_where, hint=f"add {languages_where} {example}, say; {known_pairs}")
    message = f"the test set {dataset.name} has no languages {languages!r}"
    return error(message, where=languages_where, hint=known_pairs)


def _unusable_error(name: str, languages: str, folder: Path, cause: BaseException) -> DataError:
    """The error for files that sacreBLEU cannot give; it raises anything, or exits because of a wrong checksum."""
    again = f"rm -r {shlex.quote(str(folder))} and try again"
    if isinstance(cause, SystemExit):
        message = f"sacreBLEU refuses what it downloaded of the test set {name}, for the reason above"
    elif isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
        reason = re.sub(r"^<urlopen error (.*)>$", r"\1", str(cause))
        message = f"the test set {name} is not in {folder} and cannot be fetched: {reason}"
        again = "check the network and $https_proxy"
    else:
        message = f"what is in {folder} of the test set {name} cannot be used: {cause or type(cause).__name__}"
    fetch = f"sacrebleu -t {name} -l {languages} --echo ref"
    hint = f"{again}; or run {fetch} on a machine with a network, and copy its ~/.sacrebleu to {SACREBLEU_DIR}"
    return DataError(message, where=str(folder), hint=hint)
