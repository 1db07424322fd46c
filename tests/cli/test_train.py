"""`nmt train` as it is typed: what --dry-run prints, where its words go, and what each mistake is answered with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import torch

from nmt_cli.artifacts.run import open_run
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.training import start
from tests.cli.conftest import Shell
from tests.forks import run_forked
from tests.training.tiny import checkpoints, prepare_tiny

SHORT = ["--set", "training.updates=3", "--device", "cpu", "--precision", "fp32"]


@pytest.fixture
def train(recipe_folder: Path, prepared: PreparedData) -> list[str]:
    """The arguments of a training with tiny.yaml."""
    return ["train", "tiny.yaml", "--data", str(prepared.directory)]


def test_in_a_pipe_there_are_plain_lines_on_stderr_and_nothing_on_stdout(recipe_folder: Path, train: list[str]) -> None:
    command = [sys.executable, "-m", "nmt_cli", *train, *SHORT]
    process = run_forked([*command, "--set", "training.log_every=1"], cwd=recipe_folder)
    assert process.returncode == 0
    assert process.stdout == ""
    lines = process.stderr.splitlines()
    assert lines[0].endswith("an update of 600 tokens is 1 device(s) x 2 micro-batch(es) of at most 320")
    assert lines[1].startswith("sanity pass done: ")
    assert lines[2].startswith("warning: 400 training pairs are too few to learn a language from random weights: ")
    assert lines[3] == "nmt prepare ... --set tokenizer.taken_from=Helsinki-NLP/opus-mt-en-de -o data/tiny-tuned"
    assert [line.split()[:4] for line in lines[4:7]] == [
        ["update", f"{update}/3", "epoch", "1"] for update in (1, 2, 3)
    ]
    assert lines[7].startswith("update 3  validation loss ")
    assert lines[-2:] == [
        "model of update 3 written to runs/tiny/model",
        # The recipe averages five, and there is one.
        "next: nmt average runs/tiny --last 1 && nmt decode -m runs/tiny < input.txt > output.txt",
    ]
    assert "\x1b" not in process.stderr


def test_quiet_is_quiet_but_for_warnings(recipe_folder: Path, train: list[str], nmt: Shell) -> None:
    outcome = nmt("--quiet", *train, *SHORT)
    assert (outcome.code, outcome.stdout, len(outcome.stderr)) == (0, "", 2)
    assert outcome.stderr[0].startswith("warning: 400 training pairs are too few")
    assert checkpoints(recipe_folder / "runs/tiny") == [3]


def test_what_it_says_is_next_can_be_typed(recipe_folder: Path, train: list[str], nmt: Shell) -> None:
    run = "my runs/first"
    outcome = nmt(*train, "-o", run, *SHORT, "--set", "averaging.last=1")
    average, _, decode = outcome.stderr[-1].removeprefix("next: nmt ").partition(" && nmt ")
    assert shlex.split(average) == ["average", run]
    assert nmt(*shlex.split(average)).code == 0
    assert (recipe_folder / run / "averaged/config.yaml").is_file()
    decode, _, _ = decode.partition(" < ")  # another run, in runs/, may have a newer model
    (recipe_folder / "input.txt").write_text("the dog sees the moon\n")
    decoded = nmt(*shlex.split(decode), "-i", "input.txt", "-o", "output.txt")
    assert decoded.code == 0
    assert decoded.stderr[0] == f"model: {run}/averaged"


@pytest.fixture
def on_own_data(recipe_folder: Path, prepared: PreparedData) -> list[str]:
    """The arguments of a training with a packaged recipe on data of another corpus than the recipe's."""
    assert prepared.manifest.name == "tiny"
    small = ["--set", "model.d_model=32", "--set", "model.heads=2", "--set", "averaging.last=1"]
    small += ["--set", "model.d_k=16", "--set", "model.d_v=16", "--set", "validation.max_sentences=1"]
    small += ["--set", "model.d_ff=64", "--set", "training.batch_tokens=600"]
    small += ["--set", "training.max_tokens_per_device=320"]
    return ["train", "demo", "--data", str(prepared.directory), *SHORT, *small]


