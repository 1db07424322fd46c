from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from nmt_cli import console
from nmt_cli.console import ProgressLines, log_to_console, show_progress
from nmt_cli.errors import ModelError


def test_a_line_tells_the_speed_since_the_line_before_and_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lines = ProgressLines(iter((100.0, 110.0, 131.0, 140.0, 161.0)).__next__)
    for done in (50_000, 60_000, 81_000, 90_000, 171_000):
        lines("cleaning", done, 1_000_000)
    assert caplog.messages == [
        "cleaning: 81,000 of 1,000,000, 1,000 per second, 15 min 19 s left",
        "cleaning: 171,000 of 1,000,000, 3,000 per second, 4 min 36 s left",
    ]


def test_each_stage_is_timed_by_itself_and_a_total_need_not_be_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lines = ProgressLines(iter((0.0, 90.0, 130.0)).__next__)
    for stage, done in (("cleaning", 0), ("encoding", 0), ("encoding", 80)):
        lines(stage, done, None)
    assert caplog.messages == ["encoding: 80, 2 per second"]


def test_log_lines_go_above_a_live_view_and_afterwards_where_they_went_before() -> None:
    logger = logging.getLogger("nmt_cli")
    before = list(logger.handlers)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60)
    with Progress(console=console, transient=True, auto_refresh=False) as bars, log_to_console(console):
        bars.add_task("cleaning [of] text", total=3)
        bars.refresh()
        logger.getChild("preparing").warning("half [of] it :smile: %s", "x" * 80)
    assert logger.handlers == before
    lines = screen.getvalue().split("\n")
    (line,) = (line for line in lines if "half" in line)
    assert line.endswith(f"warning: half [of] it :smile: {'x' * 80}")
    assert "\x1b[2K" in line  # the bar is wiped first


def test_on_a_terminal_the_current_stage_has_a_bar_that_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr(console, "stderr_console", lambda: Console(file=screen, force_terminal=True, width=100))
    caplog.set_level(logging.INFO, logger="nmt_cli")
    with show_progress() as progress:
        progress("reading", 0, None)
        progress("cleaning", 5_000, 10_000)
    *_, drawn, end = screen.getvalue().split("\n")
    shown = drawn.split("\x1b[2K")[-1]
    assert "cleaning" in shown
    assert "5000 of 10000" in shown
    assert "reading" not in shown
    assert end.endswith("\x1b[1A\x1b[2K")  # the line above is cleared


def closed_terminal() -> int:
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


def pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("open_stderr", [closed_terminal, pipe_without_reader, full_disk])
def test_a_stderr_that_cannot_be_written_changes_no_exit_code(open_stderr: Callable[[], int], tmp_path: Path) -> None:
    stderr = open_stderr()
    for arguments, code in (("info no-such-model", 5), ("prepare demo --limit 300 --workers 1", 0)):
        command = [sys.executable, "-m", "nmt_cli", *arguments.split()]
        assert subprocess.run(command, stderr=stderr, cwd=tmp_path, check=False).returncode == code
    os.close(stderr)


def test_nothing_is_lost_where_another_program_has_set_stderr_to_non_blocking() -> None:
    script = (
        "from nmt_cli.console import *\nconfigure_logging(quiet=False)\nfor n in range(5000): logger.info('x' * 50)"
    )
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen([sys.executable, "-c", script], stderr=writer) as process, os.fdopen(reader) as stderr:
        os.close(writer)
        time.sleep(0.5)  # the pipe is full
        assert len(stderr.readlines()) == 5000
    assert process.returncode == 0


def test_control_characters_of_strangers_are_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    title, reversed_name = "x\x1b]0;PWNED\a", "runs/\u202egnp.exe"
    error = ModelError(f"{title} is no model\r", where=reversed_name, hint="remove \x9b31m it\n\tby hand")
    console.print_error(error)
    logger = logging.getLogger("nmt_cli")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    console.configure_logging(quiet=False)
    logger.warning("%s is gone: \u017eena, \u05d0", title)
    assert capsys.readouterr().err == (
        "error: x\\x1b]0;PWNED\\x07 is no model\\x0d\n"
        "at:    runs/\\u202egnp.exe\n"
        "fix:   remove \\x9b31m it\n\tby hand\n"
        "warning: x\\x1b]0;PWNED\\x07 is gone: \u017eena, \u05d0\n"
    )
