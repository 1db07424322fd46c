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

logger = logging.getLogger(__name__)
_PAGE_NAME = "report.html"
_HEAD_BYTES = 4096


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs to show side by side.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Page to write; else RUN/report.html, or report.html for several runs.",
        ),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a page about runs: curves, samples, settings that differ, hardware.

    Example: nmt report runs/base runs/big -o compared.html
    """
    from nmt_cli import files
    from nmt_cli.artifacts.directory_kinds import did_you_mean, kind_of
    from nmt_cli.artifacts.run import open_run
    from nmt_cli.artifacts.run_report import PAGE_MARK, render_report

    directories = list({path.resolve(): path for path in runs}.values())
    for directory in directories:
        if kind_of(directory) != "run":
            hint = f"{did_you_mean(directory, 'run')}name runs, such as runs/demo; nmt info runs lists them"
            raise ModelError(f"{directory} is not a run", where=str(directory), hint=hint)
    page = output or (directories[0] / _PAGE_NAME if len(directories) == 1 else Path(_PAGE_NAME))
    if page.exists() and not (page.is_file() and PAGE_MARK.encode() in page.read_bytes()[:_HEAD_BYTES]):
        message = f"{page} exists and is not a report of runs, so it is not replaced"
        raise UsageError(message, where="--output", hint="give another file with -o")
    command = shlex.join(["nmt", *sys.argv[1:]])
    content = render_report([open_run(directory) for directory in directories], command=command, now=datetime.now(UTC))
    files.write_file(page, content.encode(errors="replace"), error=UsageError)  # a path may be no UTF-8
    logger.info("report: %s", page)
