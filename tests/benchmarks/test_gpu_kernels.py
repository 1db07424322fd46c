"""The report on our kernels' registers, made without a GPU, in a process whose Triton is not interpreted."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, a development dependency on Linux x86-64")


def launched(folder: Path) -> Iterator[str]:
    """The kernels in a folder: functions of Triton that ask which program they are."""
    for file in folder.glob("*.py"):
        for part in file.read_text(encoding="utf-8").split("@triton.jit")[1:]:
            if "tl.program_id(" in part:
                yield re.findall(r"^def (\w+)", part, flags=re.MULTILINE)[0]


@pytest.mark.slow
def test_no_kernel_spills_and_four_blocks_of_attention_fit_a_multiprocessor(repository: Path, tmp_path: Path) -> None:
    script = repository / "benchmarks" / "gpu" / "kernels.py"
    done = subprocess.run(
        [sys.executable, script, "--json", "--sizes", "base", "--architectures", "90"],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)["kernels"]
    assert {kernel["kernel"] for kernel in kernels} == set(launched(repository / "src/nmt_cli/model/kernels"))
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0
        assert 8 <= kernel["registers"] <= 255
        if "attend" in kernel["kernel"] or "attention" in kernel["operator"]:
            assert kernel["blocks_per_multiprocessor"] >= 4


@pytest.mark.parametrize(
    ("threads", "registers", "shared_memory", "blocks"),
    [
        (64, 255, 0, 4),  # 65,536 registers, of which a warp takes 8,192
        (64, 24, 0, 32),
        (128, 24, 0, 16),  # 64 warps
        (64, 24, 75 * 1024, 3),  # 228 KB, of which each block takes 1 KB more
    ],
)
def test_blocks_follow_from_what_runs_out_first(
    threads: int, registers: int, shared_memory: int, blocks: int, repository: Path
) -> None:
    script = runpy.run_path(str(repository / "benchmarks" / "gpu" / "kernels.py"))
    fit = script["blocks_that_fit"](90, threads=threads, registers=registers, shared_memory=shared_memory)
    assert fit == blocks
