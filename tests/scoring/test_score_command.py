"""`nmt score`: what it prints, and what it says of bad input."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from nmt_cli.cli.score import score
from nmt_cli.errors import DataError, NmtError, ScoreError, UsageError

_app = typer.Typer()
_app.command()(score)

_HYP = "Der Hund schläft.\nZwei Frauen gehen nach Hause.\nEin Mann liest ein Buch.\n"
_REF = "Der Hund schläft.\nZwei Frauen gehen heim.\nEin Mann liest das Buch.\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a hypothesis and a reference of three lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hyp").write_text(_HYP, encoding="utf-8")
    (tmp_path / "ref").write_text(_REF, encoding="utf-8")
    return tmp_path


def run(*arguments: str, stdin: bytes = b"") -> str:
    result = CliRunner().invoke(_app, arguments, input=stdin, catch_exceptions=True)
    if result.exception:
        raise result.exception
    return result.stdout


def refuse(family: type[NmtError], *arguments: str, stdin: bytes = b"") -> NmtError:
    with pytest.raises(family) as caught:
        run(*arguments, stdin=stdin)
    return caught.value


def nmt(*arguments: str, stdin: str | int = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nmt_cli", "score", *arguments]
    if isinstance(stdin, int):
        return subprocess.run(command, capture_output=True, text=True, stdin=stdin)
    return subprocess.run(command, capture_output=True, text=True, input=stdin)


def columns(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.splitlines()]


def test_a_pipe_gets_a_line_for_each_metric() -> None:
    # By hand: BLEU is 100 (13/16 * 8/13 * 4/10 * 1/7)^(1/4), TER is 3 edits in 12 words.
    assert [row[:2] for row in columns(run("ref", "-i", "hyp"))] == [
        ["BLEU", "41.11"],
        ["chrF2", "76.53"],
        ["TER", "25.00"],
    ]


def test_the_hypothesis_comes_from_stdin() -> None:
    assert run("ref", stdin=_HYP.encode()) == run("ref", "-i", "hyp")
    assert run("-", "-i", "hyp", stdin=_REF.encode()) == run("ref", "-i", "hyp")


def test_metrics_come_in_the_order_asked_for_and_once() -> None:
    output = run("ref", "-i", "hyp", "-m", "ChrF2, bleu,chrf")
    assert [row[0] for row in columns(output)] == ["chrF2", "BLEU"]


def test_confidence_is_the_last_column() -> None:
    (row,) = columns(run("ref", "-i", "hyp", "-m", "bleu", "--confidence"))
    assert row[3].startswith("±")
    assert float(row[3][1:]) > 0
    assert "|bs:1000|" in row[2]


def test_json_maps_metrics_to_scores_beside_the_hashes(folder: Path) -> None:
    (folder / "second").write_text(_HYP, encoding="utf-8")
    result = json.loads(run("ref", "second", "-i", "hyp", "--json", "--confidence"))
    assert list(result["scores"]) == ["BLEU", "chrF2", "TER"]
    assert set(result["scores"]["BLEU"]) == {"score", "signature", "confidence"}
    assert result["scores"]["BLEU"]["score"] == pytest.approx(100)
    assert result["scores"]["BLEU"]["signature"].startswith("nrefs:2|bs:1000|")
    assert result["scores"]["TER"] == {"score": 0.0, "signature": result["scores"]["TER"]["signature"], "confidence": 0}
    hyp_hash, ref_hash = (hashlib.sha256(text.encode()).hexdigest() for text in (_HYP, _REF))
    assert result["hypothesis"] == {"file": "hyp", "sha256": hyp_hash}
    assert result["references"] == [{"file": "ref", "sha256": ref_hash}, {"file": "second", "sha256": hyp_hash}]
    assert result["lines"] == 3


def test_json_without_confidence_says_null() -> None:
    result = json.loads(run("ref", "--json", "-m", "chrf", stdin=_HYP.encode()))
    assert result["scores"]["chrF2"]["confidence"] is None
    assert result["hypothesis"]["file"] == "stdin"


def test_compressed_files_are_read_and_hashed_uncompressed(folder: Path) -> None:
    (folder / "ref.gz").write_bytes(gzip.compress(_REF.encode()))
    plain, packed = (json.loads(run(name, "-i", "hyp", "--json")) for name in ("ref", "ref.gz"))
    assert packed["scores"] == plain["scores"]
    assert packed["references"][0]["sha256"] == plain["references"][0]["sha256"]


@pytest.mark.parametrize(
    "text", [_HYP.removesuffix("\n"), _HYP.replace("\n", "\r\n"), _HYP.replace("schläft", "schläft\x0b\u2028")]
)
def test_only_line_feeds_end_lines(folder: Path, text: str) -> None:
    (folder / "hyp").write_bytes(text.encode())
    assert len(run("ref", "-i", "hyp").splitlines()) == 3


def test_blank_lines_count() -> None:
    assert columns(run("ref", "-m", "bleu", stdin=b"\n\n\n"))[0][1] == "0.00"


def test_the_installed_command_prints_scores_and_nothing_else() -> None:
    process = nmt("ref", "-m", "chrf", stdin=_HYP)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("chrF2\t76.53\tnrefs:1|case:mixed|")


def test_below_the_bound_the_scores_are_printed_and_the_exit_code_is_8() -> None:
    process = nmt("ref", "-i", "hyp", "--json", "--fail-under", "BLEU=99", "--fail-under", "chrF2=10")
    assert process.returncode == 8
    assert json.loads(process.stdout)["scores"]["BLEU"]["score"] < 99
    assert process.stderr == (
        "error: BLEU is 41.11, below the bound of 99\n"
        "at:    --fail-under BLEU=99\n"
        "fix:   find out what made the translation worse, or lower the bound\n"
    )


def test_a_terminal_as_stdin_is_refused() -> None:
    controller, terminal = pty.openpty()
    try:
        process = nmt("ref", stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    assert process.returncode == 2
    assert process.stderr == (
        "error: the hypothesis is to come from stdin, but stdin is a terminal\n"
        "at:    stdin\n"
        "fix:   give a file with -i HYP, or pipe: nmt decode < input.txt | nmt score REF\n"
    )


def on_a_terminal(arguments: Sequence[str], **environment: str) -> str:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "nmt_cli", "score", *arguments]
    process = subprocess.Popen(
        command, stdout=terminal, stdin=subprocess.DEVNULL, env=os.environ | {"TERM": "xterm"} | environment
    )
    os.close(terminal)
    output = b""
    try:
        while block := os.read(controller, 4096):
            output += block
    except OSError:
        pass  # Linux's way to say that the other side was closed
    finally:
        os.close(controller)
    assert process.wait() == 0
    return output.decode()


def test_a_terminal_as_stdout_gets_a_table() -> None:
    output = on_a_terminal(["ref", "-i", "hyp", "--confidence"], COLUMNS="120")
    assert "\x1b[" in output
    assert "metric" in output
    assert "41.11" in output
    assert "±" in output


def test_a_terminal_without_colours_gets_none() -> None:
    assert "\x1b[3" not in on_a_terminal(["ref", "-i", "hyp"], NO_COLOR="1", COLUMNS="120")
    assert on_a_terminal(["ref", "-i", "hyp"], TERM="dumb").startswith("BLEU\t41.11\t")


def test_different_numbers_of_lines_are_refused_with_both_counts(folder: Path) -> None:
    (folder / "long").write_text("a\n" * 1200, encoding="utf-8")
    error = refuse(DataError, "ref", "long", "-i", "hyp")
    assert error.message == "hyp has 3 lines, long has 1,200"
    assert error.where == "hyp"
    assert error.hint == "give a hypothesis of the same test set, with one line for each line of the reference"
    assert error.exit_code == 4


@pytest.mark.parametrize("which", ["hyp", "ref"])
def test_an_empty_file_is_refused(folder: Path, which: str) -> None:
    (folder / which).write_bytes(b"")
    error = refuse(DataError, "ref", "-i", "hyp")
    assert error.message == f"{which} is empty: there is nothing to score"
    assert (error.where, error.hint) == (which, "check the path, or write the file again")


def test_an_empty_pipe_is_refused() -> None:
    error = refuse(DataError, "ref")
    assert error.message == "stdin is empty: there is nothing to score"
    assert error.hint == "look at the command before the pipe"


@pytest.mark.parametrize("arguments", [["nowhere", "-i", "hyp"], ["ref", "-i", "nowhere"]])
def test_a_missing_file_is_refused(arguments: list[str]) -> None:
    error = refuse(DataError, *arguments)
    assert error.message == "no such file: nowhere"
    assert error.hint == "check the path"


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ("blue", "there is no metric 'blue'", "did you mean bleu?"),
        ("bleu,chrff", "there is no metric 'chrff'", "did you mean chrf?"),
        ("comet", "there is no metric 'comet'", "take one or more of bleu,chrf,ter"),
        ("", "there is no metric ''", "take one or more of bleu,chrf,ter"),
        ("bleu,", "there is no metric ''", "take one or more of bleu,chrf,ter"),
    ],
)
def test_an_unknown_metric_is_refused_with_the_nearest(names: str, message: str, hint: str) -> None:
    error = refuse(UsageError, "ref", "-i", "hyp", "-m", names)
    assert (error.message, error.where, error.hint, error.exit_code) == (message, "-m", hint, 2)


@pytest.mark.parametrize(
    ("bound", "message", "hint"),
    [
        ("BLUE=25", "there is no metric 'BLUE'", "did you mean bleu?"),
        ("BLEU", "--fail-under takes METRIC=BOUND, not 'BLEU'", "for example --fail-under BLEU=25"),
        ("25", "--fail-under takes METRIC=BOUND, not '25'", "for example --fail-under BLEU=25"),
        ("BLEU=high", "the bound 'high' is not a number", "for example --fail-under BLEU=25"),
        ("chrf=nan", "the bound 'nan' is not a number", "for example --fail-under chrF2=25"),
        (
            "TER=50",
            "a lower TER is a better one, so --fail-under cannot bound it",
            "bound BLEU or chrF2 instead, for example --fail-under BLEU=25",
        ),
    ],
)
def test_a_wrong_bound_is_refused_before_anything_is_read(bound: str, message: str, hint: str) -> None:
    error = refuse(UsageError, "nowhere", "-i", "nowhere", "--fail-under", bound)
    assert (error.message, error.where, error.hint) == (message, f"--fail-under {bound}", hint)


def test_a_bound_for_a_metric_that_is_not_asked_for_is_refused() -> None:
    error = refuse(UsageError, "ref", "-i", "hyp", "-m", "chrf", "--fail-under", "BLEU=1")
    assert error.message == "--fail-under bounds BLEU, but -m does not ask for it"
    assert error.hint == "write -m chrf,bleu"


def test_a_score_just_below_its_bound_does_not_read_as_equal() -> None:
    exact = json.loads(run("ref", "-i", "hyp", "--json", "-m", "bleu"))["scores"]["BLEU"]["score"]
    assert run("ref", "-i", "hyp", "-m", "bleu", "--fail-under", f"BLEU={exact!r}")
    error = refuse(ScoreError, "ref", "-i", "hyp", "--fail-under", "BLEU=41.12")
    assert error.message == "BLEU is 41.11, below the bound of 41.12"
    assert error.exit_code == 8


def test_text_that_is_not_utf8_is_refused_with_its_line(folder: Path) -> None:
    (folder / "hyp").write_bytes(_HYP.encode().replace("schläft".encode(), "schläft".encode("latin-1")))
    error = refuse(DataError, "ref", "-i", "hyp")
    assert error.message == "line 1 of hyp is not UTF-8: byte 0xe4"
    assert (error.where, error.hint) == ("hyp:1", "convert it, for example iconv -f latin1 -t utf-8 hyp")
    error = refuse(DataError, "ref", stdin=b"a\nb\n\xff\n")
    assert (error.where, error.hint) == ("stdin:3", "convert it, for example iconv -f latin1 -t utf-8")


@pytest.mark.parametrize(
    ("line", "mark", "command"),
    [
        ("▁Der ▁Hund ▁schl ä ft .", "▁", "spm_decode"),
        ("Der▁Hund", "▁", "spm_decode"),
        ("Der Hund ▁ schläft.", "▁", "spm_decode"),
        ("Der Hund schl@@ äft.", "@@ ", "sed -r"),
        ("Der Hund schl@@", "@@ ", "sed -r"),
    ],
)
def test_pieces_instead_of_words_are_refused(line: str, mark: str, command: str) -> None:
    error = refuse(DataError, "ref", stdin=f"Gut.\n{line}\nGut.\n".encode())
    assert error.message.startswith(f"the hypothesis holds pieces instead of words: {mark!r} in ")
    assert error.where == "stdin:2"
    assert error.hint.startswith(f"join the pieces: {command}")


@pytest.mark.parametrize("line", ["▁▂▃▅▇", "@@ -1,3 +1,4 @@ class A", "mail@@example", "@@"])
def test_what_only_looks_like_pieces_is_scored(line: str) -> None:
    assert run("ref", stdin=f"Gut.\n{line}\nGut.\n".encode())


def test_tokenised_text_is_scored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert run("ref", stdin=b"Der Hund .\nDie Katze .\nEin Mann .\n")
    assert caplog.messages == ["stdin looks tokenised: 3 of its 3 final full stops stand apart; score detokenised text"]
    caplog.clear()
    assert run("ref", stdin=b"Der Hund.\nDie Katze .\nEin Mann.\n")
    assert caplog.messages == []


def test_stdin_serves_once() -> None:
    error = refuse(UsageError, "-", "-i", "-")
    assert error.message == "stdin can hold the hypothesis or one reference, not both"
    assert error.hint == "give the hypothesis with -i HYP"


def test_resampling_too_many_lines_is_refused(folder: Path) -> None:
    (folder / "many").write_text("a\n" * 50_001, encoding="utf-8")
    error = refuse(UsageError, "many", "-i", "many", "--confidence")
    assert error.message == "--confidence takes at most 50,000 lines, not 50,001"
    assert error.hint == "leave it out: over so many lines the interval is narrow"
