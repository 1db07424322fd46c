from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from nmt_cli.dataset.prepared_data import TokenWriter
from nmt_cli.preparing import encoding
from nmt_cli.preparing.corpus import LocatedCorpus
from tests.forks import run_forked
from tests.preparing.corpus_files import contents, invented_pairs, refusal, run, small_corpus, write_prefix


@dataclass(frozen=True)
class Small:
    """A small corpus, and the files of its prepared data."""

    located: LocatedCorpus
    expected: dict[str, bytes]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    located = small_corpus(tmp_path_factory.mktemp("small"))
    return Small(located, contents(run(located, tmp_path_factory.mktemp("expected")).directory))


def test_a_full_disk_loses_no_finished_stage(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk(TokenWriter):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self._ids = open("/dev/full", "wb")  # noqa: SIM115  # closed by TokenWriter

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "TokenWriter", FullDisk)
        error = refusal(lambda: run(small.located, tmp_path / "data"))
    assert error.message == "cannot write encoded: the disk is full"
    assert error.hint == "free some space, then give the same command again"
    assert not (tmp_path / "data").exists()
    caplog.set_level("INFO")
    caplog.clear()
    run(small.located, tmp_path / "data")
    assert caplog.messages[:2] == ["cleaned: finished before, kept", "tokenizer: finished before, kept"]
    assert contents(tmp_path / "data") == small.expected


def test_a_full_disk_in_a_worker_is_an_error_after_which_the_same_command_continues(
    tmp_path: Path, repository: Path
) -> None:
    small_corpus(tmp_path, pairs=3000)
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    arguments = "prepare --train train --valid valid -l en-de -o data --workers 2 --set tokenizer.vocab_size=400"
    command = f"{sys.executable} -m nmt_cli {arguments}"
    shell = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, shell=True)
    failed = shell(f"ulimit -f 100; {command}")  # in KiB: the text takes more
    assert failed.returncode == 4
    assert failed.stderr == (
        "error: cannot write 000000.npz: it would be larger than files may be here\n"
        "at:    data.partial/cleaned/000000.npz\n"
        "fix:   ulimit -f unlimited, then the same command\n"
    )
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "data.partial").exists()  # where nothing is finished
    done = shell(command)
    assert done.returncode == 0, done.stderr


