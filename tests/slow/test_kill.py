"""`kill -9` at twenty random moments, each followed by the same command: nothing is lost but the last few updates.

A run of this test is in docs/kill-and-resume.md.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from nmt_cli.bundle.run import open_run
from tests.training.tiny import RECIPE, checkpoint, checkpoints, prepare_tiny

SEED = 2017
KILLS = 20
# At most 50 lines of metrics.jsonl and a moment go by before a kill: twenty of them do not come to update 800.
MOST_LINES, MOMENT_SECONDS = 50, 0.06
SETTINGS = ["training.updates=800", "training.checkpoint_every=2", "validation.every=60", "training.log_every=1"]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    data = prepare_tiny(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    arguments = ["train", "recipe.yaml", "--data", str(data.directory), "--device", "cpu", *settings]
    return [sys.executable, "-m", "nmt_cli", *arguments, "--precision", "fp32", "-o"]


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_no_bit_of_the_end(
    tmp_path: Path, command: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    whole, run, random = tmp_path / "whole", tmp_path / "run", Random(SEED)
    begin = time.monotonic()
    with _started([*command, "whole"], tmp_path) as process:
        _wait_for_lines(whole, 1, process)
        start = time.monotonic() - begin
        assert process.wait() == 0
    tell(f"\nwithout a kill: {start:.1f} s to the first update, {time.monotonic() - begin:.1f} s in all (seed {SEED})")
    tell("kill    after  at update  saved  begun and not finished")
    for number in range(1, KILLS + 1):
        begin = time.monotonic()
        with _started([*command, "run"], tmp_path) as process:
            if random.random() < 0.25:
                time.sleep(random.uniform(0, start))
            else:
                _wait_for_lines(run, random.randint(1, MOST_LINES), process)
                time.sleep(random.uniform(0, MOMENT_SECONDS))
            process.kill()
            after = time.monotonic() - begin
            assert process.wait() == -signal.SIGKILL
        tell(f"{number:4}  {after:5.2f} s  {_state(run)}")
    last = subprocess.run([*command, "run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    tell(f"the last start: {next(line for line in last.stderr.splitlines() if 'resuming' in line)}")
    assert checkpoints(run) == checkpoints(whole)
    for update in checkpoints(whole):
        assert checkpoint(run, update) == checkpoint(whole, update), update
    assert open_run(run).validations() == open_run(whole).validations()
    weights = "model/model.safetensors"
    assert (run / weights).read_bytes() == (whole / weights).read_bytes()
    assert not list(run.rglob(".*"))
    tell(f"checkpoints {checkpoints(run)[0]:,} to {checkpoints(run)[-1]:,} and the model: bitwise equal")


@contextmanager
def _started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for_lines(run: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    """Return when so many lines have been added to the metrics of a run."""
    file = run / "metrics.jsonl"
    goal = _num_lines(file) + number
    while _num_lines(file) < goal:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)


def _num_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _state(run: Path) -> str:
    """What the kill has left: the last update taken, the last one saved, and files that are only half there."""
    if not (run / "run.json").is_file():
        return "       -      -"
    saved = checkpoints(run)
    begun = [str(path.relative_to(run)) for path in sorted(run.rglob(".*"))]
    torn = "metrics.jsonl" if (run / "metrics.jsonl").exists() and not _is_whole(run / "metrics.jsonl") else ""
    return f"{_last_update(run):8,}  {saved[-1] if saved else 0:5,}  {' '.join([*begun, torn]).strip()}".rstrip()


def _is_whole(file: Path) -> bool:
    content = file.read_bytes()
    return not content or content.endswith(b"\n")


def _last_update(run: Path) -> int:
    """The update of the last line; a line that the kill cut short does not count."""
    if not (run / "metrics.jsonl").is_file():
        return 0
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    updates = [json.loads(line)["update"] for line in lines]
    return updates[-1] if updates else 0