def test_a_packaged_recipe_on_other_data_trains_under_the_name_of_the_data(
    recipe_folder: Path, on_own_data: list[str], nmt: Shell
) -> None:
    outcome = nmt(*on_own_data)
    assert outcome.code == 0, outcome.stderr
    run = "runs/tiny-demo"
    assert outcome.stderr[-1] == f"next: nmt average {run} && nmt decode -m {run} < input.txt > output.txt"
    recipe = open_run(recipe_folder / "runs/tiny-demo").recipe
    assert (recipe.name, recipe.corpus) == ("tiny-demo", "tiny")
    assert nmt("average", "runs/tiny-demo").code == 0
    card = (recipe_folder / "runs/tiny-demo/averaged/README.md").read_text(encoding="utf-8")
    assert "\n# tiny-demo: en to de\n" in card
    assert "The recipe demo, trained on the corpus tiny." in card
    assert "built-in demo corpus" not in card
    facts = nmt("info", "runs/tiny-demo").stdout
    assert "run tiny-demo, en to de, corpus tiny" in " ".join(facts.split())
    # The same command finds its run, and another recipe on the same data gets another.
    assert nmt(*on_own_data).code == 0
    assert [path.name for path in (recipe_folder / "runs").glob("*")] == ["tiny-demo"]
    plan = nmt(*on_own_data, "--dry-run").stdout
    assert "name: tiny-demo" in plan


def test_a_name_that_the_user_chose_stays(recipe_folder: Path, on_own_data: list[str], nmt: Shell) -> None:
    assert "name: mine" in nmt(*on_own_data, "--set", "name=mine", "--dry-run").stdout
    (recipe_folder / "own.yaml").write_text("extends: demo.yaml\nname: chosen\n")
    command = ["own.yaml" if argument == "demo" else argument for argument in on_own_data]
    plan = nmt(*command, "--dry-run").stdout
    assert "name: chosen" in plan
    assert "corpus: demo" in plan


def test_a_run_that_begins_with_a_model_has_a_name_of_its_own(
    recipe_folder: Path, on_own_data: list[str], nmt: Shell
) -> None:
    runs = recipe_folder / "runs"
    assert nmt(*on_own_data).code == 0
    tuned = [*on_own_data, "--init-from", "runs/tiny-demo"]
    outcome = nmt(*tuned)
    assert outcome.code == 0, outcome.stderr
    name = "tiny-demo-from-tiny-demo"
    assert outcome.stderr[-1] == f"next: nmt decode -m runs/{name} < input.txt > output.txt"
    assert open_run(runs / name).recipe.name == name
    assert open_run(runs / "tiny-demo").record.init_from is None
    # Either command goes on with its own run.
    for command, run in ((on_own_data, "tiny-demo"), (tuned, name)):
        assert nmt(*command, "--set", "training.updates=4").code == 0
        assert checkpoints(runs / run)[-1] == 4
    assert sorted(path.name for path in runs.iterdir()) == ["tiny-demo", name]
    assert "name: mine" in nmt(*tuned, "--set", "name=mine", "--dry-run").stdout


def test_a_misspelt_folder_of_prepared_data_is_answered_with_the_nearest(
    recipe_folder: Path, prepared: PreparedData, nmt: Shell
) -> None:
    meant = prepared.directory
    outcome = nmt("train", "tiny.yaml", "--data", str(meant.with_name("tinny")))
    assert outcome.stderr[2].startswith(f"fix:   did you mean {meant}? nmt prepare FILE.yaml -o ")
    assert "did you mean" not in nmt("train", "tiny.yaml", "--data", str(meant.with_name("other"))).stderr[2]


def test_a_packaged_recipe_is_found_beside_a_folder_of_its_name(recipe_folder: Path, nmt: Shell) -> None:
    (recipe_folder / "small").symlink_to(prepare_tiny(recipe_folder).directory)
    assert nmt("train", "small", "--data", "small", "--dry-run", "--device", "cpu").stderr == []


def test_one_matrix_for_two_vocabularies(recipe_folder: Path, nmt: Shell) -> None:
    data = prepare_tiny(recipe_folder, "tokenizer.shared=false")
    outcome = nmt("train", "tiny.yaml", *SHORT)
    assert outcome.code == 3
    assert outcome.stderr == [
        "error: model.tying is all, but the prepared data has a vocabulary for each language",
        f"at:    {data.directory.relative_to(recipe_folder)}",
        "fix:   --set model.tying=target, or prepare the data with one shared vocabulary",
    ]
    assert nmt("train", "tiny.yaml", *SHORT, "--dry-run").stderr == outcome.stderr
    assert nmt("train", "tiny.yaml", *SHORT, "--set", "model.tying=target").code == 0


def test_a_sentence_longer_than_a_micro_batch(recipe_folder: Path, train: list[str], nmt: Shell) -> None:
    command = [*train, *SHORT]
    outcome = nmt(*command, "--set", "training.max_tokens_per_device=20")
    assert outcome.code == 3
    assert outcome.stderr[1] == "at:    training.max_tokens_per_device"
    fix = outcome.stderr[2].removeprefix("fix:   ").partition(",")[0]
    assert nmt(*command, *shlex.split(fix)).code == 0


