from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from nmt_cli.dataset.store import TokenWriter
from nmt_cli.errors import DataError
from nmt_cli.preparing import encoding
from nmt_cli.preparing.corpora import Split, corpus_of_prefixes
from tests.preparing.corpus_files import contents, invented_pairs, run, small_corpus, write_prefix


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
        with pytest.raises(DataError) as caught:
            run(located, tmp_path / "data")
    error = caught.value
    assert error.exit_code == 4
    assert error.message == "cannot write encoded: the disk is full"
    assert error.hint == "free some space, then give the same command again: it continues"
    assert not (tmp_path / "data").exists()
    caplog.set_level("INFO")
    run(located, tmp_path / "data")
    assert [record.getMessage() for record in caplog.records][:2] == [
        "cleaned: finished before, kept",
        "tokenizer: finished before, kept",
    ]
    assert contents(tmp_path / "data") == expected


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
    run(small_corpus(tmp_path, "tokenizer.vocab_size=380"), tmp_path / "data")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == ["cleaned: finished before, kept", "tokenizer: 380 shared pieces"]
    expected = run(small_corpus(tmp_path, "tokenizer.vocab_size=380"), tmp_path / "expected")
    assert contents(tmp_path / "data") == contents(expected.directory)


# A process of its own that kills itself when the preparation has come to the stage that is its argument.
KILLED = """
import os, signal, sys
from pathlib import Path
from nmt_cli.preparing.corpora import corpus_of_prefixes
from nmt_cli.preparing.pipeline import prepare

def kill(stage, done, total):
    if stage == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

prefixes = {"train": "train", "valid": "valid"}
settings = ["tokenizer.vocab_size=400"]
located = corpus_of_prefixes(prefixes, languages="en-de", name="data", overrides=settings)
prepare(located, output=Path("data"), overwrite=False, num_threads=1, progress=kill)
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of more than one chunk, and in `data` what is prepared from it in one go."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    prefixes: dict[Split, str] = {
        "train": write_prefix(folder / "train", invented_pairs(10_500, seed=4)),
        "valid": write_prefix(folder / "valid", invented_pairs(20, seed=5)),
    }
    settings = ["tokenizer.vocab_size=400"]
    run(corpus_of_prefixes(prefixes, languages="en-de", name="data", overrides=settings), folder / "data")
    return folder


@pytest.mark.parametrize(("stage", "finished"), [("cleaning", 0), ("tokenizer", 1), ("encoding target", 2)])
def test_a_killed_preparation_continues_to_the_same_bytes(
    tmp_path: Path, repository: Path, uninterrupted: Path, stage: str, finished: int
) -> None:
    for file in uninterrupted.glob("*.??"):
        copy(file, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    python = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert python([sys.executable, "-c", KILLED, stage]).returncode == -signal.SIGKILL
    assert (tmp_path / "data.partial").exists()
    assert not (tmp_path / "data").exists()

    arguments = ["--train", "train", "--valid", "valid", "--languages", "en-de", "--set", "tokenizer.vocab_size=400"]
    again = python([sys.executable, "-m", "nmt_cli", "prepare", *arguments, "-o", "data"])
    kept = [line for line in again.stderr.splitlines() if line.endswith(": finished before, kept")]
    assert kept == [f"{name}: finished before, kept" for name in ("cleaned", "tokenizer")[:finished]]
    whole = contents(uninterrupted / "data")
    for name, data in contents(tmp_path / "data").items():
        assert data == whole[name].replace(f"{uninterrupted}/".encode(), b""), name
    assert whole.keys() == contents(tmp_path / "data").keys()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["data", "train.de", "train.en", "valid.de", "valid.en"]
