"""`nmt report`: one page with the curves, samples and settings of one run or several."""

from __future__ import annotations

import logging
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.cli.arguments import DebugOption, QuietOption
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.files import write_file

logger = logging.getLogger(__name__)
_PAGE_NAME = "report.html"
_HEAD_BYTES = 4096


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Runs to show side by side, or folders of runs.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Page to write; else RUN/report.html, or report.html for several.",
        ),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a page about runs: curves, samples, settings; of several runs, also SVG and CSV.

    Example: nmt report runs/base runs/big -o compared.html
    """
    from nmt_cli.artifacts.directory_kinds import did_you_mean, directories_in, kind_of
    from nmt_cli.artifacts.run import open_run
    from nmt_cli.artifacts.run_report import render_report

    found = [run for path in runs for run in ([] if kind_of(path) else directories_in(path, "run")) or [path]]
    directories = list({path.resolve(): path for path in found}.values())
    for directory in directories:
        if kind_of(directory) != "run":
            hint = f"{did_you_mean(directory, 'run')}name runs, such as runs/demo; nmt info runs lists them"
            raise ModelError(f"{directory} is not a run", where=str(directory), hint=hint)
    given = {path.resolve(): path for path in runs}
    page = output or (runs[0] / _PAGE_NAME if len(given) == 1 else Path(_PAGE_NAME))
    command = shlex.join(["nmt", *sys.argv[1:]])
    report = render_report([open_run(directory) for directory in directories], command=command, now=datetime.now(UTC))
    contents = {page: report.page}
    contents |= {page.with_name(page.stem + ending): content for ending, content in report.files.items()}
    for file in contents:
        _check_is_replaceable(file)
    for file, content in contents.items():
        write_file(file, content.encode(errors="replace"), error=UsageError)  # a path may be no UTF-8
    logger.info("report: %s", page)
    if report.files:
        logger.info("figures: %s, %s", page.with_suffix(".csv"), page.with_name(f"{page.stem}-*.svg"))


def _check_is_replaceable(file: Path) -> None:
    """Raise UsageError if a file is there that no report has written."""
    from nmt_cli.artifacts.run_report import MARKS

    if file.exists() and not (
        file.is_file() and any(mark.encode() in file.read_bytes()[:_HEAD_BYTES] for mark in MARKS)
    ):
        message = f"{file} exists and is not a report of runs, so it is not replaced"
        raise UsageError(message, where="--output", hint="give another file with -o")
