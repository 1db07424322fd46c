"""`nmt train --dry-run`: a recipe that can be trained, and which data and how many devices it counts with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from nmt_cli.dataset.prepared_data import SIDES, PreparedData
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import load_recipe, parse_recipe
from tests.cli.conftest import Shell
from tests.training.tiny import RECIPE, train

pytestmark = pytest.mark.usefixtures("recipe_folder")


def needs(text: str) -> dict[str, str]:
    """What stands as comments below the recipe."""
    return dict(line.removeprefix("# ").split(": ", 1) for line in text.splitlines() if line.startswith("# "))


def test_a_dry_run_prints_the_recipe_of_a_training_with_the_origin_of_each_value(
    recipe_folder: Path, nmt: Shell
) -> None:
    (recipe_folder / "child.yaml").write_text("extends: tiny.yaml\ntraining: {label_smoothing: 0.2}\ncorpus: demo\n")
    overrides = ["training.updates=500", "decoding.beam=5"]
    arguments = [word for override in overrides for word in ("--set", override)]
    outcome = nmt("train", "child.yaml", "--dry-run", "--device", "cpu", *arguments)
    assert outcome.code == 0
    assert outcome.stderr == []
    assert parse_recipe(outcome.stdout, source="stdout") == load_recipe("child.yaml", overrides=overrides)
    lines = [line.partition("  # ") for line in outcome.stdout.splitlines() if "  # " in line]
    found = {setting.strip().partition(":")[0]: origin for setting, _, origin in lines}
    assert found["label_smoothing"] == "child.yaml:2"
    assert found["checkpoint_every"] == "tiny.yaml:11"
    assert found["log_every"] == "tiny.yaml:10"
    assert found["updates"] == "--set training.updates=500"
    assert found["beta2"] == "default"
    assert not (recipe_folder / "runs").exists()


def test_a_dry_run_tells_what_the_recipe_needs(recipe_folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    arguments = ["--data", str(prepared.directory), "--device", "cpu", "--precision", "fp32"]
    found = needs(nmt("train", "tiny.yaml", "--dry-run", *arguments).stdout)
    recipe = load_recipe("tiny.yaml")
    model = Transformer(recipe.model, source_vocab=400, target_vocab=400)
    num_parameters = sum(parameter.numel() for parameter in set(model.parameters()))
    assert found["vocabulary"] == f"400 source and 400 target pieces ({prepared.directory})"
    assert found["parameters"] == f"{num_parameters:,} ({num_parameters / 1e6:.1f} million)"
    assert found["device"] == "cpu, fp32"
    assert found["batch"] == "600 tokens per update = 1 device(s) x 2 micro-batch(es) of at most 320"
    assert found["epoch"] == "about 15 updates of 400 pairs; 1.6 epochs"
    assert found["memory per device"].startswith("about 0.0 GB")
    assert re.match(r"\d+ .* to \d+ .* \(10 to 50 % of the .* TFLOP/s .* here\)", found["time"])


def test_a_dry_run_measures_what_sampled_pieces_take(recipe_folder: Path, prepared: PreparedData, nmt: Shell) -> None:
    settings = ["--set", "tokenizer.dropout=0.1", "--set", "training.updates=38"]
    outcome = nmt("train", "tiny.yaml", "--dry-run", "--data", str(prepared.directory), "--device", "cpu", *settings)
    assert (outcome.code, outcome.stderr) == (0, [])
    found = needs(outcome.stdout)
    assert found["epoch"] == "about 17 updates of 400 pairs; 2.2 epochs"
    told = re.fullmatch(
        r"(1\.\d\d) times the source tokens, (1\.\d\d) times the target tokens; "
        r"an epoch takes about 0\.[01] MB of disk",
        found["sampled pieces"],
    )
    assert told
    assert train(prepared, recipe_folder / "run", "tokenizer.dropout=0.1", "training.updates=1") == 0
    sampled_folder = recipe_folder / "run/sampled/epoch-00000"
    for side, growth in zip(SIDES, told.groups(), strict=True):
        sampled, whole = (
            (folder / f"{name}.{side}.ids").stat().st_size
            for folder, name in ((sampled_folder, "sampled"), (prepared.directory, "train"))
        )
        assert sampled / whole == pytest.approx(float(growth), abs=0.03)


def test_a_dry_run_refuses_pieces_that_the_vocabulary_does_not_sample(
    recipe_folder: Path, prepared: PreparedData, nmt: Shell
) -> None:
    command = ["train", "tiny.yaml", "--data", str(prepared.directory), "--device", "cpu"]
    for words in ([], ["--dry-run"]):
        outcome = nmt(*command, *words, "--set", "tokenizer.sampling=0.2")
        assert outcome.code == 3
        assert outcome.stderr[-3:] == [
            "error: tokenizer.sampling is for unigram vocabularies, but the data has a BPE one",
            f"at:    {prepared.directory}/source.spm",
            "fix:   --set tokenizer.sampling=null --set tokenizer.dropout=0.05",
        ]
    assert not (recipe_folder / "runs").exists()


def test_a_dry_run_needs_neither_data_nor_the_gpus_it_counts_with(recipe_folder: Path, nmt: Shell) -> None:
    outcome = nmt("train", "base", "--dry-run", "--device", "cpu", "--gpus", "8", "--precision", "bf16")
    assert outcome.code == 0
    assert parse_recipe(outcome.stdout, source="stdout").model.d_model == 512
    found = needs(outcome.stdout)
    assert found["vocabulary"].endswith("(the corpus wmt14-en-de, not prepared yet)")
    assert found["parameters"].startswith("65,")  # million, as in Table 3
    assert found["device"] == "cpu, bf16, 8 of them"
    assert found["batch"].startswith("25,000 tokens per update = 8 device(s) x 3,125, at once where memory holds them")


def test_what_it_prints_is_a_recipe_of_ones_own(nmt: Shell, recipe_folder: Path) -> None:
    printed = nmt(
        "train", "base", "--dry-run", "--set", "training.seed=7", "--set", "description='1: \"a\" # b'"
    ).stdout
    (recipe_folder / "my.yaml").write_text(printed, encoding="utf-8")
    assert load_recipe("my.yaml") == load_recipe("base", overrides=["training.seed=7", "description='1: \"a\" # b'"])
    again = nmt("train", "my.yaml", "--dry-run")
    assert (again.code, again.stderr) == (0, [])
    assert yaml.safe_load(again.stdout) == yaml.safe_load(printed)
    # All that differs is where the values come from.
    seed = next(number for number, line in enumerate(printed.splitlines(), 1) if line.startswith("  seed:"))
    assert re.search(r"^  seed: 7 +# --set training\.seed=7$", printed, flags=re.MULTILINE)
    assert re.search(rf"^  seed: 7 +# my\.yaml:{seed}$", again.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "world_size", "gpus", "expected"),
    [
        ([], None, 0, 1),
        (["--gpus", "2"], None, 3, 2),
        (["--gpus", "8"], None, 0, 8),
        (["--device", "cpu"], None, 3, 1),
        ([], "16", 3, 16),
    ],
)
def test_it_counts_with_the_devices_of_a_training(
    nmt: Shell,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    world_size: str | None,
    gpus: int,
    expected: int,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    batch = needs(nmt("train", "base", "--dry-run", *arguments).stdout)["batch"]
    assert f" = {expected} device(s) x " in batch


def test_micro_batches_that_are_to_be_found_are_said_to_be_so(nmt: Shell) -> None:
    def batch(*arguments: str) -> str:
        return needs(nmt("train", "base", "--dry-run", "--device", "cpu", "--gpus", "2", *arguments).stdout)["batch"]

    assert batch() == (
        "25,000 tokens per update = 2 device(s) x 12,500, at once where memory holds them, else in equal"
        " parts: found at the start (auto)"
    )
    assert batch("--set", "training.max_tokens_per_device=4096") == (
        "25,000 tokens per update = 2 device(s) x 4 micro-batch(es) of at most 4,096"
    )


def test_activations_are_those_of_one_device(nmt: Shell) -> None:
    def activations(gpus: int) -> float:
        plan = needs(nmt("train", "base", "--dry-run", "--device", "cpu", "--gpus", str(gpus)).stdout)
        (found,) = re.findall("([0-9.]+) activations", plan["memory per device"])
        return float(found)

    one, five, ten = map(activations, (1, 5, 10))
    assert five == pytest.approx(one / 5, abs=0.06)
    assert ten == pytest.approx(one / 10, abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "directory", "fix"),
    [
        (["base", "--set", "corpus=mine"], "data/mine", "nmt prepare FILE.yaml -o data/mine"),
        (["base", "--data", "my data"], "my data", "nmt prepare wmt14-en-de -o 'my data'"),
    ],
)
def test_data_that_is_not_there_is_refused_where_it_cannot_be_guessed(
    nmt: Shell, arguments: list[str], directory: str, fix: str
) -> None:
    outcome = nmt("train", *arguments, "--dry-run")
    assert outcome.code == 4
    assert outcome.stderr == [
        f"error: there is no prepared data in {directory}",
        f"at:    {directory}",
        f"fix:   {fix}, or name the folder with --data",
    ]


@pytest.fixture(scope="module")
def model(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with one vocabulary of 400 pieces."""
    run = tmp_path_factory.mktemp("model") / "run"
    assert train(prepared, run, "training.updates=2") == 0
    return run / "model"


