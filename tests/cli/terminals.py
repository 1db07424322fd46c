"""A terminal of a given width, in which a command shows what people see."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from tests.forks import Forked

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def seen_in_terminal(arguments: Sequence[str], *, columns: int, folder: Path, code: int | None = None) -> list[str]:
    """The lines that `nmt ARGUMENTS` writes to a terminal, stdout and stderr together, without colours.

    `code` is the exit code that it must have; None: any.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment["TERM"] = "xterm"
    command = [sys.executable, "-m", "nmt_cli", *arguments]
    with Forked(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = bytearray()
        try:
            while read := os.read(ours, 1 << 16):
                written += read
        except OSError:  # how Linux says that nobody has the other end any more
            pass
        assert process.wait() == code or code is None
    os.close(ours)
    return [_CONTROL.sub("", line).rstrip() for line in written.decode().replace("\r\n", "\n").split("\n")]
