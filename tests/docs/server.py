"""Runs `nmt` and Python files in forks of a process that has imported torch, so that 60 commands take seconds.

Each is given the client's arguments, folder, environment, stdin, stdout and stderr. The server ends with its stdin.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from nmt_cli.training.reporting import training_metrics
from tests import fork_server
from tests.docs.pages import ROOT
from tests.docs.programs import in_small

# Beside what the process from which this one is forked has imported: see tests/fork_server.py.
_IMPORTED = ("nmt_cli.scoring.metrics", "nmt_cli.training.micro_batch_size")
_IMPORTED_WHERE_INSTALLED = ("ctranslate2", "transformers.models.marian.modeling_marian")


def serve(path: str) -> None:
    """Answer at the socket `path` until stdin ends."""
    for module in _IMPORTED:
        import_module(module)
    for module in _IMPORTED_WHERE_INSTALLED:
        with suppress(ImportError):
            import_module(module)
    # A training measures it for a fifth of a second.
    training_metrics.matrix_rate = functools.cache(training_metrics.matrix_rate)
    for dtype in (torch.float32, torch.bfloat16):
        training_metrics.matrix_rate(torch.device("cpu"), dtype)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                code = _answer(connection)
                connection.sendall(bytes([code]))
                os._exit(code)
            connection.close()


def _answer(connection: socket.socket) -> int:
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    request: dict[str, Any] = json.loads(fork_server.read(connection, int.from_bytes(head, "little")))
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.environ.update(request["environment"])
    arguments = request["arguments"]
    if arguments[0] == "nmt":
        arguments = ["-m", "nmt_cli", *in_small(arguments[1:], is_dry="NMT_DOCS_DRY" in os.environ)]
    elif arguments[0].startswith("benchmarks/"):  # reads its options, as it does itself, and runs nothing
        folder, module = str((ROOT / arguments[0]).parent), Path(arguments[0]).stem
        program = f"import sys; sys.path.insert(0, {folder!r}); import {module}; {module}._arguments()"
        arguments = ["-c", program, *arguments[1:]]
    try:
        fork_server.run(arguments, folder=request["folder"], environment=request["environment"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
