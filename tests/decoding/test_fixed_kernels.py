"""The numbers of the recorded search's kernels, without a GPU: Triton's interpreter runs them on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_kernels_compute_in_the_interpreter_what_torch_computes(repository: Path) -> None:
    pytest.importorskip("triton", reason="needs triton, which torch brings for CUDA only")
    # Triton reads the variable when a kernel is defined: a process of its own has no other kernels.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/decoding/kernels_in_interpreter.py"],
        cwd=repository,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
