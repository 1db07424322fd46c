"""`nmt recipes`: size, corpus and purpose of each packaged recipe, for people and programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import load_recipe, packaged_names
from nmt_cli.recipe.schema import num_parameters
from tests.cli.conftest import Shell
from tests.cli.terminals import seen_in_terminal

NAMES = packaged_names(kind="recipe")
pytestmark = pytest.mark.usefixtures("recipe_folder")


def test_programs_get_columns_with_tabs(nmt: Shell) -> None:
    rows = [line.split("\t") for line in nmt("recipes").stdout.splitlines()]
    assert rows[0] == ["name", "parameters", "updates", "tokens", "corpus", "description"]
    assert {row[0] for row in rows[1:]} == set(NAMES)
    assert all(len(row) == 6 and all(row) for row in rows)
    base = next(row for row in rows if row[0] == "base")
    assert base[1:5] == ["65.1 M", "100,000", "25,000", "wmt14-en-de"]


def test_json_has_plain_numbers_of_all_recipes_or_of_one(nmt: Shell) -> None:
    listed = {one["name"]: one for one in json.loads(nmt("recipes", "--json").stdout)}
    one = json.loads(nmt("recipes", "big", "--json").stdout)
    assert listed["big"] == one
    assert (one["parameters"], one["corpus"], one["updates"]) == (218_226_688, "wmt14-en-de", 300_000)
    assert one["model"]["d_k"] == 64


def test_one_recipe_is_described_with_what_to_type(nmt: Shell) -> None:
    told = nmt("recipes", "demo").stdout
    assert "2 + 2 layers, d_model 192, d_ff 768, 4 heads of 48, post-norm" in told
    assert "next         nmt prepare demo\n" in told
    Path("data/demo").mkdir(parents=True)
    assert "next         nmt train demo\n" in nmt("recipes", "demo").stdout


def test_the_corpus_of_a_recipe_for_your_own_text_is_your_own(nmt: Shell) -> None:
    rows = [line.split("\t") for line in nmt("recipes").stdout.splitlines()]
    assert [row[0] for row in rows if row[4] == "your own"] == ["medium", "multi30k-tiny", "small"]
    told = nmt("recipes", "small").stdout
    assert "corpus       your own\n" in told
    assert "next         nmt prepare --train FILE --languages en-de\n" in told
    assert "multi30k" not in told
    outcome = nmt("train", "small")
    assert (outcome.code, outcome.stderr) == (
        4,
        [
            "error: the recipe small is for your own text, and --data does not name it",
            "at:    --data",
            "fix:   name a folder that nmt prepare wrote: nmt train small --data data/NAME",
        ],
    )


def test_a_recipe_is_for_your_own_text_if_its_corpus_is_null(nmt: Shell) -> None:
    Path("my child.yaml").write_text("extends: small.yaml\nname: child\n", encoding="utf-8")
    told = nmt("recipes", "my child.yaml").stdout
    assert "corpus       your own\n" in told
    assert "next         nmt prepare --train FILE --languages en-de\n" in told
    assert "every value  nmt train 'my child.yaml' --dry-run\n" in told
    outcome = nmt("train", "my child.yaml")
    assert outcome.code == 4
    hint = "name a folder that nmt prepare wrote: nmt train 'my child.yaml' --data data/NAME"
    assert outcome.stderr[2] == f"fix:   {hint}"
    planned = nmt("train", "my child.yaml", "--dry-run")
    assert (planned.code, "corpus: null" in planned.stdout) == (0, True)
    assert "8,000 source and 8,000 target pieces (the default of nmt prepare; --data names your own)" in planned.stdout


def test_a_recipe_for_a_corpus_file_names_the_file_and_the_folder(nmt: Shell) -> None:
    Path("mine.yaml").write_text("extends: base.yaml\ncorpus: company\n", encoding="utf-8")
    prepare = "nmt prepare FILE.yaml -o data/company"
    assert f"next         {prepare}\n" in nmt("recipes", "mine.yaml").stdout
    assert nmt("train", "mine.yaml").stderr[2] == f"fix:   {prepare}, or name the folder with --data"


def test_a_recipe_of_ones_own_is_described_too(nmt: Shell) -> None:
    Path("mine.yaml").write_text("extends: base.yaml\ncorpus: company\nmodel: {heads: 16}\n", encoding="utf-8")
    told = json.loads(nmt("recipes", "mine.yaml", "--json").stdout)
    assert (told["parameters"], told["model"]["d_k"]) == (None, 32)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_the_model_that_is_built(name: str) -> None:
    config = load_recipe(name).model
    with torch.device("meta"):
        model = Transformer(config, source_vocab=37_000, target_vocab=37_000)
    assert num_parameters(config, source_vocab=37_000, target_vocab=37_000) == model.num_parameters()


@pytest.mark.parametrize(
    "settings",
    [
        ["model.tying=none", "model.output_bias=true"],
        ["model.tying=target", "model.attention_bias=true", "model.d_k=24", "model.d_v=40"],
        ["model.norm=pre", "model.norm_type=rms", "model.activation=swiglu", "model.decoder_layers=2"],
        ["model.positions=learned", "model.max_positions=77", "model.embedding_multiple=1"],
    ],
)
def test_parameters_follow_every_variant_of_the_model(settings: list[str]) -> None:
    config = load_recipe("demo", overrides=settings).model
    sizes = {"source_vocab": 1001, "target_vocab": 1001 if config.tying == "all" else 777}
    with torch.device("meta"):
        model = Transformer(config, **sizes)
    assert num_parameters(config, **sizes) == model.num_parameters()


@pytest.mark.parametrize("columns", [80, 60])
def test_no_number_of_a_list_is_cut_off_in_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    for command, numbers in (("corpora", ["40,836,715", "7.5 GB"]), ("recipes", ["218.2 M", "100,000", "25,000"])):
        lines = seen_in_terminal([command], columns=columns, folder=tmp_path)
        assert all(number in "\n".join(lines) for number in numbers)
        assert not any("…" in line for line in lines)
        assert max(map(len, lines)) <= columns + (0 if columns == 80 else 10)


@pytest.mark.parametrize("columns", [80, 60])
def test_the_table_of_nmt_prepare_has_whole_numbers_and_headings(tmp_path: Path, columns: int) -> None:
    lines = seen_in_terminal(["prepare", "demo", "--limit", "1500", "--workers", "1"], columns=columns, folder=tmp_path)
    shown = "\n".join(lines)
    assert "…" not in shown
    (train,) = (line.split() for line in lines if line.startswith("train "))
    assert train[:3] == ["train", "1,500", "en"]
    assert len(train) == 9
    heading = next(number for number, line in enumerate(lines) if "per word" in line)
    assert lines[heading - 1].split() == ["mean", "mean", "p99", "longest", "pieces", "byte"]
    assert lines[heading].split() == ["pairs", "words", "pieces", "pieces", "pieces", "per", "word", "pieces"]


def test_words_are_not_broken_by_a_narrow_terminal_and_commands_stay_whole(tmp_path: Path) -> None:
    lines = seen_in_terminal(["recipes", "big"], columns=60, folder=tmp_path)
    words = load_recipe("big").description.split()
    assert set(words) <= set(" ".join(lines).split())
    assert all(len(line) <= 60 for line in lines)
    lines = seen_in_terminal(["train", "base", "--set", "training.dropuot=0.3"], columns=60, folder=tmp_path)
    assert lines[2].startswith("fix:   allowed here: seed, updates,")
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith("       ") for line in lines[3:] if line)
    lines = seen_in_terminal(["export", "runs/a-name", "-o", "models/another-name"], columns=60, folder=tmp_path)
    command = "nmt export --to ctranslate2|huggingface; see nmt export --help"
    assert lines[2] == f"fix:   {command}", "a line with a command can be copied"