def test_a_killed_worker_is_an_error_after_which_the_same_command_continues(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("nmt_cli.processes._WORKER_CODE", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        error = refusal(lambda: run(small.located, tmp_path / "data", num_workers=2))
    assert error.message == "a worker process was killed (SIGKILL)"
    assert "fewer `workers`" in error.hint
    assert contents(run(small.located, tmp_path / "data", num_workers=2).directory) == small.expected


def test_a_change_redoes_only_the_stages_that_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    located = small_corpus(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "TokenWriter", fail)
        with pytest.raises(KeyboardInterrupt):
            run(located, tmp_path / "data")
    caplog.set_level("INFO")
    caplog.clear()
    run(small_corpus(tmp_path, "tokenizer.vocab_size=380"), tmp_path / "data")
    assert caplog.messages[0] == "cleaned: finished before, kept"
    assert "tokenizer: 380 shared pieces" in caplog.messages
    expected = run(small_corpus(tmp_path, "tokenizer.vocab_size=380"), tmp_path / "expected")
    assert contents(tmp_path / "data") == contents(expected.directory)


def test_a_kill_while_finished_stages_are_removed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Raised where the process would be gone."""

    def remove_half(path: Path, **keywords: object) -> None:
        if (path / "stage.json").exists():
            (path / "stage.json").unlink()
            raise Killed

    located = small_corpus(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", remove_half)
        with pytest.raises(Killed):
            run(located, tmp_path / "data")
    assert run(located, tmp_path / "data").was_finished
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["data"]


def test_what_was_to_replace_finished_data_is_removed_once_that_is_kept(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    run(located, tmp_path / "data")
    for name in (".data.partial", ".data.retired", "data.partial/cleaned"):  # of --overwrite, killed at the end
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "stage.json").write_text("{}")
    assert run(located, tmp_path / "data").was_finished
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["data"]


# A process of its own, with pieces of 600 pairs, that is killed when a stage has come to its Nth report.
PREPARE = """
import os, signal, sys
from pathlib import Path
from nmt_cli.cli.app import console
from nmt_cli.preparing import chunks, shards
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.pipeline import prepare

workers, stage, reports = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
console.configure_logging(quiet=False)
chunks.CHUNK_PAIRS, shards.SHARD_CHUNKS = 300, 2

def progress(at, done, total):
    global reports
    reports -= at == stage
    if at == stage and reports == 0:
        os.kill(os.getpid(), signal.SIGKILL)

files = {name: [name] for name in ("train", "valid") if Path(f"{name}.en").exists()}
settings = ["tokenizer.vocab_size=400", "tokenizer.sample_lines=3000"]
located = corpus_from_files(files, languages="en-de", name="data", overrides=settings)
prepare(located, output=Path("data"), overwrite=False, num_workers=workers, progress=progress)
"""


def python(folder: Path, repository: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PREPARE, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    return run_forked(command, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A folder with a corpus of 18 pieces, and in `data` what is prepared from it by one process in one go."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    pairs = invented_pairs(10_000, seed=4)
    write_prefix(folder / "train", [*pairs, *pairs[:700]])
    write_prefix(folder / "valid", invented_pairs(20, seed=5))
    done = python(folder, repository, 1, "-", 0)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("stage", "reports", "workers", "kept"),
    [
        ("cleaning", 5, 2, "cleaned: 4 shards finished before, kept"),
        ("tokenizer", 1, 2, "cleaned: finished before, kept"),
        ("encoding", 1, 3, "tokenizer: finished before, kept"),
        ("encoding", 6, 1, "encoded: 3,000 pairs encoded before, kept"),
    ],
)
def test_a_killed_preparation_continues_to_the_same_bytes(
    tmp_path: Path, repository: Path, uninterrupted: Path, stage: str, reports: int, workers: int, kept: str
) -> None:
    for file in uninterrupted.glob("*.??"):
        copy(file, tmp_path)
    assert python(tmp_path, repository, workers, stage, reports).returncode == -signal.SIGKILL
    assert (tmp_path / "data.partial").exists()
    assert not (tmp_path / "data").exists()

    again = python(tmp_path, repository, 2, "-", 0)
    assert again.returncode == 0, again.stderr
    lines = [line for line in again.stderr.splitlines() if line.endswith(", kept")]
    if stage == "cleaning" and workers > 1:  # others may have finished after the one that was reported
        assert len(lines) == 1
        assert lines[0].endswith(kept.partition("pieces")[2])
        assert int(lines[0].split()[1]) >= int(kept.split()[1])
    else:
        assert lines[-1] == kept
    whole = contents(uninterrupted / "data")
    for name, data in contents(tmp_path / "data").items():
        assert data == whole[name].replace(f"{uninterrupted}/".encode(), b""), name
    assert whole.keys() == contents(tmp_path / "data").keys()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["data", "train.de", "train.en", "valid.de", "valid.en"]


def test_a_killed_preparation_sets_the_same_pairs_aside(tmp_path: Path, repository: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    pairs = invented_pairs(3000, seed=6)
    for folder in (whole, killed):
        folder.mkdir()
        write_prefix(folder / "train", [*pairs, *((src, f"{tgt} x") for src, tgt in pairs[:900])])
    assert python(whole, repository, 1, "-", 0).returncode == 0
    assert python(killed, repository, 2, "cleaning", 4).returncode == -signal.SIGKILL
    assert python(killed, repository, 2, "tokenizer", 1).returncode == -signal.SIGKILL
    assert python(killed, repository, 2, "-", 0).returncode == 0
    assert contents(killed / "data") == contents(whole / "data")
    assert (whole / "data" / "valid.en").read_text().count("\n") > 300
