"""Paired tests against sacreBLEU's own command, runs of one system, and what is said of them."""

from __future__ import annotations

import hashlib
import json
import random
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt_cli.errors import DataError, ScoreError, UsageError
from nmt_cli.scoring.significance import p_value_across_runs, student_p_value
from tests.forks import run_forked
from tests.scoring.shell import REF, columns, nmt, on_a_terminal, refuse, run

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
    result = json.loads(run(*arguments))
    assert [comparison["metric"] for comparison in result["comparisons"]] == ["BLEU", "chrF2"]
    for place, comparison in enumerate(result["comparisons"]):
        scores = [result[role][0]["scores"][comparison["metric"]] for role in ("systems", "baselines")]
        for ours, theirs in zip(scores, (system[place], baseline[place]), strict=True):
            # Their randomisation has no interval unless it is asked for. Their bootstrap has a mean before it.
            assert [f"{ours[name]:.4f}" for name in ("score", "confidence")][: len(theirs)] == theirs[::2]
        assert 0.01 < comparison["p_value"] < 0.99
        assert [f"{comparison['p_value']:.4f}"] == p_values[place]
        assert comparison["difference"] == pytest.approx(scores[0]["score"] - scores[1]["score"])
        assert f"|{test}:" in comparison["signature"]


def test_a_pipe_gets_a_table_and_the_log_a_sentence_for_each_metric(systems: Path) -> None:
    process = nmt("ref", "-i", "good", "--baseline", "poor", "-m", "bleu,ter")
    header, *rows = columns(process.stdout)
    assert header == ["metric", "system", "baseline", "score", "95 %", "difference", "p", "signature"]
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
    # sacreBLEU's formula gives such a pair the smallest p-value there is.
    assert (comparison["difference"], comparison["p_value"]) == (0, 1)
    assert comparison["verdict"] == "BLEU: good and copy have the same score, p = 1 by paired bootstrap resampling"


def test_a_difference_without_significance_makes_no_system_better(systems: Path) -> None:
    first_line, *lines = (systems / "ref").read_text(encoding="utf-8").splitlines(keepends=True)
    (systems / "near").write_text(first_line.partition(" ")[2] + "".join(lines), encoding="utf-8")
    said = nmt("ref", "-i", "ref", "--baseline", "near", "-m", "bleu,ter").stderr.splitlines()
    ending = r"no significant difference \(p = 0\.\d{4}\) by paired bootstrap resampling"
    for line, title, comparison in zip(said, ("BLEU", "TER"), ("higher", "lower"), strict=True):
        assert re.fullmatch(rf"{title}: ref scores \d+\.\d+ {comparison} than near, {ending}", line)


@pytest.fixture
def seeds(systems: Path) -> Path:
    """Four seeds of a system with fewer wrong words than another, which has three seeds; a folder for each system."""
    generator = random.Random(3)
    lines = [line.split() for line in (systems / "ref").read_text(encoding="utf-8").splitlines()]
    for system, share, num_seeds in (("new", 0.1, 4), ("old", 0.2, 3)):
        (systems / system).mkdir()
        for seed in range(num_seeds):
            spoilt = [
                [generator.choice(WORDS) if generator.random() < share else word for word in line] for line in lines
            ]
            text = "".join(" ".join(line) + "\n" for line in spoilt)
            (systems / system / f"seed-{seed}.de").write_text(text, encoding="utf-8")
    return systems


def bleu(*files: str) -> list[float]:
    """The BLEU of each file alone."""
    return [json.loads(run("ref", "-i", file, "-m", "bleu", "--json"))["scores"]["BLEU"]["score"] for file in files]


def test_runs_of_one_system_have_a_mean_and_a_deviation(systems: Path) -> None:
    values = bleu("good", "also")
    arguments = ["ref", "-i", "good", "-i", "also", "-m", "bleu"]
    result = json.loads(run(*arguments, "--json"))
    assert result["scores"]["BLEU"]["score"] == pytest.approx(statistics.fmean(values))
    assert result["scores"]["BLEU"]["deviation"] == pytest.approx(statistics.stdev(values))
    (system,) = result["systems"]
    assert [entry["file"] for entry in system["runs"]] == ["good", "also"]
    assert [entry["scores"]["BLEU"] for entry in system["runs"]] == values
    hashes = [hashlib.sha256((systems / name).read_bytes()).hexdigest() for name in ("good", "also")]
    assert [entry["sha256"] for entry in system["runs"]] == hashes
    header, row = columns(run(*arguments, "--confidence"))
    assert header == ["metric", "system", "runs", "score", "deviation", "95 %", "signature"]
    mean, deviation = f"{statistics.fmean(values):.2f}", f"{statistics.stdev(values):.2f}"
    assert row[1:5] == ["good, also", " ".join(f"{value:.2f}" for value in values), mean, deviation]


