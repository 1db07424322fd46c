"""Paired tests against sacreBLEU's own command, runs of one system, and what is said of them."""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
from pathlib import Path

import pytest

from tests.forks import run_forked
from tests.scoring.shell import REF, columns, nmt, on_a_terminal, run

WORDS = ["der", "die", "das", "Hund", "Katze", "Haus", "sieht", "läuft", "baut", "rot", "klein", "alt"]


@pytest.fixture
def systems(folder: Path) -> Path:
    """References of 60 lines, and systems that have more and more words other than theirs."""
    generator = random.Random(7)
    lines = [generator.choices(WORDS, k=generator.randint(6, 12)) for _ in range(60)]
    for name, share in (("ref", 0.0), ("good", 0.05), ("also", 0.07), ("poor", 0.4)):
        spoilt = [[generator.choice(WORDS) if generator.random() < share else word for word in line] for line in lines]
        (folder / name).write_text("".join(" ".join(line) + "\n" for line in spoilt), encoding="utf-8")
    return folder


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_scores_and_p_values_are_those_of_sacrebleu_s_command(systems: Path, test: str) -> None:
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "also", "good", "-m", "bleu", "chrf", "--width", "4"]
    command += [f"--paired-{test}", "--format", "text"]
    table = run_forked(command, cwd=systems).stdout.split("----")[0]
    rows = [[re.findall(r"\d+\.\d+", cell) for cell in line.split("│")[2:4]] for line in table.splitlines()]
    baseline, system, p_values = (row for row in rows if row and row[0])
    arguments = ["ref", "-i", "good", "--baseline", "also", "--paired", test, "-m", "bleu,chrf", "--json"]
    comparisons = json.loads(run(*arguments))["comparisons"]
    assert [comparison["metric"] for comparison in comparisons] == ["BLEU", "chrF2"]
    for place, comparison in enumerate(comparisons):
        (found,) = comparison["systems"]
        for ours, theirs in ((comparison["baseline"], baseline[place]), (found, system[place])):
            # Their randomisation has no interval unless it is asked for.
            names = ["score", "mean", "confidence"][: len(theirs)]
            assert [f"{ours[name]:.4f}" for name in names] == theirs
        assert 0.01 < found["p_value"] < 0.99
        assert [f"{found['p_value']:.4f}"] == p_values[place]
        assert found["difference"] == pytest.approx(found["score"] - comparison["baseline"]["score"])
        assert f"|{test}:" in comparison["signature"]


def test_a_pipe_gets_a_table_and_the_log_a_sentence_for_each_metric(systems: Path) -> None:
    process = nmt("ref", "-i", "good", "--baseline", "poor", "-m", "bleu,ter")
    header, *rows = columns(process.stdout)
    assert header == ["metric", "system", "baseline", "score", "mean", "95 %", "difference", "p", "signature"]
    assert [row[:3] for row in rows] == [
        ["BLEU", "poor", ""],
        ["BLEU", "good", "poor"],
        ["TER", "poor", ""],
        ["TER", "good", "poor"],
    ]
    bleu, ter = (dict(zip(header, rows[place], strict=True)) for place in (1, 3))
    assert float(bleu["difference"]) == pytest.approx(float(bleu["score"]) - float(rows[0][3]), abs=0.011)
    assert bleu["p"] == "0.0010"
    assert float(ter["difference"]) < 0
    said = process.stderr.splitlines()
    assert said[0].startswith("BLEU: good is better than poor by ")
    assert said[1].startswith("TER: good is better than poor by ")
    assert said[0].endswith(", p = 0.0010: significant at 0.05 by paired bootstrap resampling")


