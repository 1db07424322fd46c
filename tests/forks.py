"""Processes of Python that have imported torch when they start, which alone takes two seconds: see fork_server.py.

Each is a child of the test's own process like any that subprocess starts, with its own arguments, folder, environment,
stdin, stdout and stderr, signals and exit code. Only what a module reads from the environment while it is imported is
of the server's, unless it is of the hub's libraries. A test of how the command starts, of what it imports, or of its
memory takes subprocess itself.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr, ClassVar

from tests.source_modules import ROOT
from tests.waiting import wait_until

# The superuser may enter every folder, but not without these capabilities.
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
_SECONDS = 300
_PR_SET_CHILD_SUBREAPER = 36


class Forked(subprocess.Popen[AnyStr]):
    """A process as subprocess.Popen([sys.executable, ...]) would start it, for `-m MODULE`, `-c PROGRAM` and FILE."""

    imported: ClassVar[Sequence[str]] = ()
    """Modules that the server imports too, before it forks."""

    # What Popen does between the making of pipes and their use. CPython 3.11 to 3.13 pass the arguments in this order.
    def _execute_child(
        self,
        args: Sequence[str | os.PathLike[str]],
        executable: None,
        preexec_fn: None,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
        startupinfo: None,
        creationflags: int,
        shell: bool,
        *others: Any,
    ) -> None:
        ends = p2cread, _, _, c2pwrite, _, errwrite = others[:6]
        python, *arguments = map(str, args)
        assert python == sys.executable, "only Python can be forked"
        assert not any((executable, preexec_fn, pass_fds, shell))
        descriptors = [
            number if descriptor == -1 else descriptor
            for number, descriptor in enumerate((p2cread, c2pwrite, errwrite))
        ]
        request = {
            "arguments": arguments,
            "folder": str(Path.cwd() / (cwd or ".")),
            "environment": dict(os.environ if env is None else env),
            "imported": self.imported,
        }
        self.pid = _fork(json.dumps(request).encode(), descriptors)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]  # of Popen


def run_forked(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    stdin: int | None = None,
    stdout: int = subprocess.PIPE,
    kind: type[Forked[str]] = Forked,
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with text gives: stdout, unless it goes elsewhere, and stderr are captured."""
    source = stdin if input is None else subprocess.PIPE
    with kind(command, cwd=cwd, env=env, stdin=source, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        try:
            written, told = process.communicate(input, timeout=_SECONDS)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, written, told)


def _fork(request: bytes, descriptors: Sequence[int]) -> int:
    """The number of a process that the server has forked, and that is a child of this process."""
    server, libc = _server(), ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(server, [len(request).to_bytes(8, "little")], list(descriptors))
        server.sendall(request)
        answer = b""
        while len(answer) < 9:  # the number, and a byte when the process is an orphan
            part = server.recv(9 - len(answer))
            assert part, "the server of forks has ended"
            answer += part
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    return int.from_bytes(answer[:8], "little")


@functools.cache
def _server() -> socket.socket:
    """A connection to the server of this process."""
    folder = tempfile.TemporaryDirectory()
    path = str(Path(folder.name) / "socket")
    command = [sys.executable, "-m", "tests.fork_server", path]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    connection = socket.socket(socket.AF_UNIX)
    wait_until(lambda: connection.connect_ex(path) == 0, process=process, seconds=_SECONDS)

    def end() -> None:
        connection.close()
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return connection