def test_runs_without_a_name_are_called_by_what_they_have_in_common(seeds: Path) -> None:
    runs = [f"new/seed-{seed}.de" for seed in range(4)]
    _, row = columns(run("ref", *(argument for file in runs for argument in ("-i", file)), "-m", "bleu"))
    assert row[1] == "new/seed-*.de"


@pytest.mark.parametrize("again", ["new=new/seed-1.de", "new=./old/../new/seed-1.de", "new=new/seed-[13].de"])
def test_a_file_that_is_given_twice_is_no_second_run(seeds: Path, again: str) -> None:
    error = refuse(UsageError, "ref", "-i", "new=new/seed-1.de", "-i", again, "--baseline", "old=old/*.de")
    assert error.message.endswith("new/seed-1.de is given twice, but a run counts once")
    assert error.where == again


def test_a_bound_is_for_the_mean_of_the_runs(systems: Path) -> None:
    values = bleu("good", "also")
    between = statistics.fmean([min(values), statistics.fmean(values)])
    run("ref", "-i", "good", "-i", "also", "-m", "bleu", "--fail-under", f"BLEU={between}")
    between = statistics.fmean([max(values), statistics.fmean(values)])
    refuse(ScoreError, "ref", "-i", "good", "-i", "also", "-m", "bleu", "--fail-under", f"BLEU={between}")
    of_two = refuse(ScoreError, "ref", "-i", "a=good", "-i", "b=poor", "-m", "bleu", "--fail-under", f"BLEU={between}")
    assert of_two.message.startswith("BLEU of b is ")


def test_systems_of_several_seeds_get_one_verdict_in_every_form(seeds: Path) -> None:
    systems = ["-i", "new=new/seed-*.de", "-i", "also", "--baseline", "old=old/*.de", "-m", "bleu,chrf"]
    process = nmt("ref", *systems)
    header, *rows = columns(process.stdout)
    assert header == [
        *("metric", "system", "baseline", "runs", "score", "deviation", "95 %", "difference", "p", "signature")
    ]
    assert [row[:3] for row in rows[:3]] == [["BLEU", "old", ""], ["BLEU", "new", "old"], ["BLEU", "also", "old"]]
    values = bleu(*(f"new/seed-{seed}.de" for seed in range(4)))
    assert rows[1][3] == " ".join(f"{value:.2f}" for value in values)
    assert rows[1][4] == f"{statistics.fmean(values):.2f}"
    assert [float(row[8]) < 0.05 for row in (rows[1], rows[2])] == [True, True]
    said = process.stderr.splitlines()
    assert re.fullmatch(
        r"BLEU: new \(4 runs\) is better than old \(3 runs\) by \d+\.\d\d, p = 0\.\d{4}: "
        "significant at 0.05 by a t-test across runs",
        said[0],
    )
    assert said[1].startswith("BLEU: also is better than old (3 runs) by ")
    result = json.loads(run("ref", *systems, "--json"))
    names = [(comparison["metric"], comparison["system"]) for comparison in result["comparisons"]]
    assert names == [("BLEU", "new"), ("BLEU", "also"), ("chrF2", "new"), ("chrF2", "also")]
    assert f"{result['comparisons'][0]['p_value']:.4f}" == rows[1][8]
    latex = run("ref", *systems, "--latex").splitlines()
    assert latex[:6] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"system & BLEU & chrF2 \\",
        r"\midrule",
        rf"old & {rows[0][4]} $\pm$ {rows[0][5]} & {rows[3][4]} $\pm$ {rows[3][5]} \\",
        rf"new & {rows[1][4]} $\pm$ {rows[1][5]}\textsuperscript{{a}} & "
        rf"{rows[4][4]} $\pm$ {rows[4][5]}\textsuperscript{{a}} \\",
    ]
    assert all(line.startswith("% ") for line in latex[9:])
    assert "% a: differs significantly from old, p < 0.05" in latex


def test_a_name_in_a_latex_table_is_escaped(systems: Path) -> None:
    table = run("ref", "-i", r"50%_a\b=good", "-m", "bleu", "--latex")
    assert r"50\%\_a\textbackslash{}b & " in table


