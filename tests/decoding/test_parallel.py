"""Several workers: the lines, messages and errors of one, and nothing of them left behind."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.cli.decode.command import decode
from nmt_cli.cli.decode.input import STANDARD
from nmt_cli.console import PACKAGE_LOGGER
from nmt_cli.decoding.parallel import LineBlock, TranslationJob, jobs_for_workers, parallel_translator
from nmt_cli.decoding.translation import Translation
from nmt_cli.errors import DataError, UsageError
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.forks import Forked, run_forked
from tests.waiting import children, is_alive

COMMAND = [sys.executable, "-m", "nmt_cli", "decode", "--device", "cpu", "-m", "model", "-i", "text", "--stats"]
NUM_LINES = 2500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a text whose lines are all different; some are blank, and one is too long for the model."""
    folder = tmp_path_factory.mktemp("workers")
    save_tiny(folder / "model", spm_folder=folder, recipe=tiny_recipe(decoding={"beam": 2, "max_extra_tokens": 2}))
    lines = ["" if number % 17 == 0 else f"the old sea {number}" for number in range(1, NUM_LINES + 1)]
    lines[1233] = "the old sea " * 40
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    return folder


def job(folder: Path) -> TranslationJob:
    options = {"nbest": 2, "word_scores": True}
    return TranslationJob([folder / "model"], "torch", "fp32", "cpu", 1, overrides={"beam": 2}, options=options)


def texts(blocks: Iterable[list[Translation]]) -> list[list[str]]:
    """The n-best texts of each line."""
    return [[one.text, *(other.text for other in one.alternatives)] for block in blocks for one in block]


def midway(folder: Path, name: str) -> tuple[Forked[str], set[int]]:
    """A process of two workers that has written a part of its lines, and is suspended; and its workers.

    On a busy machine a process may come to its end before it is seen at work: then another one starts.
    """
    partial = folder / f"{name}.partial"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        (folder / name).unlink(missing_ok=True)
        process = Forked[str]([*COMMAND, "-o", name, "--workers", "2"], cwd=folder, stderr=-1, text=True)
        while process.poll() is None:
            if partial.exists() and partial.stat().st_size:
                process.send_signal(signal.SIGSTOP)
                if partial.exists() and (workers := children(process.pid)):
                    return process, workers
                process.send_signal(signal.SIGCONT)
                break
            time.sleep(0.005)
        process.communicate()
    raise AssertionError("no process was seen at work")


def test_two_workers_find_and_refuse_what_one_does(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "text").read_text().split("\n")[:-1]
    blocks = [LineBlock(start + 1, lines[start : start + 250]) for start in range(0, NUM_LINES, 250)]

    def until(error: Exception) -> Iterator[LineBlock]:
        yield from blocks[:2]
        raise error

    with parallel_translator([job(folder)]) as run:
        expected = [result.translations for result in run(blocks)]
    before = children(os.getpid())
    with parallel_translator(jobs_for_workers(job(folder), workers=2, is_bulk=True)) as run:
        found = [result.translations for result in run(blocks)]
        assert texts(found) == texts(expected)
        for one, other in zip(chain(*found), chain(*expected), strict=True):
            assert one.word_log_probs == pytest.approx(other.word_log_probs, abs=1e-4)
        assert "warning: line 1234 has " in capfd.readouterr().err
        started = children(os.getpid()) - before
        assert len(started) == 2
        with pytest.raises(DataError) as refused:
            list(run([blocks[0], LineBlock(251, ["the sea"] * 2, ["", "the old sea " * 40])]))
        assert (refused.value.setting, refused.value.where) == ("prefix", "line 252")
        # What cannot be read is told when all before it is translated.
        for problem in (
            DataError("the disk is gone", hint="look for it"),
            EOFError("the end of the gzip file is gone"),
        ):
            results = run(until(problem))
            assert texts(next(results).translations for _ in range(2)) == texts(expected[:2])
            with pytest.raises(type(problem), match="is gone"):
                next(results)
        for process in started:
            os.kill(process, signal.SIGKILL)
        with pytest.raises(DataError, match=r"a worker process was killed \(SIGKILL\)"):
            list(run(blocks))
    assert children(os.getpid()) == before


def test_ctrl_c_ends_two_workers_and_another_number_completes_what_they_began(folder: Path) -> None:
    whole = run_forked([*COMMAND, "-o", "whole"], cwd=folder)
    assert whole.returncode == 0, whole.stderr
    assert whole.stderr.endswith("by torch in fp32 on cpu\n")
    process, workers = midway(folder, "out")
    for one in (process.pid, *workers):  # as from a terminal
        os.kill(one, signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    partial = folder / "out.partial"
    assert told.endswith(f"warning: the translations so far are in {partial}; the same command continues\n")
    assert not any(is_alive(worker) for worker in workers)
    expected = (folder / "whole").read_bytes()
    part = partial.read_bytes()
    assert expected.startswith(part)
    assert 0 < len(part) < len(expected)
    done = run_forked([*COMMAND, "-o", "out", "--workers", "1"], cwd=folder)
    assert re.search(r"[12],000 lines: going on after them", done.stderr)
    assert (folder / "out").read_bytes() == expected


def test_gpus_are_taken_in_turn_where_the_choice_is_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(device: str, workers: int | None, *, is_bulk: bool = True, **settings: Any) -> list[str]:
        asked = replace(job(folder), device=device, **settings)
        return [one.device for one in jobs_for_workers(asked, workers=workers, is_bulk=is_bulk)]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for free in ("auto", "cuda"):
        assert chosen(free, None) == ["cuda:0", "cuda:1", "cuda:2"]
        assert chosen(free, None, is_bulk=False) == [free]
        assert chosen(free, 1) == [free]
        assert chosen(free, 2) == ["cuda:0", "cuda:1"]
        assert chosen(free, 4) == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert chosen("cuda:1", None) == ["cuda:1"]
    assert chosen("cuda:1", 2) == ["cuda:1", "cuda:1"]
    assert chosen("cpu", None) == ["cpu"]
    assert chosen("auto", None, engine="ctranslate2") == ["auto"]
    assert chosen("auto", 2, precision="int8") == ["auto", "auto"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert chosen("auto", None) == ["auto"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen("auto", 2) == ["auto", "auto"]
    assert chosen("cuda", None) == ["cuda"]


def test_workers_share_the_cpus_and_the_first_alone_informs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(asked: TranslationJob, workers: int) -> list[int | None]:
        return [one.threads for one in jobs_for_workers(asked, workers=workers, is_bulk=True)]

    asked = job(folder)
    assert threads(replace(asked, threads=7), 1) == [7]
    assert threads(replace(asked, threads=7), 3) == [2, 2, 2]
    assert threads(asked, 2) == [1, 1]
    monkeypatch.setattr("nmt_cli.decoding.parallel.num_cpus", lambda: 8)
    assert threads(replace(asked, threads=None), 2) == [4, 4]
    monkeypatch.setattr(PACKAGE_LOGGER, "level", logging.INFO)
    workers = jobs_for_workers(asked, workers=3, is_bulk=True)
    assert [(one.log_level, one.is_first) for one in workers] == [(logging.INFO, index == 0) for index in range(3)]


def test_workers_translate_files(folder: Path) -> None:
    for source, stream in ((STANDARD, False), (folder / "text", True)):
        with pytest.raises(UsageError) as refused:
            decode(model=[folder / "model"], workers=2, source=source, stream=stream)
        assert refused.value.where == "--workers"
