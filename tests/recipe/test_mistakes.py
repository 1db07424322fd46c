"""What users get wrong in a recipe: value, file:line and the way out, in the error's own words."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

from nmt_cli.errors import RecipeError
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.mistakes import validate
from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import Section, keys_at
from nmt_cli.recipe.yaml_files import parse_document

FIX = "the usual hint"
COUNT = "write a whole number greater than 0"
LIMIT = "write a number greater than 0 or null"


def refuse(text: str) -> RecipeError:
    document = parse_document(f"name: x\n{text}", source="f.yaml")
    with pytest.raises(RecipeError) as caught:
        validate(document, Recipe, source="f.yaml", fix=FIX)
    return caught.value


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("model:\n  d_modl: 8", "unknown key 'model.d_modl'", "did you mean model.d_model?"),
        ("averaging: {qqq: 1}", "unknown key 'averaging.qqq'", "allowed here: last, best"),
        ("updates: 3", "unknown key 'updates'", "did you mean training.updates?"),
        (
            "training: {optimizer: {name: adam, weight_decay: 0.1}}",
            "unknown key 'training.optimizer.weight_decay'",
            "it belongs to training.optimizer.name: adamw",
        ),
        (
            "training: {lr: 5e-4}",
            "unknown key 'training.lr'",
            "here it is training.schedule; docs/how-to/other-toolkits.md has more",
        ),
        (
            "tokenizer: {vocab_size: 8000}",
            "unknown key 'tokenizer.vocab_size'",
            "here it is nmt prepare CORPUS --set tokenizer.vocab_size=N; docs/",
        ),
        (
            "tokenizer: {taken_from: runs/other}",
            "unknown key 'tokenizer.taken_from'",
            "here it is nmt prepare CORPUS --set tokenizer.taken_from=MODEL; docs/",
        ),
        ("training:\n  schedule: {name: cosine}", "the key 'training.schedule.peak' is missing", "add peak: VALUE"),
        (
            "training: {schedule: {name: invsqrt}}",
            "training.schedule: there is no 'invsqrt'; allowed: 'noam', 'inverse_sqrt', 'cosine', 'wsd', 'constant'",
            "write noam or inverse_sqrt or",
        ),
        (
            "training: {optimizer: adam}",
            "training.optimizer is 'adam', but should be a section of keys and values",
            "allowed in it: name, beta1",
        ),
        (
            "training: {optimizer: {beta2: 0.9}}",
            "training.optimizer does not say which one: 'name' is missing",
            "allowed in it: name, beta1",
        ),
        (
            "training: {max_tokens_per_device: 4k}",
            "training.max_tokens_per_device is '4k', but should be 'auto'",
            "write a whole number greater than 0 or auto",
        ),
        ('model: {heads: "8"}', "model.heads is '8', but should be a whole number", COUNT),
        ("training: {updates: 1e5}", "training.updates is 100000.0, but should be a whole number", COUNT),
        ("model: {attention_bias: yes}", "model.attention_bias is 'yes', but should be true or false", FIX),
        ("corpus: [a, b]", "corpus is a list, but should be text", FIX),
        ("corpus: my news", "corpus is 'my news', but should match ^[A-Za-z0-9][A-Za-z0-9._-]*$", FIX),
        ("model: {d_k: 0}", "model.d_k is 0, but should be greater than 0", f"{COUNT} or null"),
        ("training: {clip_norm: .inf}", "training.clip_norm is inf, but should be a finite number", LIMIT),
        ("model: {norm: Post}", "model.norm is 'Post', but should be 'post' or 'pre'", "did you mean post?"),
        (
            "model: {d_model: 511, heads: 7}",
            "sinusoidal positions need an even model.d_model, not 511",
            "write d_model: 512, or positions: learned",
        ),
        (
            "model: {heads: 7}",
            "model.d_model is 512, which 7 heads do not divide",
            "write heads that divide it, or give d_k and d_v",
        ),
        (
            "validation: {bleu: false}",
            "validation.metric is bleu, so validation.bleu cannot be false",
            "write metric: loss beside it, or leave bleu at true",
        ),
        (
            "averaging: {best: 3}",
            "exactly one of averaging.last and averaging.best is a number, the other null",
            "write last: null, or best: null",
        ),
        (
            "training: {updates: 100, schedule: {name: cosine, peak: 1.0, warmup_updates: 100}}",
            "the cosine falls from update 100, but training.updates is 100",
            "lower training.schedule.warmup_updates, or raise training.updates",
        ),
        (
            "training: {consistency: {name: r_drop}}\nmodel: {dropout: 0}",
            "training.consistency compares equal passes without dropout",
            "write model.dropout: 0.1",
        ),
        (
            "training: {keep_last: 3}",
            "averaging.last is 5, but training.keep_last keeps only 3 checkpoints",
            "raise training.keep_last to 5, or lower averaging.last",
        ),
    ],
)
def test_a_mistake_is_told_with_the_way_out(text: str, message: str, hint: str) -> None:
    error = refuse(text)
    assert error.message == message
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("model:\n  d_modl: 8", "f.yaml:3"),
        ("training:\n  optimizer:\n    name: adam\n    beta_1: 0.9", "f.yaml:5"),
        ("training:\n  schedule: {name: cosine}", "f.yaml:3"),
        ('model: {heads: "8"}', "f.yaml:2"),
        ("training: {optimizer: {beta2: 0.9}}", "f.yaml:2"),
        ("training: {keep_last: 3}", "f.yaml:2"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, where: str) -> None:
    assert refuse(text).where == where


def test_a_missing_name_is_told_of_the_whole_file() -> None:
    with pytest.raises(RecipeError, match="the key 'name' is missing") as caught:
        validate(parse_document("", source="f.yaml"), Recipe, source="f.yaml", fix=FIX)
    assert caught.value.where == "f.yaml"


class _Text(Section):
    kind: Literal["text"]
    file: str


class _Table(Section):
    kind: Literal["table"]
    column: int = Field(ge=0)


class _Shelf(Section):
    sources: list[_Text | _Table] = Field(default_factory=list)
    splits: dict[str, _Text] = Field(default_factory=dict)


def test_lists_and_named_sections_are_followed() -> None:
    values = {"sources": [{"kind": "table"}, {"kind": "text"}, {}], "splits": {"train": {}}}
    assert keys_at(_Shelf, ("sources", 0), values=values) == ["kind", "column"]
    assert keys_at(_Shelf, ("sources", 1), values=values) == ["kind", "file"]
    assert keys_at(_Shelf, ("sources", 2), values=values) == ["kind", "file", "column"]
    assert keys_at(_Shelf, ("splits", "train"), values=values) == ["kind", "file"]


def test_a_mistake_in_a_list_is_told_with_its_line() -> None:
    document = parse_document("splits:\n  train:\n    kind: text\n    fiel: a", source="f.yaml")
    with pytest.raises(RecipeError) as caught:
        validate(document, _Shelf, source="f.yaml", fix=FIX)
    assert (caught.value.message, caught.value.where) == ("unknown key 'splits.train.fiel'", "f.yaml:4")
    assert caught.value.hint == "did you mean splits.train.file?"
    document = parse_document("sources:\n- kind: table\n  colum: 1", source="f.yaml")
    with pytest.raises(RecipeError, match=r"unknown key 'sources\.0\.colum'") as caught:
        validate(document, _Shelf, source="f.yaml", fix=FIX)
    assert caught.value.hint == "did you mean sources.0.column?"


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("training.schedule={name: cosine, peak: 0.001, warmup_updates: 4000}; training.updates=1000", 1),
        ("training.schedule.name=cosine; training.schedule.peak=0.001; training.updates=1000", 2),
        ("model.heads=7", 0),
        ("model.d_model=511; model.d_k=8; model.d_v=8", 0),
        ("model.positions=rotary; model.d_k=7", 1),
        ("averaging.last=9", 0),
        ("validation.bleu=false; validation.metric=bleu", 0),
    ],
)
def test_a_mistake_of_several_settings_is_told_of_the_set_that_gives_one_of_them(given: str, where: int) -> None:
    overrides = given.split("; ")
    others = ["training.batch_tokens=2000", "model.dropout=0.2", "averaging.best=null", "validation.every=9"]
    with pytest.raises(RecipeError) as caught:
        load_recipe("base", overrides=[*overrides, *others])
    assert caught.value.where == f"--set {overrides[where]}"


def test_directions_without_their_symbols_are_told() -> None:
    with pytest.raises(RecipeError, match="directions without pairs need target_symbols"):
        validate(parse_document("pairs: []", source="config.yaml"), Directions, source="config.yaml", fix=FIX)
