"""`kill -9` at random moments, each followed by the same command: nothing is lost but the last few updates.

One process is killed twenty times. Of two ranks and their launcher, one is killed four times, or NMT_KILLS times. A run
of these tests is in benchmarks/results/kill-and-resume.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from nmt_cli.artifacts.run import open_run
from tests.training.tiny import RECIPE, checkpoint, checkpoints, parallel_text, prepare_tiny
from tests.training.two_ranks import LAUNCHED, rank_processes
from tests.waiting import is_alive, wait_until

SEED = 2017
# At most 50 lines of metrics.jsonl, three for two updates, and a moment go by before a kill: fewer than 40 updates.
MOST_LINES, MOMENT_SECONDS = 50, 0.06
UPDATES_FOR_A_KILL = 40
PAIRS = parallel_text(2400, seed=3)  # more than a process samples at once
# Every epoch is sampled while the one before it is trained: kills come within that too.
SETTINGS = ["training.checkpoint_every=2", "validation.every=60", "training.log_every=1", "tokenizer.dropout=0.1"]
ONE, TWO = ["-m", "nmt_cli"], [*LAUNCHED]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "kills"), [(ONE, 20), (TWO, int(os.environ.get("NMT_KILLS", "4")))])
def test_kills_at_random_moments_change_no_bit_of_the_end(
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: list[str],
    kills: int,
) -> None:
    def tell(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    monkeypatch.setenv("PYTHONPATH", str(repository))
    whole, run, random = tmp_path / "whole", tmp_path / "run", Random(SEED)
    command = _command(tmp_path, program, updates=UPDATES_FOR_A_KILL * kills)
    begin = time.monotonic()
    with _started([*command, "whole"], tmp_path) as process:
        _wait_for_lines(whole, 1, process)
        start = time.monotonic() - begin
        assert process.wait() == 0
    tell(f"\nwithout a kill: {start:.1f} s to the first update, {time.monotonic() - begin:.1f} s in all (seed {SEED})")
    tell("kill    after  at update  saved  killed, and what was begun and not finished")
    for number in range(1, kills + 1):
        begin = time.monotonic()
        with _started([*command, "run"], tmp_path) as process:
            if random.random() < 0.25:
                time.sleep(random.uniform(0, start))
            else:
                _wait_for_lines(run, random.randint(1, MOST_LINES), process)
                time.sleep(random.uniform(0, MOMENT_SECONDS))
            who = _kill_one(process, random)
            after = time.monotonic() - begin
        tell(f"{number:4}  {after:5.2f} s  {_state(run)}  {who:8}  {_begun(run)}".rstrip())
    last = subprocess.run([*command, "run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    resuming = [line for line in last.stderr.splitlines() if "resuming" in line]
    tell(f"the last start: {resuming[0] if resuming else 'from the beginning'}")
    assert checkpoints(run) == checkpoints(whole)
    for update in checkpoints(whole):
        assert checkpoint(run, update) == checkpoint(whole, update), update
    assert open_run(run).validations() == open_run(whole).validations()
    weights = "model/model.safetensors"
    assert (run / weights).read_bytes() == (whole / weights).read_bytes()
    assert not _begun(run)
    tell(f"checkpoints {checkpoints(run)[0]:,} to {checkpoints(run)[-1]:,} and the model: bitwise equal")


def _command(folder: Path, program: list[str], *, updates: int) -> list[str]:
    data = prepare_tiny(folder, train=PAIRS[20:], valid=PAIRS[:20])
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    settings = [word for setting in [f"training.updates={updates}", *SETTINGS] for word in ("--set", setting)]
    arguments = ["train", "recipe.yaml", "--data", str(data.directory), "--device", "cpu", *settings]
    return [sys.executable, *program, *arguments, "--precision", "fp32", "-o"]


def _kill_one(process: subprocess.Popen[bytes], random: Random) -> str:
    """Kill the process that was started or, where it has ranks, any of them; return once all are gone."""
    ranks = rank_processes(process.pid)
    who = random.choice(["command", *ranks])
    if who == "command":
        process.kill()
        assert process.wait() == -signal.SIGKILL
    else:
        os.kill(ranks[who], signal.SIGKILL)
        assert process.wait() == 7
    wait_until(lambda: not any(is_alive(rank) for rank in ranks.values()))
    return who


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
    """What the kill has left: the last update taken and the last one saved."""
    if not (run / "run.json").is_file():
        return "       -      -"
    saved = checkpoints(run)
    return f"{_last_update(run):8,}  {saved[-1] if saved else 0:5,}"


def _begun(run: Path) -> str:
    """The files that are only half there; a lock that a kill left behind holds nothing."""
    begun = [str(path.relative_to(run)) for path in sorted(run.rglob(".*")) if not path.name.endswith(".lock")]
    is_torn = (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes()[-1:] not in (b"", b"\n")
    return " ".join([*begun, *(["metrics.jsonl"] if is_torn else [])])


def _last_update(run: Path) -> int:
    """The update of the last line; a line that the kill cut short does not count."""
    if not (run / "metrics.jsonl").is_file():
        return 0
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    updates = [json.loads(line)["update"] for line in lines]
    return updates[-1] if updates else 0
