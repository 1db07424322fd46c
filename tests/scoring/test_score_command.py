"""`nmt score`: what it prints, and what it says of bad input."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pty
import re
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest

from nmt_cli.errors import DataError
from tests.scoring.shell import HYP, REF, columns, nmt, on_a_terminal, refuse, run

pytestmark = pytest.mark.usefixtures("folder")


def test_a_pipe_gets_a_line_for_each_metric() -> None:
    # By hand: BLEU is 100 (13/16 * 8/13 * 4/10 * 1/7)^(1/4), TER is 3 edits in 12 words.
    assert [row[:2] for row in columns(run("ref", "-i", "hyp"))] == [
        ["BLEU", "41.11"],
        ["chrF2", "76.53"],
        ["TER", "25.00"],
    ]


def test_the_hypothesis_comes_from_stdin() -> None:
    assert run("ref", stdin=HYP.encode()) == run("ref", "-i", "hyp")
    assert run("-", "-i", "hyp", stdin=REF.encode()) == run("ref", "-i", "hyp")


def test_metrics_come_in_the_order_asked_for_and_once() -> None:
    output = run("ref", "-i", "hyp", "-m", "ChrF2, bleu,chrf")
    assert [row[0] for row in columns(output)] == ["chrF2", "BLEU"]


def test_confidence_is_the_last_column() -> None:
    (row,) = columns(run("ref", "-i", "hyp", "-m", "bleu", "--confidence"))
    assert row[3].startswith("±")
    assert float(row[3][1:]) > 0
    assert "|bs:1000|" in row[2]


def test_json_maps_metrics_to_scores_beside_the_hashes(folder: Path) -> None:
    (folder / "second").write_text(HYP, encoding="utf-8")
    result = json.loads(run("ref", "second", "-i", "hyp", "--json", "--confidence"))
    assert list(result["scores"]) == ["BLEU", "chrF2", "TER"]
    assert set(result["scores"]["BLEU"]) == {"score", "signature", "confidence", "details"}
    assert result["scores"]["BLEU"]["score"] == pytest.approx(100)
    assert result["scores"]["BLEU"]["signature"].startswith("nrefs:2|bs:1000|")
    assert result["scores"]["TER"] == {"score": 0.0, "signature": result["scores"]["TER"]["signature"], "confidence": 0}
    hyp_hash, ref_hash = (hashlib.sha256(text.encode()).hexdigest() for text in (HYP, REF))
    assert result["hypothesis"] == {"file": "hyp", "sha256": hyp_hash}
    assert result["references"] == [{"file": "ref", "sha256": ref_hash}, {"file": "second", "sha256": hyp_hash}]
    assert result["lines"] == 3


def test_json_without_confidence_says_null() -> None:
    result = json.loads(run("ref", "--json", "-m", "chrf", stdin=HYP.encode()))
    assert result["scores"]["chrF2"]["confidence"] is None
    assert result["hypothesis"]["file"] == "stdin"


def test_compressed_files_are_read_and_hashed_uncompressed(folder: Path) -> None:
    (folder / "ref.gz").write_bytes(gzip.compress(REF.encode()))
    plain, packed = (json.loads(run(name, "-i", "hyp", "--json")) for name in ("ref", "ref.gz"))
    assert packed["scores"] == plain["scores"]
    assert packed["references"][0]["sha256"] == plain["references"][0]["sha256"]


@pytest.mark.parametrize(
    "text", [HYP.removesuffix("\n"), HYP.replace("\n", "\r\n"), HYP.replace("schläft", "schläft\x0b\u2028")]
)
def test_only_line_feeds_end_lines(folder: Path, text: str) -> None:
    (folder / "hyp").write_bytes(text.encode())
    assert len(run("ref", "-i", "hyp").splitlines()) == 3


@pytest.mark.parametrize("which", ["hyp", "ref"])
def test_a_byte_order_mark_is_not_text(folder: Path, which: str) -> None:
    plain = run("ref", "-i", "hyp")
    (folder / which).write_bytes(b"\xef\xbb\xbf" + (folder / which).read_bytes())
    assert run("ref", "-i", "hyp") == plain
    (folder / which).write_bytes(b"\xef\xbb\xbf")
    assert refuse(DataError, "ref", "-i", "hyp").message == f"{which} is empty: there is nothing to score"


ROWS = {
    "tsv": "1\t1\t-0.25\t-0.5\t{0}\n1\t2\t-1.9\t-4.6\tandere\n2\t1\t-0.35\t-0.8\t{1}\n3\t1\t-0.3\t-0.1\t{2}\t0 0-0\n",
    "jsonl": '{{"line": 1, "text": "{0}"}}\n{{"line": 2, "text": "{1}"}}\n{{"line": 3, "text": "{2}"}}\n',
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_a_decoder_are_refused_with_the_command_that_takes_the_text_out(folder: Path, kind: str) -> None:
    plain = (folder / "hyp").read_text(encoding="utf-8")
    (folder / "hyp").write_text(ROWS[kind].format(*plain.splitlines()), encoding="utf-8")
    error = refuse(DataError, "ref", "-i", "hyp")
    if kind == "jsonl" and shutil.which("jq") is None:
        assert error.hint == "jq -r .text < hyp > plain-hyp"
        return
    subprocess.run(error.hint, shell=True, check=True)
    assert (folder / "plain-hyp").read_text(encoding="utf-8") == plain


@pytest.mark.parametrize(
    "lines",
    [
        ["1\tDer Hund", "2\tDie Katze", "3\tEin Haus"],
        ["{Hund}", '{"a": 1}', "{}"],
    ],
)
def test_ordinary_text_with_tabs_and_braces_is_scored(folder: Path, lines: list[str]) -> None:
    (folder / "hyp").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert columns(run("hyp", "-i", "hyp", "-m", "chrf"))[0][1] == "100.00"


def test_blank_references_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "ref").write_text("Der Hund schläft.\n\n \n", encoding="utf-8")
    run("ref", "-i", "hyp")
    assert "2 of 3 lines" in caplog.text
    caplog.clear()
    run("ref", "base", "-i", "hyp")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("hypothesis", "reference", "decomposed"),
    [
        ("Zwei Füße, große Männer", "NFC", "hyp"),
        ("한국어 문장입니다", "NFC", "hyp"),
        ("Tiếng Việt rất đẹp", "NFD", "ref"),
        ("Plain English", "NFC", None),
        ("Zwei Füße", None, None),
    ],
)
def test_decomposed_text_beside_composed_text_is_told_with_a_command(
    folder: Path, caplog: pytest.LogCaptureFixture, hypothesis: str, reference: str | None, decomposed: str | None
) -> None:
    composed = unicodedata.normalize("NFC", hypothesis) + "\n"
    apart = unicodedata.normalize("NFD", hypothesis) + "\n"
    (folder / "hyp").write_text(composed if reference == "NFD" else apart, encoding="utf-8")
    (folder / "ref").write_text(composed if reference == "NFC" else apart, encoding="utf-8")
    run("ref", "-i", "hyp", "-m", "bleu")
    if decomposed is None:
        assert caplog.text == ""
        return
    assert f"{decomposed} has letters and accents apart" in caplog.text
    subprocess.run(caplog.messages[0].partition(": ")[2], shell=True, check=True)
    assert (folder / f"composed-{decomposed}").read_text(encoding="utf-8") == f"{hypothesis}\n"


def test_the_installed_command_prints_scores_and_nothing_else() -> None:
    process = nmt("ref", "-m", "chrf", stdin=HYP)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("chrF2\t76.53\tnrefs:1|case:mixed|")


def test_below_the_bound_the_scores_are_printed_and_the_exit_code_is_8() -> None:
    process = nmt("ref", "-i", "hyp", "--json", "--fail-under", "BLEU=99", "--fail-under", "chrF2=10")
    assert process.returncode == 8
    assert json.loads(process.stdout)["scores"]["BLEU"]["score"] < 99
    assert process.stderr == (
        "error: BLEU is 41.1134, below the bound of 99\n"
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
        "fix:   give the translation with -i HYP, or pipe: nmt decode < input.txt | nmt score REF\n"
    )


def test_a_terminal_as_stdout_gets_a_table() -> None:
    output = on_a_terminal(["ref", "-i", "hyp", "--confidence"], COLUMNS="60")
    assert "\x1b[1m" in output
    header, bleu, _, _, details, signature, *_ = re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()
    assert header.split() == ["metric", "score", "95", "%"]
    assert bleu.startswith("BLEU    41.11  ±")
    # By hand: 13 of 16 words, and 1 of 7 sequences of four.
    assert details == "BLEU  81.2/61.5/40.0/14.3 (BP=1.000, ratio=1.067, hyp_len=16, ref_len=15)"
    # Longer than the terminal is wide, and yet in one piece.
    assert signature.startswith("BLEU  nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_a_terminal_without_colours_gets_none() -> None:
    assert "\x1b[3" not in on_a_terminal(["ref", "-i", "hyp"], NO_COLOR="1", COLUMNS="120")
    assert on_a_terminal(["ref", "-i", "hyp"], TERM="dumb").startswith("BLEU\t41.11\t")
