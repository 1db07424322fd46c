"""`nmt train` as it is typed: what --dry-run prints, where its words go, and what each mistake is answered with."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmt_cli.dataset.store import PreparedData
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import load_recipe, parse_recipe
from tests.cli.conftest import Shell
from tests.training.tiny import RECIPE, checkpoints, measured_once, prepare_tiny

SHORT = ["--set", "training.updates=3", "--device", "cpu", "--precision", "fp32"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with the recipe tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    with measured_once():
        yield tmp_path


def origins(text: str) -> dict[str, str]:
    """The origin behind the value of each line of --dry-run, by key; the keys that are looked at occur once."""
    lines = [line.partition("  # ") for line in text.splitlines() if "  # " in line]
    return {setting.strip().partition(":")[0]: origin for setting, _, origin in lines}


def needs(text: str) -> dict[str, str]:
    """What stands as comments below the recipe."""
    return dict(line.removeprefix("# ").split(": ", 1) for line in text.splitlines() if line.startswith("# "))


def test_a_dry_run_prints_the_recipe_of_a_training_with_the_origin_of_each_value(folder: Path, nmt: Shell) -> None:
    (folder / "child.yaml").write_text("extends: tiny.yaml\ntraining: {label_smoothing: 0.2}\ncorpus: demo\n")
    overrides = ["training.updates=500", "decoding.beam=5"]
    arguments = [word for override in overrides for word in ("--set", override)]
    outcome = nmt("train", "child.yaml", "--dry-run", "--device", "cpu", *arguments)
    assert outcome.code == 0
    assert outcome.stderr == []
    assert parse_recipe(outcome.stdout, source="stdout") == load_recipe("child.yaml", overrides=overrides)
    found = origins(outcome.stdout)
    assert found["label_smoothing"] == "child.yaml:2"
    assert found["checkpoint_every"] == "tiny.yaml:11"
    assert found["log_every"] == "tiny.yaml:10"
    assert found["updates"] == "--set training.updates=500"
    assert found["beta2"] == "default"
    assert not (folder / "runs").exists()


def test_a_dry_run_tells_what_the_recipe_needs(folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    arguments = ["--data", str(prepared.directory), "--device", "cpu", "--precision", "fp32"]
    found = needs(nmt("train", "tiny.yaml", "--dry-run", *arguments).stdout)
    recipe = load_recipe("tiny.yaml")
    model = Transformer(recipe.model, source_vocab=400, target_vocab=400)
    num_parameters = sum(parameter.numel() for parameter in set(model.parameters()))
    assert found["vocabulary"] == f"400 source and 400 target pieces ({prepared.directory})"
    assert found["parameters"] == f"{num_parameters:,} ({num_parameters / 1e6:.1f} million)"
    assert found["device"] == "cpu, fp32"
    assert found["batch"] == "600 tokens an update = 1 device(s) x 2 micro-batch(es) of at most 320"
    assert found["epoch"] == "about 15 updates of 400 pairs; 1.6 epochs"
    assert found["memory a device"].startswith("about 0.0 GB")


def test_a_dry_run_needs_neither_data_nor_the_gpus_it_counts_with(folder: Path, nmt: Shell) -> None:
    outcome = nmt("train", "base", "--dry-run", "--device", "cpu", "--gpus", "8", "--precision", "bf16")
    assert outcome.code == 0
    assert parse_recipe(outcome.stdout, source="stdout").model.d_model == 512
    found = needs(outcome.stdout)
    assert found["vocabulary"].endswith("(the corpus wmt14-en-de, not prepared yet)")
    assert found["parameters"].startswith("65,")  # million, as in Table 3
    assert found["device"] == "cpu, bf16, 8 of them"
    assert found["batch"].startswith("25,000 tokens an update = 8 device(s) x 3,125, at once where memory holds them")


def test_in_a_pipe_there_are_plain_lines_on_stderr_and_nothing_on_stdout(folder: Path, prepared: PreparedData) -> None:
    command = [sys.executable, "-m", "nmt_cli", "train", "tiny.yaml", "--data", str(prepared.directory), *SHORT]
    process = subprocess.run(
        [*command, "--set", "training.log_every=1"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0
    assert process.stdout == ""
    lines = process.stderr.splitlines()
    assert lines[0].endswith("an update of 600 tokens is 1 device(s) x 2 micro-batch(es) of at most 320")
    assert lines[1].startswith("sanity pass done: ")
    assert [line.split()[:4] for line in lines[2:5]] == [
        ["update", f"{update}/3", "epoch", "1"] for update in (1, 2, 3)
    ]
    assert lines[5].startswith("update 3  validation loss ")
    assert lines[-2:] == [
        "model of update 3 written to runs/tiny/model",
        # The recipe averages five, and there is one.
        "next: nmt average runs/tiny --last 1 && nmt decode < input.txt > output.txt",
    ]
    assert "\x1b" not in process.stderr


def test_quiet_is_quiet(folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    outcome = nmt("--quiet", "train", "tiny.yaml", "--data", str(prepared.directory), *SHORT)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", [])
    assert checkpoints(folder / "runs/tiny") == [3]


def test_what_it_says_is_next_can_be_typed(folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    run = "my runs/first"
    outcome = nmt(
        "train", "tiny.yaml", "--data", str(prepared.directory), "-o", run, *SHORT, "--set", "averaging.last=1"
    )
    average, _, _ = outcome.stderr[-1].removeprefix("next: nmt ").partition(" && ")
    assert shlex.split(average) == ["average", run]
    assert nmt(*shlex.split(average)).code == 0
    assert (folder / run / "averaged/config.yaml").is_file()


def test_without_prepared_data(folder: Path, nmt: Shell) -> None:
    outcome = nmt("train", "tiny.yaml")
    assert outcome.code == 4
    assert outcome.stderr == [
        "error: there is no prepared data in data/tiny",
        "at:    data/tiny",
        "fix:   nmt prepare FILE.yaml -o data/tiny, or name the folder with --data",
    ]


def test_with_data_that_were_not_prepared(folder: Path, nmt: Shell) -> None:
    (folder / "texts").mkdir()
    outcome = nmt("train", "tiny.yaml", "--data", "texts")
    assert outcome.code == 4
    assert outcome.stderr[0] == "error: texts is not prepared data: it has no manifest.json"


@pytest.mark.parametrize(
    ("arguments", "error", "where", "fix"),
    [
        (
            ["--device", "cuda"],
            f"error: device 'cuda' was asked for, but torch {torch.__version__} sees no GPU here",
            "at:    --device",
            "fix:   give --device cpu, or install a torch build with CUDA and check nvidia-smi",
        ),
        (
            ["--gpus", "4"],
            f"error: --gpus 4 was asked for, but torch {torch.__version__} sees no GPU here",
            "at:    --gpus",
            "fix:   leave out --gpus to train on the CPU, or install a torch build with CUDA and check nvidia-smi",
        ),
        (
            ["--device", "tpu"],
            "error: there is no device called 'tpu'",
            "at:    --device",
            "fix:   take auto, cpu, cuda or cuda:N",
        ),
    ],
)
def test_a_device_that_is_not_there(
    folder: Path,
    prepared: PreparedData,
    nmt: Shell,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: str,
    where: str,
    fix: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    outcome = nmt("train", "tiny.yaml", "--data", str(prepared.directory), *arguments)
    assert outcome.code == 6
    assert outcome.stderr == [error, where, fix]
    assert not (folder / "runs").exists()


def test_one_matrix_for_two_vocabularies(folder: Path, nmt: Shell) -> None:
    data = prepare_tiny(folder, "tokenizer.shared=false")
    outcome = nmt("train", "tiny.yaml", *SHORT)
    assert outcome.code == 3
    assert outcome.stderr == [
        "error: model.tying is all, but the prepared data has a vocabulary for each language",
        f"at:    {data.directory.relative_to(folder)}",
        "fix:   --set model.tying=target, or prepare the data with one shared vocabulary",
    ]
    assert nmt("train", "tiny.yaml", *SHORT, "--set", "model.tying=target").code == 0


def test_a_sentence_longer_than_a_micro_batch(folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    command = ["train", "tiny.yaml", "--data", str(prepared.directory), *SHORT]
    outcome = nmt(*command, "--set", "training.max_tokens_per_device=20")
    assert outcome.code == 3
    assert outcome.stderr[1] == "at:    training.max_tokens_per_device"
    fix = outcome.stderr[2].removeprefix("fix:   ").partition(",")[0]
    assert nmt(*command, *shlex.split(fix)).code == 0


@pytest.mark.parametrize(
    ("arguments", "error", "fix"),
    [
        (["bsae"], "there is no recipe 'bsae'", "did you mean nmt train base?"),
        (["tiny.yaml", "--set", "training.update=5"], "training.update", "updates"),
        (["tiny.yaml", "--set", "training.updates=many"], "training.updates", "number"),
        (["tiny.yaml", "--precision", "fp8"], "training.precision", "bf16"),
        (["tiny.yaml", "--set", "training.updates"], "--set takes key=value, not 'training.updates'", "--set "),
    ],
)
def test_a_wrong_recipe_or_setting(folder: Path, nmt: Shell, arguments: list[str], error: str, fix: str) -> None:
    outcome = nmt("train", *arguments)
    assert outcome.code == 3
    assert error in outcome.stderr[0]
    assert fix in " ".join(outcome.stderr)
    assert len(outcome.stderr) == 3


def test_an_output_folder_that_is_not_a_run(folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    (folder / "thesis").mkdir()
    (folder / "thesis/chapter1.tex").write_text("years of work")
    command = ["train", "tiny.yaml", "--data", str(prepared.directory), *SHORT, "-o"]
    for restart in ([], ["--restart"]):
        outcome = nmt(*command, "thesis", *restart)
        assert outcome.code == 5
        assert outcome.stderr == [
            "error: thesis exists and is not a run",
            "at:    thesis",
            "fix:   choose another folder with -o",
        ]
    assert (folder / "thesis/chapter1.tex").read_text() == "years of work"
    assert nmt(*command, "thesis/chapter1.tex").stderr[0] == "error: thesis/chapter1.tex is a file"
