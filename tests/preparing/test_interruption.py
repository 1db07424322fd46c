from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copy
from typing import Any
from unittest.mock import Mock

import pytest

from nmt_cli.dataset.prepared_data import TokenWriter
from nmt_cli.preparing import encoding
from nmt_cli.preparing.corpus import LocatedCorpus
from tests.forks import run_forked
from tests.preparing.corpus_files import (
    contents,
    corpus_of_pairs,
    invented_pairs,
    refusal,
    run,
    small_corpus,
    write_prefix,
)


def test_a_full_disk_loses_no_finished_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk(TokenWriter):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self._ids = open("/dev/full", "wb")  # noqa: SIM115  # closed by TokenWriter

    located = small_corpus(tmp_path)
    expected = contents(run(located, tmp_path / "expected").directory)
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "TokenWriter", FullDisk)
        error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.message == "cannot write data: the disk is full"
    assert error.hint == "free some space, then give the same command again"
    assert not (tmp_path / "data").exists()
    caplog.set_level("INFO")
    caplog.clear()
    run(located, tmp_path / "data")
    kept = [f"{stage}: finished before, kept" for stage in ("cleaned", "selected", "tokenizer")]
    assert caplog.messages[:3] == kept
    assert contents(tmp_path / "data") == expected


def test_a_full_disk_in_a_worker_is_an_error_after_which_the_same_command_continues(tmp_path: Path) -> None:
    small_corpus(tmp_path, pairs=1000)
    arguments = "prepare --train train --valid valid -l en-de -o data --workers 2 --set tokenizer.vocab_size=400"
    command = [sys.executable, "-m", "nmt_cli", *arguments.split()]
    limited = f"ulimit -f 40; {shlex.join(command)}"  # in KiB: the text takes more
    failed = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, shell=True)
    assert failed.returncode == 4
    assert failed.stderr == (
        "error: cannot write 000000.npz: it would be larger than files may be here\n"
        "at:    data.partial/.cleaned.partial/000000.npz\n"
        "fix:   ulimit -f unlimited, then the same command\n"
    )
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "data.partial").exists()  # where nothing is finished
    done = run_forked(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_killed_worker_is_an_error_after_which_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    located = small_corpus(tmp_path)
    expected = contents(run(located, tmp_path / "expected").directory)
    with monkeypatch.context() as patch:
        patch.setattr("nmt_cli.processes._WORKER_CODE", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        error = refusal(lambda: run(located, tmp_path / "data", num_workers=2))
    assert error.message == "a worker process was killed (SIGKILL)"
    assert "fewer `workers`" in error.hint
    assert contents(run(located, tmp_path / "data", num_workers=2).directory) == expected


def test_a_change_redoes_only_the_stages_that_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    located = small_corpus(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "TokenWriter", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(located, tmp_path / "data")
    caplog.set_level("INFO")
    caplog.clear()
    run(small_corpus(tmp_path, "tokenizer.vocab_size=380"), tmp_path / "data")
    assert caplog.messages[0] == "cleaned: finished before, kept"
    assert "tokenizer: 380 shared pieces" in caplog.messages
    expected = run(small_corpus(tmp_path, "tokenizer.vocab_size=380"), tmp_path / "expected")
    assert contents(tmp_path / "data") == contents(expected.directory)


@pytest.mark.parametrize(
    "settings",
    [("valid_size=30", "test_size=20", "split_seed=3"), ("cleaning.duplicates=false", "cleaning.overlap=sides")],
)
def test_another_selection_cleans_nothing_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: Sequence[str]
) -> None:
    pairs = invented_pairs(500, seed=3)

    def located(*overrides: str) -> LocatedCorpus:
        return corpus_of_pairs(tmp_path, *overrides, train=[*pairs, *pairs[:40]])

    assert "is more than half" in refusal(lambda: run(located("valid_size=400"), tmp_path / "data")).message
    caplog.set_level("INFO")
    run(located(*settings), tmp_path / "data")
    assert caplog.messages[0] == "cleaned: finished before, kept"
    expected = run(located(*settings), tmp_path / "expected")
    assert contents(tmp_path / "data") == contents(expected.directory)


def test_what_was_to_replace_finished_data_is_removed_once_that_is_kept(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    run(located, tmp_path / "data")
    for name in (".data.partial", ".data.retired", "data.partial/cleaned"):  # of --overwrite, killed at the end
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "stage.json").write_text("{}")
    assert run(located, tmp_path / "data").was_finished
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["data"]


# A process of its own, with pieces of 200 pairs, that is killed when a stage has come to its Nth report.
PREPARE = """
import os, signal, sys
from pathlib import Path
from nmt_cli.cli.app import console
from nmt_cli.preparing import chunks
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.pipeline import Plan, prepare

workers, stage, reports = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
console.configure_logging(quiet=False)
chunks.CHUNK_PAIRS = 200

def progress(at, done, total):
    global reports
    reports -= at == stage
    if at == stage and reports == 0:
        os.kill(os.getpid(), signal.SIGKILL)

files = {name: [name] for name in ("train", "valid") if Path(f"{name}.en").exists()}
settings = ["tokenizer.vocab_size=400", "tokenizer.sample_lines=1000"]
located = corpus_from_files(files, languages="en-de", name="data", overrides=settings)
prepare(Plan(located), output=Path("data"), overwrite=False, num_workers=workers, progress=progress)
"""


def python(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_forked([sys.executable, "-c", PREPARE, *map(str, arguments)], cwd=folder)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of 18 pieces, and in `data` what is prepared from it by one process in one go."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    pairs = invented_pairs(3_330, seed=4)
    write_prefix(folder / "train", [*pairs, *pairs[:230]])
    write_prefix(folder / "valid", invented_pairs(20, seed=5))
    done = python(folder, 1, "-", 0)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("stage", "reports", "workers", "kept"),
    [
        ("cleaning", 5, 2, None),
        pytest.param("tokenizer", 1, 2, "selected: finished before, kept", marks=pytest.mark.slow),
        pytest.param("encoding", 1, 3, "tokenizer: finished before, kept", marks=pytest.mark.slow),
        ("encoding", 6, 1, "tokenizer: finished before, kept"),
    ],
)
def test_a_killed_preparation_continues_to_the_same_bytes(
    tmp_path: Path, uninterrupted: Path, stage: str, reports: int, workers: int, kept: str | None
) -> None:
    for file in uninterrupted.glob("*.??"):
        copy(file, tmp_path)
    assert python(tmp_path, workers, stage, reports).returncode == -signal.SIGKILL
    assert (tmp_path / "data.partial").exists()
    assert not (tmp_path / "data").exists()

    again = python(tmp_path, 2, "-", 0)
    assert again.returncode == 0, again.stderr
    lines = [line for line in again.stderr.splitlines() if line.endswith(", kept")]
    assert (lines[-1] if lines else None) == kept
    whole = contents(uninterrupted / "data")
    for name, data in contents(tmp_path / "data").items():
        assert data == whole[name].replace(f"{uninterrupted}/".encode(), b""), name
    assert whole.keys() == contents(tmp_path / "data").keys()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["data", "train.de", "train.en", "valid.de", "valid.en"]


@pytest.mark.slow
def test_a_killed_preparation_sets_the_same_pairs_aside(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    pairs = invented_pairs(1000, seed=6)
    for folder in (whole, killed):
        folder.mkdir()
        write_prefix(folder / "train", [*pairs, *((src, f"{tgt} x") for src, tgt in pairs[:300])])
    assert python(whole, 1, "-", 0).returncode == 0
    assert python(killed, 2, "cleaning", 4).returncode == -signal.SIGKILL
    assert python(killed, 2, "tokenizer", 1).returncode == -signal.SIGKILL
    assert python(killed, 2, "-", 0).returncode == 0
    assert contents(killed / "data") == contents(whole / "data")
    assert (whole / "data" / "valid.en").read_text().count("\n") > 100
