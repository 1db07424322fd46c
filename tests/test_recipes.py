"""The packaged recipes against the figures of Vaswani et al. 2017 (arXiv:1706.03762), written down here once more."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from nmt_cli.recipe.loading import load_recipe, packaged_folder, packaged_names
from nmt_cli.recipe.schema import Recipe, num_parameters
from nmt_cli.recipe.section import flatten

# Sections 3, 5 and 6.1, base model, English-German.
_BASE: dict[str, Any] = {
    "corpus": "wmt14-en-de",
    "model.encoder_layers": 6,
    "model.decoder_layers": 6,
    "model.d_model": 512,
    "model.d_ff": 2048,
    "model.heads": 8,
    "model.d_k": 64,
    "model.d_v": 64,
    "model.dropout": 0.1,
    "model.norm": "post",
    "model.activation": "relu",
    "model.attention_bias": False,
    "model.positions": "sinusoidal",
    "model.encoder_window": None,
    "model.tying": "all",
    "training.updates": 100_000,
    "training.batch_tokens": 25_000,
    "training.label_smoothing": 0.1,
    "training.optimizer.name": "adam",
    "training.optimizer.beta1": 0.9,
    "training.optimizer.beta2": 0.98,
    "training.optimizer.epsilon": 1e-9,
    "training.schedule.name": "noam",
    "training.schedule.factor": 1.0,
    "training.schedule.warmup_updates": 4000,
    "training.clip_norm": None,
    "training.patience": None,
    "averaging.last": 5,
    "averaging.best": None,
    "decoding.beam": 4,
    "decoding.length_penalty": 0.6,
    "decoding.length_penalty_form": "gnmt",
    "decoding.max_extra_tokens": 50,
}
_BIG: dict[str, Any] = _BASE | {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.heads": 16,
    "model.dropout": 0.3,
    "training.updates": 300_000,
    "averaging.last": 20,
}

# Table 3: what differs from base, perplexity, BLEU, and millions of parameters where the table gives them.
TABLE_3: dict[str, tuple[dict[str, Any], float, float, int | None]] = {
    "a-h1": ({"model.heads": 1, "model.d_k": 512, "model.d_v": 512}, 5.29, 24.9, None),
    "a-h4": ({"model.heads": 4, "model.d_k": 128, "model.d_v": 128}, 5.00, 25.5, None),
    "a-h16": ({"model.heads": 16, "model.d_k": 32, "model.d_v": 32}, 4.91, 25.8, None),
    "a-h32": ({"model.heads": 32, "model.d_k": 16, "model.d_v": 16}, 5.01, 25.4, None),
    "b-dk16": ({"model.d_k": 16}, 5.16, 25.1, 58),
    "b-dk32": ({"model.d_k": 32}, 5.01, 25.4, 60),
    "c-n2": ({"model.encoder_layers": 2, "model.decoder_layers": 2}, 6.11, 23.7, 36),
    "c-n4": ({"model.encoder_layers": 4, "model.decoder_layers": 4}, 5.19, 25.3, 50),
    "c-n8": ({"model.encoder_layers": 8, "model.decoder_layers": 8}, 4.88, 25.5, 80),
    "c-d256": ({"model.d_model": 256, "model.d_k": 32, "model.d_v": 32}, 5.75, 24.5, 28),
    "c-d1024": ({"model.d_model": 1024, "model.d_k": 128, "model.d_v": 128}, 4.66, 26.0, 168),
    "c-ff1024": ({"model.d_ff": 1024}, 5.12, 25.4, 53),
    "c-ff4096": ({"model.d_ff": 4096}, 4.75, 26.2, 90),
    "d-drop0": ({"model.dropout": 0.0}, 5.77, 24.6, None),
    "d-drop02": ({"model.dropout": 0.2}, 4.95, 25.5, None),
    "d-ls0": ({"training.label_smoothing": 0.0}, 4.67, 25.3, None),
    "d-ls02": ({"training.label_smoothing": 0.2}, 5.47, 25.7, None),
    "e-learned": ({"model.positions": "learned"}, 4.92, 25.7, None),
}
_COUNTED = {"base": 65, "table3/base": 65} | {
    f"table3/{row}": millions for row, (*_, millions) in TABLE_3.items() if millions
}
_VOCABULARY = 37_000  # section 5.1


def settings(recipe: Recipe) -> dict[str, Any]:
    return {".".join(path): value for path, value in flatten(recipe.model_dump()).items()}


def facts(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in settings(recipe).items() if key in _BASE}


def count_parameters(recipe: Recipe) -> int:
    # tests/cli/test_recipes.py counts the parameters of the models themselves.
    return num_parameters(recipe.model, source_vocab=_VOCABULARY, target_vocab=_VOCABULARY)


def test_base_and_big_are_the_paper_s() -> None:
    assert facts(load_recipe("base")) == _BASE
    assert facts(load_recipe("big")) == _BIG


def test_english_french_differs_in_corpus_and_the_big_model_s_dropout() -> None:
    assert facts(load_recipe("base-en-fr")) == _BASE | {"corpus": "wmt14-en-fr"}
    assert facts(load_recipe("big-en-fr")) == _BIG | {"corpus": "wmt14-en-fr", "model.dropout": 0.1}


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_of_table_3_is_its_change_to_base(row: str) -> None:
    recipe = load_recipe(f"table3/{row}")
    changes, perplexity, bleu, millions = TABLE_3[row]
    assert facts(recipe) == _BASE | {"averaging.last": 1} | changes
    assert recipe.name == f"table3-{row}"
    assert recipe.description.startswith(f"Table 3, row {row[0].upper()}: ")
    assert f"perplexity {perplexity:.2f}, BLEU {bleu:.1f}" in recipe.description
    assert ("million" in recipe.description) == (millions is not None)
    assert millions is None or f"{millions} million parameters" in recipe.description


def test_the_base_and_big_rows_of_table_3_are_base_and_big_without_averaging() -> None:
    base, big = load_recipe("table3/base"), load_recipe("table3/big")
    assert facts(base) == _BASE | {"averaging.last": 1}
    assert "perplexity 4.92, BLEU 25.8, 65 million parameters" in base.description
    assert facts(big) == _BIG | {"averaging.last": 1}
    assert "perplexity 4.33, BLEU 26.4, 213 million parameters" in big.description


def test_the_defaults_are_base_but_for_the_padding_of_the_embedding() -> None:
    base, defaults = settings(load_recipe("base")), settings(Recipe(name="base"))
    differing = {key for key in defaults if defaults[key] != base[key]}
    assert differing == {"description", "model.embedding_multiple", "decoding.split_sentences"}


def test_table_3_is_complete_and_each_row_a_few_lines_over_its_parent() -> None:
    names = {name.removeprefix("table3/") for name in packaged_names(kind="recipe") if name.startswith("table3/")}
    assert names == {*TABLE_3, "base", "big"}
    for name in names:
        text = (packaged_folder() / "table3" / f"{name}.yaml").read_text(encoding="utf-8")
        assert re.match(r"extends: \.\./(base|big)\.yaml\n", text)
        assert text.count("\n") <= 6


@pytest.mark.parametrize("name", packaged_names(kind="recipe"))
def test_every_packaged_recipe_loads_and_runs_under_a_name_of_its_own(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name.replace("/", "-")
    assert recipe.description


@pytest.mark.parametrize(("name", "millions"), _COUNTED.items())
def test_parameters_are_those_of_table_3_to_the_million(name: str, millions: int) -> None:
    # One row, c-ff1024, has 52.48 million where the table has 53: the figures round to the million except for that one.
    assert count_parameters(load_recipe(name)) / 1e6 == pytest.approx(millions, abs=0.53)


@pytest.mark.parametrize(("has_biases", "expected"), [(False, 9), (True, 10)])
def test_the_counts_of_table_3_favour_attention_biases_as_docs_paper_md_says(has_biases: bool, expected: int) -> None:
    printed = {name: millions for name, millions in _COUNTED.items() if name != "base"} | {"table3/big": 213}
    override = [f"model.attention_bias={str(has_biases).lower()}"]
    counted = {name: count_parameters(load_recipe(name, overrides=override)) for name in printed}
    assert len(printed) == 11
    assert sum(round(counted[name] / 1e6) == printed[name] for name in printed) == expected


def test_big_has_the_parameters_of_table_3_within_three_percent() -> None:
    assert count_parameters(load_recipe("big")) / 1e6 == pytest.approx(213, rel=0.03)


def test_base_has_the_embedding_rows_of_the_authors_code() -> None:
    multiple = load_recipe("base").model.embedding_multiple
    assert math.ceil(_VOCABULARY / multiple) * multiple == 40_960


def test_modern_is_base_with_as_many_parameters_and_half_the_updates() -> None:
    base, modern = load_recipe("base"), load_recipe("modern")
    changed = {
        "model.d_ff": 1344,
        "model.norm": "pre",
        "model.activation": "swiglu",
        "model.positions": "rotary",
        "training.updates": base.training.updates // 2,
        "training.schedule.name": "cosine",
        "training.schedule.warmup_updates": 2000,
        "training.clip_norm": 1.0,
        "averaging.last": 1,
    }
    found = facts(modern)
    assert found.items() >= changed.items()
    assert found == {key: (_BASE | changed)[key] for key in found}
    # Both without the rows that only pad the embedding of base.
    padding = ["model.embedding_multiple=8"]
    counts = [count_parameters(load_recipe(name, overrides=padding)) for name in ("base", "modern")]
    assert counts[1] / counts[0] == pytest.approx(1, abs=0.01)


def test_iwslt14_has_the_model_and_the_settings_that_simcut_s_authors_give() -> None:
    recipe = load_recipe("iwslt14-de-en")
    flat = {".".join(path): value for path, value in flatten(recipe.model_dump()).items()}
    published = {
        "training.batch_tokens": 4096,
        "training.label_smoothing": 0.1,
        "training.clip_norm": None,
        "training.optimizer.beta1": 0.9,
        "training.optimizer.beta2": 0.98,
        "training.optimizer.weight_decay": 1e-4,
        "training.schedule.peak": 5e-4,
        "training.schedule.warmup_updates": 4000,
        "training.consistency.alpha": 3,
        "training.consistency.cut": 0.05,
        "model.dropout": 0.3,
        "decoding.beam": 5,
    }
    assert {key: flat[key] for key in published} == published
    counted = num_parameters(recipe.model, source_vocab=10_000, target_vocab=10_000)
    assert counted / 1e6 == pytest.approx(36.7, abs=0.05)  # fairseq's count
