"""`nmt reproduce`: the commands of a system of the paper as processes, and the verdict on each figure."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.artifacts.run import open_run
from nmt_cli.cli.reproduce import Expected, experiments
from nmt_cli.recipe.loading import load_recipe, packaged_folder
from tests.forks import Forked, run_forked
from tests.test_recipes import TABLE_3
from tests.waiting import wait_until

# A tiny model: an update takes milliseconds. Every other update is saved.
_TINY = {
    "model": "{encoder_layers: 1, decoder_layers: 1, d_model: 16, d_ff: 32, heads: 2, d_k: 8, d_v: 8}",
    "model.embedding_multiple": 8,
    "training.batch_tokens": 300,
    "training.max_tokens_per_device": 512,
    "training.precision": "fp32",
    "training.checkpoint_every": 2,
    "training.log_every": 1,
    "validation.max_sentences": 4,
    "decoding": "{beam: 2, max_extra_tokens: 3}",
}
_DEMO = Path(__file__).parents[1] / "docs" / "demo.yaml"
_FOLDERS = ["--data", "data/demo", "-o", "runs/here"]


def nmt(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hub"), "NO_COLOR": "1"}
    return run_forked([sys.executable, "-m", "nmt_cli", *arguments], cwd=cwd, env=environment)


def tiny(updates: int) -> list[str]:
    settings = _TINY | {"training.updates": updates}
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def test_what_is_done_is_not_done_again_and_each_figure_is_judged(tmp_path: Path) -> None:
    nmt("prepare", str(_DEMO), "--workers", "1", "--set", "tokenizer.vocab_size=400", cwd=tmp_path)
    command = ["reproduce", "base-en-de", *_FOLDERS, *tiny(10)]
    train = nmt(*command, "--dry-run", cwd=tmp_path).stdout.splitlines()[0]
    assert nmt(*shlex.split(train)[1:], cwd=tmp_path).returncode == 0, train
    first, judged = (nmt(*command, "--set", "decoding.beam=1", cwd=tmp_path) for _ in range(2))
    assert (first.returncode, judged.returncode) == (8, 8), judged.stderr  # its BLEU is not the paper's
    taken = [[line.split()[2] for line in each.stderr.splitlines() if "] nmt" in line] for each in (first, judged)]
    # The other beam is written into the run and its model, so all that follows is done again.
    assert taken == [["train", "decode", "score", "average", "decode", "score"], ["score", "score"]]
    assert judged.stderr.count("done: nmt ") == 4
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in judged.stdout.splitlines()}
    assert rows["updates"][:2] == ["100,000", "10"]
    assert rows["checkpoints"] == ["5", "5", "as expected"]
    assert rows["newstest2014 paper BLEU"][0] == "27.3 ± 0.5"
    assert rows["newstest2014 paper BLEU"][2].startswith("below by ")


@pytest.mark.slow
def test_a_run_is_stopped_and_goes_on_to_its_figures(tmp_path: Path) -> None:
    nmt("prepare", str(_DEMO), "--set", "tokenizer.vocab_size=400", cwd=tmp_path)
    endless = [sys.executable, "-m", "nmt_cli", "reproduce", "base-en-de", *_FOLDERS, *tiny(10_000_000)]
    metrics = tmp_path / "runs/here/metrics.jsonl"
    with Forked(endless, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: metrics.exists() and metrics.read_text().count('"train"') > 8, seconds=300)
        finally:
            process.send_signal(signal.SIGTERM)  # it would go on for ever
        assert process.wait(120) == 75
    updates = open_run(tmp_path / "runs/here").history().last_update + 2
    judged = nmt("reproduce", "base-en-de", *_FOLDERS, *tiny(updates), cwd=tmp_path)
    assert judged.returncode == 8, judged.stderr
    assert "newstest2014 paper BLEU" in judged.stdout


def test_a_command_that_fails_ends_it_with_its_code(tmp_path: Path) -> None:
    failed = nmt("reproduce", "table3/b-dk16", cwd=tmp_path)  # without a network there is no corpus
    assert failed.returncode == 4
    assert "[1/4] nmt prepare wmt14-en-de -o data/wmt14-en-de" in failed.stderr
    assert failed.stdout == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("experiment", "options", "run", "commands"),
    [
        ("base-en-de", [], "base", "prepare train decode score average decode score"),
        ("base-en-de", ["--data", "data/mine"], "base", "train decode score average decode score"),
        ("big-en-fr", ["--set", "corpus=wmt14-en-fr-archives"], "big-en-fr", "prepare train average decode score"),
        ("table3/a-h1", ["-o", "runs/mine"], "mine", "prepare train decode score"),
    ],
)
def test_a_dry_run_prints_the_commands(
    tmp_path: Path, experiment: str, options: Sequence[str], run: str, commands: str
) -> None:
    printed = nmt("reproduce", experiment, *options, "--dry-run", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[1] for line in printed] == commands.split()
    train = next(line for line in printed if line.startswith("nmt train"))
    assert all(words in train for words in (*options, f"-o runs/{run}"))
    assert list(tmp_path.iterdir()) == []


def test_data_that_cannot_be_scored_is_refused_before_the_training(tmp_path: Path) -> None:
    train = ["--train", str(packaged_folder() / "corpora/demo/train.tsv.zst"), "-l", "en-de", "--limit", "300"]
    small = ["--valid-size", "5", "--set", "tokenizer.vocab_size=400", "--workers", "1"]
    nmt("prepare", *train, *small, "-o", "data/demo", cwd=tmp_path)
    for experiment, reason in (("base-en-de", "no test text"), ("base-en-fr", "en to fr")):
        refused = nmt("reproduce", experiment, *_FOLDERS, cwd=tmp_path)
        assert refused.returncode == 4
        assert reason in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_experiment_is_refused(tmp_path: Path) -> None:
    refused = nmt("reproduce", "base-de-en", cwd=tmp_path)
    assert refused.returncode == 2
    assert "base-en-de" in refused.stderr


@pytest.mark.parametrize(
    ("recipe", "figure", "measured", "verdict"),
    [
        ("base", "newstest2014 paper BLEU", 26.8, "as expected"),
        ("base", "newstest2014 paper BLEU", 26.7, "below by 0.6"),
        ("big-en-fr", "newstest2014 paper BLEU", 42.3, "as expected"),
        ("big-en-fr", "newstest2014 paper BLEU", 42.4, "above by 0.6"),
        ("big", "million parameters", 218.1, "as expected"),
        ("base-en-fr", "pairs kept", 30_999_999, "below by 5,000,001"),
        ("table3/c-n2", "perplexity", 6.6, "above by 0.49"),
        ("base", "newstest2013 pairs", 2_999, "below by 1"),
        ("big", "hours", 3.0, "for context"),
    ],
)
def test_a_figure_is_judged_by_its_tolerance(recipe: str, figure: str, measured: float, verdict: str) -> None:
    assert expected_of(recipe)[figure].verdict(measured) == verdict


def test_the_figures_are_those_of_table_2_and_table_3() -> None:
    bleu = {
        name: str(expected_of(name)["newstest2014 paper BLEU"]) for name in ("base", "big", "base-en-fr", "big-en-fr")
    }
    assert bleu == {
        "base": "27.3 ± 0.5",
        "big": "28.4 ± 0.5",
        "base-en-fr": "38.1 ± 0.5",
        "big-en-fr": "41.0 to 41.8 ± 0.5",
    }
    rows: dict[str, Any] = TABLE_3 | {"base": ({}, 4.92, 25.8, 65), "big": ({}, 4.33, 26.4, 213)}
    for row, (_, perplexity, validation_bleu, millions) in rows.items():
        figures = {name: expected.low for name, expected in expected_of(f"table3/{row}").items()}
        assert figures.get("million parameters") == millions
        assert (figures["perplexity"], figures["newstest2013 paper BLEU"]) == (perplexity, validation_bleu)


def test_every_experiment_is_a_recipe_that_averages_what_is_expected() -> None:
    for name in experiments():
        recipe, figures = load_recipe(name), expected_of(name)
        if "checkpoints" in figures:
            assert recipe.averaging.last == figures["checkpoints"].low
            assert recipe.training.updates == figures["updates"].low


def expected_of(recipe: str) -> dict[str, Expected]:
    return {expected.figure: expected for expected in experiments()[recipe]}
