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
from nmt_cli.errors import ModelError, NmtError, UsageError

logger = logging.getLogger(__name__)
_PAGE_NAME = "report.html"
_HEAD_BYTES = 4096
_MAX_NAMED_RUNS = 5


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
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.artifacts.run import open_run
    from nmt_cli.artifacts.run_report import render_report

    directories = list({path.resolve(): path for path in runs}.values())
    for directory in directories:
        if kind_of(directory) != "run":
            raise _not_a_run_error(directory)
    page = output or (directories[0] / _PAGE_NAME if len(directories) == 1 else Path(_PAGE_NAME))
    _check_output(page)
    command = shlex.join(["nmt", *sys.argv[1:]])
    content = render_report([open_run(directory) for directory in directories], command=command, now=datetime.now(UTC))
    files.write_file(page, content.encode(errors="replace"), error=UsageError)  # a path may be no UTF-8
    logger.info("report: %s", page)


def _not_a_run_error(path: Path) -> NmtError:
    """The error for a path that is no run: what it is, and which runs are near it."""
    from nmt_cli.artifacts.directory_kinds import did_you_mean, directories_in, kind_of

    where = str(path)
    if not path.exists():
        hint = f"{did_you_mean(path, 'run')}name runs, such as runs/demo; nmt info runs lists them"
        return ModelError(f"there is no {path}", where=where, hint=hint)
    run_above = next((parent for parent in path.parents if kind_of(parent) == "run"), None)
    if run_above is not None:
        return ModelError(f"{path} is a part of a run", where=where, hint=f"nmt report {shlex.quote(str(run_above))}")
    if runs_below := directories_in(path, "run"):
        hint = f"name the runs in it: nmt report {shlex.join(map(str, runs_below[:_MAX_NAMED_RUNS]))}"
        return ModelError(f"{path} is a folder of runs", where=where, hint=hint)
    names_of_kinds = {"model": "a model", "checkpoint": "a checkpoint", "data": "prepared data"}
    kind = names_of_kinds.get(kind_of(path) or "", "no run")
    hint = "name what nmt train wrote, such as runs/demo; nmt info runs lists them"
    return ModelError(f"{path} is {kind}, and has no metrics of a training", where=where, hint=hint)


def _check_output(page: Path) -> None:
    """Raise UsageError if the page would replace something else than a page."""
    from nmt_cli.artifacts.run_report import PAGE_MARK

    if page.is_dir():
        raise UsageError(f"{page} is a folder", setting="output", hint=f"give `output: {page / _PAGE_NAME}`")
    if not page.exists():
        return
    is_page = page.is_file()  # opening a pipe would wait for its other end
    if is_page:
        with page.open("rb") as stream:
            is_page = PAGE_MARK.encode() in stream.read(_HEAD_BYTES)
    if not is_page:
        message = f"{page} exists and is not a report of runs, so it is not replaced"
        raise UsageError(message, setting="output", hint="give another file with `output`")