def test_a_terminal_gets_verdicts_and_signatures_below_a_table_of_80_columns(systems: Path) -> None:
    output = on_a_terminal(["ref", "-i", "poor", "--baseline", "good", "-m", "bleu,chrf"], COLUMNS="80", NO_COLOR="1")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in output.splitlines()]
    assert lines[0].split() == ["metric", "system", "baseline", "score", "95", "%", "difference", "p"]
    names = [row for metric in ("BLEU", "chrF2") for row in ([metric, "good"], [metric, "poor", "good"])]
    assert [line[:25].split() for line in lines[1:5]] == names
    assert max(map(len, lines[:-2])) <= 80
    assert "BLEU: poor is worse than good by " in " ".join(line.strip() for line in lines[5:])
    assert lines[-2].startswith("BLEU  nrefs:1|bs:1000|seed:12345|case:mixed")


def test_the_same_text_under_two_names_is_no_difference(systems: Path) -> None:
    (systems / "copy").write_bytes((systems / "good").read_bytes())
    (comparison,) = json.loads(run("ref", "-i", "good", "--baseline", "copy", "-m", "bleu", "--json"))["comparisons"]
    (system,) = comparison["systems"]
    # sacreBLEU's formula gives such a pair the smallest p-value there is.
    assert (system["difference"], system["p_value"]) == (0, 1)
    assert comparison["verdict"] == "BLEU: good and copy have the same score, p = 1 by paired bootstrap resampling"


def test_a_difference_without_significance_makes_no_system_better(systems: Path) -> None:
    first_line, *lines = (systems / "ref").read_text(encoding="utf-8").splitlines(keepends=True)
    (systems / "near").write_text(first_line.partition(" ")[2] + "".join(lines), encoding="utf-8")
    said = nmt("ref", "-i", "ref", "--baseline", "near", "-m", "bleu,ter").stderr.splitlines()
    ending = r"no significant difference \(p = 0\.\d{4}\) by paired bootstrap resampling"
    for line, title, comparison in zip(said, ("BLEU", "TER"), ("higher", "lower"), strict=True):
        assert re.fullmatch(rf"{title}: ref scores \d+\.\d+ {comparison} than near, {ending}", line)


def test_runs_of_one_system_have_a_mean_and_a_deviation(systems: Path) -> None:
    single = [json.loads(run("ref", "-i", name, "-m", "bleu", "--json")) for name in ("good", "also")]
    values = [result["scores"]["BLEU"]["score"] for result in single]
    result = json.loads(run("ref", "-i", "good", "-i", "also", "-m", "bleu", "--json"))
    assert result["scores"]["BLEU"]["score"] == pytest.approx(statistics.fmean(values))
    assert result["scores"]["BLEU"]["deviation"] == pytest.approx(statistics.stdev(values))
    assert [entry["file"] for entry in result["runs"]] == ["good", "also"]
    assert [entry["scores"]["BLEU"]["score"] for entry in result["runs"]] == values
    assert [entry["sha256"] for entry in result["runs"]] == [one["hypothesis"]["sha256"] for one in single]
    header, *rows = columns(run("ref", "-i", "good", "-i", "also", "-m", "bleu", "--confidence"))
    assert header == ["metric", "system", "score", "95 %", "signature"]
    assert [row[1] for row in rows] == ["good", "also", "mean", "deviation"]
    assert rows[2][2] == f"{statistics.fmean(values):.2f}"


def test_each_run_is_tested_against_each_baseline(systems: Path) -> None:
    (systems / "worse").write_text(REF * 20, encoding="utf-8")
    arguments = ["ref", "-i", "good", "-i", "also", "--baseline", "poor", "--baseline", "worse", "-m", "bleu"]
    _, *rows = columns(run(*arguments))
    assert [tuple(row[1:3]) for row in rows] == [
        ("poor", ""),
        ("good", "poor"),
        ("also", "poor"),
        ("worse", ""),
        ("good", "worse"),
        ("also", "worse"),
        ("mean", ""),
        ("deviation", ""),
    ]
    result = json.loads(run(*arguments, "--json"))
    assert [entry["file"] for entry in result["baselines"]] == ["poor", "worse"]
    assert result["comparisons"][0]["verdict"] == (
        "BLEU: of 2 runs, 2 significantly better and 0 significantly worse than poor (p < 0.05) "
        "by paired bootstrap resampling"
    )
