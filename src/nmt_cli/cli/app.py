"""The command `nmt`: its sub-commands, and how errors become three lines and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nmt_cli
from nmt_cli import console
from nmt_cli.cli.arguments import Command, Commands, DebugOption, QuietOption, usage_error_from
from nmt_cli.errors import EXIT_CLOSED_PIPE, DataError, NmtError, UsageError
from nmt_cli.files import writing_error

if TYPE_CHECKING:
    from typer.core import TyperCommand

# The module of each command, below nmt_cli.cli; its function has the name of the command.
_COMMANDS = {
    "corpora": "corpora",
    "recipes": "recipes",
    "prepare": "prepare",
    "train": "train",
    "average": "average",
    "decode": "decode.command",
    "score": "score.command",
    "serve": "serve",
    "attention": "attention",
    "export": "interchange",
    "import": "interchange",
    "report": "report",
    "reproduce": "reproduce",
    "info": "info",
    "doctor": "doctor",
}


# Built on import, so `main`, docs/generate.py and the tests share one app with every command. The modules of commands
# import nothing slow.
app = typer.Typer(
    name="nmt",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
for _name, _module in _COMMANDS.items():
    _function = getattr(import_module(f"nmt_cli.cli.{_module}"), f"{_name}_" if iskeyword(_name) else _name)
    app.command(_name, cls=Command)(_function)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"nmt {nmt_cli.__version__}")
        raise typer.Exit


@app.callback()
def options(
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Neural machine translation: prepare data, train, average, decode and score.

    Example: nmt prepare demo && nmt train demo && nmt decode < input.txt
    """
    console.configure_logging(quiet=quiet)


def commands() -> dict[str, TyperCommand]:
    """Each command by name. docs/generate.py and tests read it."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def main() -> None:
    """Run `nmt` with the process's arguments and exit with the code of its outcome."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed: no file or pipe may take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until nmt ends
    if "NMT_LIFELINE" in os.environ:  # spelt out, because `nmt --help` need not import all of processes.py
        from nmt_cli.processes import end_with_parent

        end_with_parent()
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    code = _run(sys.argv[1:])
    if "LOCAL_RANK" in os.environ:
        # torch's threads may crash an interpreter that exits. The launcher would take the crash for a failed training.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _parse_and_call(arguments: Sequence[str]) -> int:
    """Parse the arguments and call the command, without typer's own handling of errors; the exit code."""
    try:
        return typer.main.get_command(app).main(arguments, prog_name="nmt", standalone_mode=False) or 0
    except typer.TyperException as error:
        raise usage_error_from(error) from None


def _run(arguments: Sequence[str]) -> int:
    """Run one command line, and print its error if there is one; the exit code."""
    try:
        code = _parse_and_call(arguments or ["--help"])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return EXIT_CLOSED_PIPE
    except (NmtError, OSError) as error:
        user_error = error if isinstance(error, NmtError) else _error_of_stdout_or_path(error)
        if user_error is None or "--debug" in arguments:
            raise
        if isinstance(error, OSError) and error.filename is None:
            _drop_output()
        console.print_error(user_error)
        return user_error.exit_code
    except SystemExit as ending:
        # typer ends so after completions, or if stdout was closed. No command of ours raises SystemExit.
        return EXIT_CLOSED_PIPE if ending.code else 0


def _error_of_stdout_or_path(error: OSError) -> NmtError | None:
    """The error for a full disk behind stdout, or a path that is closed to this user or is none; else None."""
    if error.filename is None:
        return writing_error(error, Path("stdout"), DataError, elsewhere="write to another disk")
    if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP):
        return None
    reason = os.strerror(error.errno).lower()
    return UsageError(f"{reason}: {error.filename}", hint="give another path, or ask its owner for access")


def _drop_output() -> None:
    """Redirect stdout to /dev/null, because the interpreter flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
