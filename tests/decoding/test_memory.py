"""Memory of a long translation: what is freed is returned, and a hundred thousand lines take no more than ten."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.forks import run_forked
from tests.interchange.builders import write_marian
from tests.training.tiny import parallel_text

NUM_LINES = 100_000
WITH_LITTLE_MEMORY = """
import re, resource
from pathlib import Path
import nmt_cli.decoding.torch_engine
from nmt_cli.cli.app import main
used = int(re.search("VmData: *([0-9]*)", Path("/proc/self/status").read_text().replace("\\t", ""))[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (48 << 20),) * 2)
main()
"""


def test_a_model_that_memory_does_not_hold_is_told_in_three_lines(tmp_path: Path) -> None:
    recipe = tiny_recipe(model={"d_model": 512, "d_ff": 8192})  # 100 MB
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=recipe)
    options = ["decode", "-m", "model", "--device", "cpu", "--threads", "1", "-i", "text"]
    (tmp_path / "text").write_text("the old sea\n")
    process = run_forked([sys.executable, "-c", WITH_LITTLE_MEMORY, *options], cwd=tmp_path)
    assert process.stderr.splitlines() == [
        "error: the memory of cpu does not hold the model",
        "at:    model",
        "fix:   end other programs, or take a machine with more memory",
    ]
    assert process.returncode == 6
    pytest.importorskip("transformers")
    write_marian(tmp_path / "opus", encoder_ffn_dim=500_000, decoder_ffn_dim=500_000)
    options = ["import", "opus", "-o", "imported"]
    process = run_forked([sys.executable, "-c", WITH_LITTLE_MEMORY, *options], cwd=tmp_path)
    assert process.stderr.splitlines()[0] == "error: the memory of cpu does not hold the model"
    assert process.returncode == 6


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_memory_is_flat_over_100_000_lines(trained: Path, tmp_path: Path, engine: str) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    sentences = [source for source, _ in parallel_text(2000, seed=11)]
    words = [" ".join(sentence.split()[: 1 + number % 9]) for number, sentence in enumerate(sentences)]
    text, output = tmp_path / "text", tmp_path / "output"
    text.write_text("".join(f"{words[number % len(words)]} {number % 977}\n" for number in range(NUM_LINES)))
    options = ["--device", "cpu", "--engine", engine, "--threads", "1", "--beam", "1"]
    command = [sys.executable, "-m", "nmt_cli", "decode", "-m", str(trained), "-i", str(text), "-o", str(output)]
    process = subprocess.Popen([*command, *options])
    samples: list[tuple[int, int]] = []
    try:
        while process.poll() is None:
            samples.append((_lines(tmp_path / "output.partial"), _resident_bytes(process.pid)))
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert _lines(output) == NUM_LINES
    first, second = (
        [size for lines, size in samples if start <= lines < start + NUM_LINES // 2] for start in (1, NUM_LINES // 2)
    )
    print(f"{engine}: up to {max(first) >> 20} MiB in the first half, {max(second) >> 20} MiB in the second")
    assert max(second) < 1.1 * max(first)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