@pytest.mark.parametrize(
    ("arguments", "error", "fix"),
    [
        (["tiny.yaml", "--set", "training.update=5"], "training.update", "updates"),
        (["tiny.yaml", "--set", "training.updates=many"], "training.updates", "number"),
        (["tiny.yaml", "--precision", "fp8"], "training.precision", "bf16"),
    ],
)
def test_a_wrong_recipe_or_setting(recipe_folder: Path, nmt: Shell, arguments: list[str], error: str, fix: str) -> None:
    outcome = nmt("train", *arguments)
    assert outcome.code == 3
    assert error in outcome.stderr[0]
    assert fix in " ".join(outcome.stderr)
    assert len(outcome.stderr) == 3


def test_an_output_folder_that_is_not_a_run(recipe_folder: Path, train: list[str], nmt: Shell) -> None:
    (recipe_folder / "thesis").mkdir()
    (recipe_folder / "thesis/chapter1.tex").write_text("years of work")
    command = [*train, *SHORT, "-o"]
    for restart in ([], ["--restart"]):
        outcome = nmt(*command, "thesis", *restart)
        assert outcome.code == 5
        assert outcome.stderr == [
            "error: thesis exists and is not a run, so it is not replaced",
            "at:    thesis",
            "fix:   choose another folder with -o",
        ]
    assert (recipe_folder / "thesis/chapter1.tex").read_text() == "years of work"
    assert "thesis/chapter1.tex exists and is not a run" in nmt(*command, "thesis/chapter1.tex").stderr[0]


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> list[tuple[list[str], int]]:
    """Make torch see `number` GPUs; returns the arguments and the number of ranks that would be launched."""
    launched: list[tuple[list[str], int]] = []

    def launch(arguments: list[str], *, num_ranks: int) -> int:
        launched.append((arguments, num_ranks))
        return 75

    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(start, "launch", launch)
    return launched


NO_GPU = f"was asked for, but torch {torch.__version__} sees no GPU here"
FEWER = f"was asked for, but torch {torch.__version__} sees"
EITHER = "leave out --gpus or --device, or check nvidia-smi"
INSTALL = "install a torch build with CUDA and check nvidia-smi"


@pytest.mark.parametrize(
    ("gpus", "arguments", "error", "fix"),
    [
        (2, "--gpus 4", f"--gpus 4 {FEWER} 2 of them for --device auto", EITHER),
        (2, "--gpus 2 --device cuda:1", f"--gpus 2 {FEWER} 1 of them for --device cuda:1", EITHER),
        (0, "--device cuda", f"device 'cuda' {NO_GPU}", f"give --device cpu, or {INSTALL}"),
        (
            2,
            "--device cuda:2",
            "device 'cuda:2' was asked for, but torch sees only 2 GPUs here",
            "take cuda:0 to cuda:1",
        ),
        (2, "--device gpu --gpus 2", "there is no device called 'gpu'", "take auto, cpu, cuda or cuda:N"),
    ],
)
def test_devices_that_are_not_there_are_refused(
    nmt: Shell, train: list[str], monkeypatch: pytest.MonkeyPatch, gpus: int, arguments: str, error: str, fix: str
) -> None:
    launched = pretend_gpus(monkeypatch, gpus)
    outcome = nmt(*train, *arguments.split())
    assert outcome.stderr == [f"error: {error}", f"at:    {arguments.split()[0]}", f"fix:   {fix}"]
    assert (outcome.code, launched) == (6, [])
    assert not Path("runs").exists()


@pytest.mark.parametrize(("arguments", "processes"), [([], 4), (["--gpus", "3"], 3), (["--device", "cuda"], 4)])
def test_a_rank_is_launched_for_each_of_several_gpus(
    nmt: Shell, train: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], processes: int
) -> None:
    launched = pretend_gpus(monkeypatch, 4)
    outcome = nmt(*train, *arguments)
    assert outcome.code == 75  # that of the ranks
    assert outcome.stderr == []
    assert launched == [([*train, *arguments], processes)]


def test_other_data_than_the_recipe_s_is_said_in_a_line(nmt: Shell, train: list[str]) -> None:
    short = ["--device", "cpu", "--precision", "fp32", "--set", "training.updates=1"]
    notice = "data: the corpus tiny, where the recipe has demo"
    outcome = nmt(*train, *short, "--set", "corpus=demo")
    assert outcome.code == 0
    assert outcome.stderr[0] == notice
    assert nmt(*train, "--dry-run", "--set", "corpus=demo").stderr == [notice]
    assert notice not in nmt(*train, *short, "-o", "runs/other").stderr