def test_a_model_to_begin_with_is_looked_at_as_a_training_does(
    nmt: Shell, recipe_folder: Path, prepared: PreparedData, model: Path
) -> None:
    shutil.copytree(model, "model")
    arguments = ["train", "tiny.yaml", "--data", str(prepared.directory), "--dry-run", "--device", "cpu"]
    arguments += ["--init-from", "model"]
    outcome = nmt(*arguments)
    assert outcome.code == 0
    assert f"# begins with: the weights of {recipe_folder}/model" in outcome.stdout.splitlines()
    assert "few pairs" not in outcome.stdout
    refused = nmt(*arguments, "--set", "model.d_ff=128")
    assert refused.code == 3
    assert refused.stderr[0] == "error: the model in model has model.d_ff 64, and the recipe 128"
    assert nmt(*arguments[:-1], "elsewhere").code == 5


def test_without_data_the_vocabulary_is_that_of_the_model(nmt: Shell, recipe_folder: Path, model: Path) -> None:
    (recipe_folder / "tiny.yaml").write_text(RECIPE.replace("corpus: tiny", "corpus: demo"), encoding="utf-8")
    outcome = nmt("train", "tiny.yaml", "--dry-run", "--device", "cpu", "--init-from", str(model))
    assert outcome.code == 0
    assert (
        "# vocabulary: 400 source and 400 target pieces (of the model; demo is not prepared yet)"
        in outcome.stdout.splitlines()
    )
