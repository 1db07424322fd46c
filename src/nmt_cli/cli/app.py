"""The command `nmt`: its sub-commands, and the one place where errors become three lines and an exit code."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

import nmt_cli
from nmt_cli import console
from nmt_cli.cli.spellings import check_spellings
from nmt_cli.errors import EXIT_CLOSED_PIPE, EXIT_INTERRUPTED, NmtError

_COMMANDS = ("prepare", "train", "average", "decode", "score", "info")


def _ends_quietly(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an end of its own for a closed stdout, before typer exits with 1."""

    @functools.wraps(command)
    def run(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # The interpreter flushes stdout at exit: let it flush into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_CLOSED_PIPE) from None

    return run


app = typer.Typer(
    name="nmt",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
for _name in _COMMANDS:
    app.command(_name)(_ends_quietly(getattr(import_module(f"nmt_cli.cli.{_name}"), _name)))


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"nmt {nmt_cli.__version__}")
        raise typer.Exit


@app.callback()
def options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors on stderr.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="A traceback with each error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Neural machine translation: prepare data, train, average, decode and score.

    nmt prepare demo && nmt train demo && nmt average runs/demo && nmt decode < input.txt
    """
    console.configure_logging(quiet=quiet)


def main() -> None:
    """Run `nmt` with the process's arguments and exit with the code of its outcome."""
    try:
        check_spellings(sys.argv[1:])
        app()
    except NmtError as error:
        if "--debug" in sys.argv:
            raise
        console.print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if hasattr(signal, "SIGPIPE"):
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
