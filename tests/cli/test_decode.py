"""The process `nmt decode`: streams, formats, and how it ends."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

import pytest
from rich.console import Console

from nmt_cli import console
from nmt_cli.api import Translator
from nmt_cli.cli.decode.command import Statistics, decode
from nmt_cli.cli.decode.output import OutputFormat, check_output
from nmt_cli.decoding import parallel
from nmt_cli.decoding.translation import Translation
from nmt_cli.errors import DataError, ModelError, UsageError
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.forks import Forked, run_forked

COMMAND = [sys.executable, "-m", "nmt_cli"]
LINES = ["the old sea", "", "a small house stands by the sea", "Haus", "  ", "the sea " * 40, "am alten Meer"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, runs/tiny, whose model/ is random."""
    folder = tmp_path_factory.mktemp("decode")
    recipe = tiny_recipe(decoding={"beam": 2, "max_extra_tokens": 3})
    save_tiny(folder / "runs" / "tiny" / "model", spm_folder=folder, recipe=recipe)
    (folder / "runs" / "tiny" / "run.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    translator = Translator.from_pretrained(folder / "runs/tiny/model", device="cpu")
    return [translation.text for translation in translator.translate(LINES)]


def run(folder: Path, *arguments: str, text: bytes) -> CompletedProcess[bytes]:
    process = Forked[bytes]([*COMMAND, *arguments], cwd=folder, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    stdout, stderr = process.communicate(text)
    return CompletedProcess(arguments, process.returncode, stdout, stderr)


def lines_of(texts: Sequence[str]) -> bytes:
    return "".join(text + "\n" for text in texts).encode()


@pytest.mark.parametrize(
    ("arguments", "spins"),
    [(["decode", "--device", "cpu"], "1000"), (["train", "demo", "--dry-run", "--device", "cpu"], "50000")],
)
def test_threads_that_wait_for_a_cpu_sleep_and_the_compiler_is_not_imported(
    folder: Path, arguments: list[str], spins: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nmt_cli", *arguments],
        cwd=folder,
        env={**environment, "OMP_DISPLAY_ENV": "VERBOSE"},
        input=b"the sea\n",
        capture_output=True,
        check=True,
    ).stderr.decode()
    assert " torch\n" in told
    assert "torch._dynamo" not in told
    if "GOMP_SPINCOUNT" not in told:
        pytest.skip("this torch has another OpenMP than GNU's")
    assert f"GOMP_SPINCOUNT = '{spins}'" in told


@pytest.mark.parametrize("model", [[], ["-m", "runs/tiny"]], ids=["the newest model", "a run for its model"])
def test_lines_in_are_lines_out_and_stderr_has_the_rest(folder: Path, expected: list[str], model: list[str]) -> None:
    process = run(folder, "decode", "--device", "cpu", "--stats", *model, text=lines_of(LINES))
    assert process.stdout == lines_of(expected)
    assert process.returncode == 0
    assert [not line for line in expected] == [not line.strip() for line in LINES]
    messages = process.stderr.decode().splitlines()
    assert messages[0] == "model: runs/tiny/model"
    assert messages[1].startswith("warning: line 6 has ")
    assert messages[2].startswith("7 sentences and ")
    assert "sentences/s" in messages[2]


def test_a_line_is_answered_before_the_next_is_given(folder: Path, expected: list[str]) -> None:
    command = [*COMMAND, "--quiet", "decode", "--device", "cpu"]
    process = Forked[bytes](command, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line, answer in zip(LINES[:4], expected[:4], strict=True):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 300)[0], "no answer within five minutes"
            assert process.stdout.readline() == answer.encode() + b"\n"
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert errors == b""
    assert process.returncode == 0


def test_closed_stdout_ends_it_quietly(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, "decode", "-m", "runs/tiny/model", "--device", "cpu"]
    process = run_forked(command, cwd=folder, input="\n".join(LINES[:4]), stdout=writer)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, "")


def test_a_full_disk_is_told_in_three_lines(folder: Path) -> None:
    process = run(folder, "decode", "-m", "runs/tiny/model", "--device", "cpu", "-o", "/dev/full", text=b"sea\n")
    assert process.returncode == 4
    assert process.stderr.decode().splitlines() == [
        "error: cannot write full: the disk is full",
        "at:    /dev/full",
        "fix:   free some space, then give the same command again, or give another file with -o",
    ]


def test_from_file_to_file_with_alternatives(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "source.gz", tmp_path / "new" / "output.jsonl"
    source.write_bytes(gzip.compress(lines_of(LINES)))
    model = folder / "runs/tiny/model"
    decode(model=[model], source=source, output=output, device="cpu", beam=3, nbest=3, form="jsonl")
    translations = Translator.from_pretrained(model, device="cpu").translate(LINES, beam=3, nbest=3)
    objects = [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [found["line"] for found in objects] == list(range(1, 8))
    for found, translation in zip(objects, translations, strict=True):
        assert found["text"] == translation.text
        assert found["score"] == pytest.approx(translation.score, abs=1e-6)
        assert found["log_prob"] == pytest.approx(translation.log_prob, abs=1e-6)
        assert [other["text"] for other in found["alternatives"]] == [other.text for other in translation.alternatives]
    assert 1 <= len(objects[0]["alternatives"]) <= 2  # a text is there once
    assert objects[1] == {"line": 2, "text": "", "score": 0.0, "log_prob": 0.0, "alternatives": []}


def test_terms_are_in_the_translation_or_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text(f"sea\tMeer\nhouse\t{'Haus' * 200}\n")
    arguments = ["--device", "cpu", "--terms", str(tmp_path / "terms.tsv"), "--format", "jsonl", "--beam", "4"]
    done = run(folder, "decode", *arguments, text=lines_of(["the old sea", "a small house", "old"]))
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [row["unmet_terms"] for row in rows] == [[], ["house"], []]
    assert re.search(r"\bMeer\b", rows[0]["text"])
    assert "line 2 lacks the translation of 'house'" in done.stderr.decode()
    (tmp_path / "terms.tsv").write_text("sea\tMeer\nsea\tSee\n")
    failed = run(folder, "decode", *arguments, text=lines_of(["the old sea"]))
    assert failed.returncode == 4
    assert f"{tmp_path}/terms.tsv:2" in failed.stderr.decode()
    assert failed.stdout == b""


def test_table_has_a_row_for_each_translation_and_no_stray_tabs() -> None:
    second = Translation("zwei\t2", -1.5, -3.0, 2)
    best = Translation("eins", -1.0, -2.0, 1, (second,))
    blank = Translation("", 0.0, 0.0, 0)
    no_details = {"word_scores": False, "alignments": False}
    assert OutputFormat("tsv", nbest=2, **no_details).render([best, blank], first_line=8) == (
        "8\t1\t-1.000000\t-2.000000\teins\n8\t2\t-1.500000\t-3.000000\tzwei 2\n9\t1\t0.000000\t0.000000\t\n"
    )
    assert OutputFormat("text", nbest=1, **no_details).render([best, blank], first_line=8) == "eins\n\n"


def test_rates_are_counts_over_seconds() -> None:
    statistics = Statistics("torch in fp32 on cpu")
    for started, ended in ((10.0, 12.0), (11.0, 13.0), (11.5, 12.5), (20.0, 21.0)):  # by two workers
        statistics.add([Translation("a", -1.0, -1.0, 7)] * 300, started=started, ended=ended)
    assert str(statistics) == (
        "1,200 sentences and 8,400 target tokens in 4.00 s: 300.0 sentences/s, 2,100 tokens/s, by torch in fp32 on cpu"
    )
    assert "0.0 sentences/s" in str(Statistics("torch"))


def test_wrong_arguments_are_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--format text has one translation per line, not 4") as error:
        decode(nbest=4, beam=4)
    assert error.value.hint == "add --format tsv or --format jsonl"
    old = tmp_path / "old.txt"
    old.write_text("kept\n")
    with pytest.raises(UsageError, match=r"old\.txt exists already") as error:
        decode(output=old)
    assert error.value.hint == "add --overwrite, or give another file with -o"
    with pytest.raises(UsageError, match="is a directory, not a file") as error:
        decode(output=tmp_path)
    assert error.value.hint == f"-o {tmp_path}/FILE"
    with pytest.raises(UsageError, match=r"old\.txt is both input and output"):
        decode(source=old, output=Path("old.txt"), overwrite=True)
    with pytest.raises(UsageError, match=r"old\.txt is both input and output"):
        decode(prefix=old, output=Path("old.txt"), overwrite=True)
    assert old.read_text() == "kept\n"
    check_output(Path("/dev/null"), inputs=[Path("/dev/null")], overwrite=False)
    with pytest.raises(DataError, match=r"no such file: missing\.txt") as data_error:
        decode(source=Path("missing.txt"))
    assert data_error.value.where == str(Path.cwd() / "missing.txt")
    with pytest.raises(ModelError) as model_error:
        decode(source=old)
    assert "nmt train" in model_error.value.hint


def test_a_closed_stdout_is_told(folder: Path) -> None:
    command = [sys.executable, "-m", "nmt_cli", "decode", "-m", str(folder / "runs/tiny/model"), "--device", "cpu"]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, input=LINES[0], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "nowhere to write: stdout is closed" in done.stderr) == (2, True)


def test_an_output_written_meanwhile_is_not_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, output = tmp_path / "text", tmp_path / "output"
    text.write_bytes(lines_of(LINES[:1]))
    original = parallel.parallel_translator

    def slow(*arguments: Any, **options: Any) -> Any:
        output.write_text("another command's\n")
        return original(*arguments, **options)

    monkeypatch.setattr(parallel, "parallel_translator", slow)
    with pytest.raises(UsageError, match="output exists already"):
        decode(model=[folder / "runs/tiny/model"], source=text, output=output, device="cpu")
    assert output.read_text() == "another command's\n"


def test_an_error_leaves_the_old_output_alone_and_keeps_the_new_lines(
    folder: Path, tmp_path: Path, expected: list[str]
) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_bytes(lines_of(LINES[:2]) + b"f\xfcnf\n")
    output.write_text("kept\n")
    command = f"decode -m runs/tiny/model --device cpu -i {source} -o {output} --overwrite".split()
    process = run(folder, *command, text=b"")
    assert process.returncode == 4
    unfinished = tmp_path / "output.partial"
    assert process.stderr.decode().splitlines() == [
        f"warning: the translations so far are in {unfinished}; the same command continues",
        "error: line 3 is not UTF-8: it has the byte 0xfc",
        f"at:    {source}:3",
        *process.stderr.decode().splitlines()[3:],
    ]
    assert output.read_text() == "kept\n"
    assert unfinished.read_bytes() == lines_of(expected[:2])
    # With replaced bytes, the same command continues after the lines that were translated.
    process = run(folder, *command, "--errors", "replace", text=b"")
    assert process.returncode == 0
    assert f"line 3 of {source} is not UTF-8: such bytes are replaced by U+FFFD" in process.stderr.decode()
    assert output.read_bytes().splitlines()[:2] == lines_of(expected).splitlines()[:2]
    assert output.read_bytes().count(b"\n") == 3
    output.write_text("kept\n")
    source.write_bytes(lines_of(LINES))
    assert run(folder, *command, text=b"").returncode == 0
    assert output.read_bytes() == lines_of(expected)
    assert not unfinished.exists()


def test_a_link_still_leads_to_the_output(folder: Path, tmp_path: Path, expected: list[str]) -> None:
    (tmp_path / "source").write_bytes(lines_of(LINES[:1]))
    (tmp_path / "real").write_text("old\n")
    (tmp_path / "link").symlink_to("real")
    decode(
        model=[folder / "runs/tiny/model"],
        source=tmp_path / "source",
        output=tmp_path / "link",
        overwrite=True,
        device="cpu",
    )
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == lines_of(expected[:1])


def test_a_pipe_of_the_shell_is_written_to(folder: Path, expected: list[str]) -> None:
    # `-o >(gzip > out.gz)` names such a pipe too. /dev/stdout exists, but what it resolves to, pipe:[123], does not.
    process = run(
        folder, "decode", "-m", "runs/tiny/model", "--device", "cpu", "-o", "/dev/stdout", text=lines_of(LINES)
    )
    assert (process.returncode, process.stdout) == (0, lines_of(expected))


def test_a_terminal_is_told_how_many_lines_are_done(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    expected: list[str],
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr(console, "stderr_console", lambda: Console(file=screen, force_terminal=True))
    caplog.set_level(logging.INFO, logger="nmt_cli")
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_bytes(lines_of(LINES))
    decode(model=[folder / "runs/tiny/model"], source=source, output=output, device="cpu")
    assert output.read_bytes() == lines_of(expected)
    shown = screen.getvalue()
    assert shown.index("warning: line 6 has ") < shown.index("7 of 7")
