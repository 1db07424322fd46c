"""The numbers of the recorded search's kernels, in Triton's interpreter on a CPU, and on a GPU if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("is_interpreted", [True, pytest.param(False, marks=pytest.mark.gpu)])
def test_the_kernels_compute_what_torch_computes(repository: Path, is_interpreted: bool) -> None:
    pytest.importorskip("triton", reason="needs triton, which torch brings for CUDA only")
    # Triton reads the variable when a kernel is defined, so the kernels need a process of their own.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/decoding/kernel_cases.py"],
        cwd=repository,
        env=os.environ | {"TRITON_INTERPRET": "1" if is_interpreted else "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
