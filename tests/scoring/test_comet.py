"""COMET: installations that are missing or broken, with programs that really fail; and the mean of segments' scores.

No score is asserted here: the program and its models are too large for this suite.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

import pytest

from nmt_cli.errors import ModelError, UsageError
from nmt_cli.scoring.comet import Comet, SegmentMean
from tests.scoring.shell import nmt, refuse, run

ARGUMENTS = ["ref", "-i", "hyp", "-s", "src", "-m", "comet", "--device", "cpu"]

# What unbabel-comet 2.2.7 ends with where it can reach no hub.
UNREACHABLE = """\
print("Traceback (most recent call last):", file=sys.stderr)
sys.exit('''KeyError: "Model 'Unbabel/wmt22-comet-da' not supported by COMET."''')
"""
# What it was asked for, and an answer for one segment only.
SHORT_ANSWER = """\
import json, pathlib
files = [pathlib.Path(name).read_text("utf-8") for name in ("src", "ref", "0.hyp")]
pathlib.Path(os.environ["ASKED"]).write_text(json.dumps([sys.argv[1:], *files]))
pathlib.Path("scores.json").write_text(json.dumps({"0.hyp": [{"COMET": 0.5}]}))
"""
NOT_A_NUMBER = """\
import pathlib
pathlib.Path("scores.json").write_text('{"0.hyp": [{"COMET": 0.5}, {"COMET": NaN}, {"COMET": 0.25}]}')
"""


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the whole PATH, and a Python that has no program beside it."""
    programs = folder / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(sys, "executable", str(folder / "elsewhere" / "python"))
    return programs


def write_program(programs: Path, body: str, *, interpreter: str = sys.executable) -> Path:
    program = programs / "comet-score"
    program.write_text(f"#!{interpreter}\nimport os, sys\n{body}", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_a_missing_installation_is_told_with_what_to_type(programs: Path) -> None:
    error = refuse(UsageError, *ARGUMENTS)
    assert error.message == "`metrics: comet` needs COMET, and there is no comet-score here"
    assert error.setting == "metrics: comet"
    assert error.hint == (
        "python3 -m venv ~/comet && ~/comet/bin/pip install unbabel-comet 'setuptools<81', then PATH=$PATH:~/comet/bin"
    )


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        (
            UNREACHABLE,
            "COMET has no model 'Unbabel/wmt22-comet-da' here and cannot fetch it",
            "fetch it where there is a network, or give a checkpoint: `comet_model: .../checkpoints/model.ckpt`",
        ),
        (
            "sys.exit('RuntimeError: CUDA out of memory\\n\\n')\n",
            "comet-score failed: RuntimeError: CUDA out of memory",
            "try it alone: comet-score -s SRC -t HYP -r REF --model Unbabel/wmt22-comet-da",
        ),
    ],
)
def test_a_program_that_fails_is_named_with_what_to_type(programs: Path, body: str, message: str, hint: str) -> None:
    program = write_program(programs, body)
    error = refuse(ModelError, *ARGUMENTS)
    assert (error.message, error.where) == (message, str(program))
    assert error.hint == hint


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_runs(programs: Path) -> None:
    write_program(programs, "sys.exit('it ran')\n")
    error = refuse(UsageError, *ARGUMENTS, "--comet-model", "nowhere/model.ckpt")
    assert (error.message, error.setting) == ("there is no COMET checkpoint nowhere/model.ckpt", "comet_model")


def test_an_answer_that_is_not_a_score_for_each_segment_is_refused(
    programs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED", str(folder / "asked"))
    (folder / "model.ckpt").write_bytes(b"weights")
    (folder / "hyp").write_bytes((folder / "hyp").read_bytes().replace(b"Hund", b"Hu\rnd"))
    write_program(programs, SHORT_ANSWER)
    error = refuse(ModelError, *ARGUMENTS, "--comet-model", "model.ckpt")
    assert error.message == "what comet-score wrote is not a score for each segment"
    arguments, source, reference, hypothesis = json.loads((folder / "asked").read_text())
    expected = "-s src -r ref --to_json scores.json -t 0.hyp --only_system --quiet --model"
    assert arguments == [*expected.split(), f"{folder}/model.ckpt", "--gpus", "0"]
    assert (source, reference) == ((folder / "src").read_text("utf-8"), (folder / "ref").read_text("utf-8"))
    # A carriage return would end a line for COMET.
    assert hypothesis.splitlines()[0] == "Der Hu nd schläft."


@pytest.mark.parametrize("options", [[], ["--sentence"]])
def test_a_score_that_is_no_number_is_null_in_json(programs: Path, options: list[str]) -> None:
    write_program(programs, NOT_A_NUMBER)
    text = run(*ARGUMENTS, "--json", *options)
    result = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = [sentence["COMET"] for sentence in result["sentences"]] if options else result["scores"]["COMET"]["score"]
    assert found == ([0.5, None, 0.25] if options else None)


def test_the_error_reaches_the_terminal_with_its_exit_code(folder: Path) -> None:
    write_program(folder, UNREACHABLE)
    process = nmt(*ARGUMENTS, PATH=f"{folder}:{os.environ['PATH']}")
    assert (process.returncode, process.stdout) == (5, "")
    assert process.stderr.splitlines()[:2] == [
        f"COMET: {folder}/comet-score with Unbabel/wmt22-comet-da",
        "error: COMET has no model 'Unbabel/wmt22-comet-da' here and cannot fetch it",
    ]


def test_an_installation_that_cannot_tell_its_version_has_none(folder: Path) -> None:
    assert Comet(write_program(folder, ""), "x", None).version() is None
    assert Comet(write_program(folder, "", interpreter="/nowhere/python"), "x", None).version() is None
    (folder / "comet-score").write_bytes(b"\x7fELF")
    assert Comet(folder / "comet-score", "x", None).version() is None


def test_the_mean_of_segments_is_resampled_as_other_metrics_are() -> None:
    values = [0.1, 0.5, 0.9, 0.7]
    metric = SegmentMean(model="some/model", version="2.2.7", num_segments=4)
    assert metric.corpus_score([repr(value) for value in values], None).score == pytest.approx(statistics.fmean(values))
    result = metric.corpus_score([repr(value) for value in values], None, n_bootstrap=1000)
    assert 0 < result._ci < 0.4
    assert str(metric.get_signature()) == "nrefs:1|bs:1000|seed:12345|model:some/model|version:comet-2.2.7"
