"""`nmt score` as tests run it: within their process, as a process of its own, and on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence

import pytest
import typer
from typer.testing import CliRunner

from nmt_cli.cli.app import commands
from nmt_cli.errors import NmtError
from tests.forks import Forked, run_forked

HYP = "Der Hund schläft.\nZwei Frauen gehen nach Hause.\nEin Mann liest ein Buch.\n"
REF = "Der Hund schläft.\nZwei Frauen gehen heim.\nEin Mann liest das Buch.\n"
BASE = "Der Hund schläft.\nZwei Frauen gehen heim.\nMann Buch lesen.\n"
SRC = "The dog sleeps.\nTwo women go home.\nA man reads the book.\n"


_score = commands()["score"].callback
assert _score is not None
_app = typer.Typer()
_app.command()(_score)


def run(*arguments: str, stdin: bytes = b"") -> str:
    """What it writes to stdout; its error is raised."""
    result = CliRunner().invoke(_app, arguments, input=stdin, catch_exceptions=True)
    if result.exception:
        raise result.exception
    return result.stdout


def refuse(family: type[NmtError], *arguments: str, stdin: bytes = b"") -> NmtError:
    with pytest.raises(family) as caught:
        run(*arguments, stdin=stdin)
    return caught.value


def nmt(*arguments: str, stdin: str | int = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nmt_cli", "score", *arguments]
    variables = os.environ | environment
    if "SACREBLEU" in environment:  # sacreBLEU reads it when it is imported: a process from the very start
        return subprocess.run(command, capture_output=True, text=True, input=str(stdin), env=variables)
    if isinstance(stdin, int):
        return run_forked(command, stdin=stdin)
    return run_forked(command, input=stdin, env=variables)


def columns(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.splitlines()]


def on_a_terminal(arguments: Sequence[str], **environment: str) -> str:
    """What a process of its own writes to a terminal as stdout."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "nmt_cli", "score", *arguments]
    variables = os.environ | {"TERM": "xterm"} | environment
    process = Forked[bytes](command, stdout=terminal, stdin=subprocess.DEVNULL, env=variables)
    os.close(terminal)
    output = b""
    try:
        while block := os.read(controller, 4096):
            output += block
    except OSError:
        pass  # Linux's way to say that the other side was closed
    finally:
        os.close(controller)
    assert process.wait() == 0
    return output.decode()