def test_each_system_is_tested_against_each_baseline(systems: Path) -> None:
    (systems / "worse").write_text(REF * 20, encoding="utf-8")
    arguments = ["ref", "-i", "a=good", "-i", "b=also", "--baseline", "poor", "--baseline", "worse", "-m", "bleu"]
    header, *rows = columns(run(*arguments))
    assert [tuple(row[1:3]) for row in rows] == [
        ("poor", ""),
        ("a", "poor"),
        ("b", "poor"),
        ("worse", ""),
        ("a", "worse"),
        ("b", "worse"),
    ]
    pairs = {
        (row[1], row[2]): dict(
            zip(header, columns(run("ref", "-i", file, "--baseline", row[2], "-m", "bleu"))[2], strict=True)
        )
        for row, file in zip([row for row in rows if row[2]], ("good", "also") * 2, strict=True)
    }
    for row in rows:
        if row[2]:
            assert row[3:] == [*pairs[row[1], row[2]].values()][3:]
    assert r"\textsuperscript{ab}" in run(*arguments, "--latex")


def test_a_file_is_no_pattern_and_a_pattern_without_files_is_refused(systems: Path) -> None:
    for name in ("a=b", "seed-[1].de"):
        (systems / name).write_bytes((systems / "good").read_bytes())
        assert run("ref", "-i", name) == run("ref", "-i", "good")
    error = refuse(DataError, "ref", "-i", "new=nowhere/seed-*.de")
    assert (error.message, error.hint) == ("no file matches nowhere/seed-*.de", "ls nowhere")


def test_a_pattern_without_quotes_is_told(seeds: Path, caplog: pytest.LogCaptureFixture) -> None:
    run("ref", "-i", "new/seed-0.de", "new/seed-1.de", "new/seed-2.de", "-m", "bleu")
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "a pattern of runs needs quotes, such as -i 'new/seed-*.de'"
    ]


@pytest.mark.parametrize(
    ("t", "degrees", "p_value"),
    [(12.706, 1, 0.05), (2.776, 4, 0.05), (4.604, 4, 0.01), (1.812, 10, 0.1), (2.042, 30, 0.05), (1.96, 1e9, 0.05)],
)
def test_p_values_of_student_s_t_are_those_of_printed_tables(t: float, degrees: float, p_value: float) -> None:
    assert student_p_value(t, degrees=degrees) == pytest.approx(p_value, rel=1e-3)
    assert student_p_value(-t, degrees=degrees) == student_p_value(t, degrees=degrees)


def test_a_difference_without_any_variation_is_no_chance() -> None:
    scores = np.array([0.5, 0.5])
    resampled = np.full((2, 10), 0.5)
    assert p_value_across_runs(scores, scores, resampled=(resampled, resampled)) == 1
    assert p_value_across_runs(scores + 0.25, scores, resampled=(resampled + 0.25, resampled)) == 0


# Standard deviations between seeds, of a system on a segment, and of a seed on a segment; there are 100 segments.
VARIATION = {
    "the seeds vary most": (0.3, 0.0, 1.0),
    "the systems are good on different segments": (0.1, 1.0, 1.0),
    "each output varies for itself": (0.0, 0.0, 1.0),
}


@pytest.mark.parametrize("kind", VARIATION)
@pytest.mark.parametrize(("num_runs", "num_other_runs"), [(3, 3), (5, 2)])
def test_one_test_in_twenty_of_equal_systems_is_significant(kind: str, num_runs: int, num_other_runs: int) -> None:
    """A score is the mean of segments here. Of 500 tests, the standard error of the share is 0.01."""
    rng = np.random.default_rng(5)
    of_seed, of_system, of_output = VARIATION[kind]

    def outputs(runs: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Scores [runs, segments] of a new system."""
        segments = of_system * rng.normal(size=100)
        return segments + of_seed * rng.normal(size=(runs, 1)) + of_output * rng.normal(size=(runs, 100))

    p_values = []
    for _ in range(500):
        one, other = outputs(num_runs), outputs(num_other_runs)
        resamples = rng.multinomial(100, np.full(100, 0.01), size=100).T / 100
        resampled = (one @ resamples, other @ resamples)
        p_values.append(p_value_across_runs(one.mean(axis=1), other.mean(axis=1), resampled=resampled))
    share = float(np.mean(np.array(p_values) < 0.05))
    assert 0.02 <= share <= 0.08
