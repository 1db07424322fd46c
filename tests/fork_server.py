"""A process that has imported what `nmt` needs, and forks at each request: `python -m tests.fork_server SOCKET`.

The fork takes the place of `python ARGUMENTS`, with the client's folder, environment, stdin, stdout and stderr. It is
orphaned at once, so that it becomes a child of the client, which has asked the kernel for orphans. The server ends with
its stdin.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from nmt_cli.errors import DataError

_IMPORTED = (
    "jinja2",
    "nmt_cli.cli.app",
    "nmt_cli.decoding.translator",
    "nmt_cli.preparing.pipeline",
    "nmt_cli.training.trainer",
    "rich.markup",
    "rich.table",
    "sacremoses",
    "torch._dynamo",  # as an optimizer does when it is made
)
# Reloaded in this order: `datasets.config` copies from `huggingface_hub.constants`.
_READS_THE_ENVIRONMENT = ("huggingface_hub.constants", "datasets.config")


def serve(path: str) -> dict[str, Any] | None:
    """Fork at each request until stdin ends; in a fork, the request. The socket at `path` accepts one client."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        for module in _IMPORTED:
            import_module(module)
        languages = import_module("nmt_cli.languages")
        languages.is_language("en")
        with suppress(DataError):  # it is not installed
            languages.language_identifier(where=None)  # as the report of prepared data does, in half a second
        connection, _ = listener.accept()
    with connection:
        while connection in select.select([connection, sys.stdin], [], [])[0]:
            head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
            if not head:
                break
            request: dict[str, Any] = json.loads(read(connection, int.from_bytes(head, "little")))
            for module in request["imported"]:
                import_module(module)
            gc.freeze()
            intermediate_pid = os.fork()
            if intermediate_pid == 0:
                intermediate_pid = os.getpid()
                process = os.fork()
                if process:
                    connection.sendall(process.to_bytes(8, "little"))
                    os._exit(0)
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
                os.closerange(3, max(*descriptors, connection.fileno()) + 1)
                connection.detach()
                while os.getppid() == intermediate_pid:
                    time.sleep(0.0005)
                return request
            for descriptor in descriptors:
                os.close(descriptor)
            os.waitpid(intermediate_pid, 0)
            connection.sendall(b"f")
    return None


def read(connection: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    return body


def run(arguments: list[str], *, folder: str, environment: dict[str, str]) -> None:
    """What `python ARGUMENTS` does in the foreground of a terminal: Ctrl-C ends it, wherever the tests run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for module in _READS_THE_ENVIRONMENT:
        if module in sys.modules:
            reload(sys.modules[module])
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    what, *rest = arguments
    if what == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.path.insert(0, str(Path(what).parent))
        sys.argv = arguments
        runpy.run_path(what, run_name="__main__")


def end(code: int) -> NoReturn:
    """End as Python does, but without the time that it takes to free what was imported."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code)


if __name__ == "__main__":
    request = serve(sys.argv[1])
    if request is not None:
        code = 0
        try:
            run(request["arguments"], folder=request["folder"], environment=request["environment"])
        except SystemExit as ending:
            if not isinstance(ending.code, int | None):
                raise
            code = ending.code or 0
        end(code)
