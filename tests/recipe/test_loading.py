"""Recipes from files and by name, through `extends` and `--set`, with the origin of every value."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.errors import RecipeError
from nmt_cli.recipe.few_pairs import few_pairs_warning
from nmt_cli.recipe.loading import (
    dump_recipe,
    load_recipe,
    packaged_names,
    parse_recipe,
    resolve_recipe,
)
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.recipe.section import flatten

COUNT = "write a whole number greater than 0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, far from the repository."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def refuse(reference: str | Path, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(reference, overrides=overrides)
    return caught.value


def test_a_chain_of_parents_is_laid_one_over_the_other(folder: Path) -> None:
    write("a.yaml", "model: {d_model: 128, d_ff: 256}\ntraining: {updates: 10}")
    write("deep/b.yaml", "extends: ../a.yaml\nmodel: {d_ff: 512}")
    recipe = load_recipe(write("c.yaml", "extends: deep/b.yaml\ntraining: {seed: 7}"))
    assert (recipe.model.d_model, recipe.model.d_ff) == (128, 512)
    assert (recipe.training.updates, recipe.training.seed) == (10, 7)


def test_a_recipe_is_called_as_its_file_and_inherits_no_description(folder: Path) -> None:
    write("a.yaml", "name: parent\ndescription: of the parent")
    resolved = resolve_recipe(write("c-1.yaml", "extends: a.yaml"), overrides=[])
    assert (resolved.recipe.name, resolved.recipe.description) == ("c-1", "")
    assert (resolved.origins["name"], resolved.origins["description"]) == ("c-1.yaml", "default")


def test_another_optimizer_replaces_the_parent_s_and_the_same_merges(folder: Path) -> None:
    write("a.yaml", "training: {optimizer: {name: adamw, weight_decay: 0.1, beta1: 0.8}}")
    other = load_recipe(write("b.yaml", "extends: a.yaml\ntraining: {optimizer: {name: adam}}"))
    assert other.training.optimizer.model_dump() == {"name": "adam", "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9}
    same = load_recipe(write("c.yaml", "extends: a.yaml\ntraining: {optimizer: {beta1: 0.7}}"))
    assert same.training.optimizer.model_dump()["weight_decay"] == 0.1
    assert same.training.optimizer.beta1 == 0.7


def test_recipes_in_a_circle_are_refused(folder: Path) -> None:
    write("a.yaml", "extends: b.yaml")
    write("b.yaml", "name: b\nextends: ./a.yaml")
    error = refuse("a.yaml")
    assert error.message == "recipes extend each other in a circle: a.yaml -> b.yaml -> a.yaml"
    assert (error.where, error.hint) == ("b.yaml:2", "remove this line")
    assert "circle: me.yaml -> me.yaml" in refuse(write("me.yaml", "extends: me.yaml")).message


def test_a_missing_parent_is_refused_with_its_nearest_name(folder: Path) -> None:
    write("small-model.yaml", "model: {d_model: 64}")
    error = refuse(write("a.yaml", "# mine\nextends: smal-model.yaml"))
    assert error.message == "the parent recipe 'smal-model.yaml' does not exist"
    assert (error.where, error.hint) == ("a.yaml:2", "did you mean small-model.yaml?")
    error = refuse(write("sub/b.yaml", "extends: qqqqqqqq.yaml"))
    assert error.hint == "write a path relative to sub, or a packaged recipe"


@pytest.mark.parametrize("parent", ["[a.yaml, b.yaml]", "null", "7"])
def test_only_one_parent_can_be_named(folder: Path, parent: str) -> None:
    error = refuse(write("a.yaml", f"extends: {parent}"))
    assert (error.message, error.where, error.hint) == (
        "extends should be one file",
        "a.yaml:1",
        "write extends: base.yaml",
    )


def test_one_s_own_recipe_extends_a_packaged_one_unless_its_own_lies_beside(folder: Path) -> None:
    mine = write("mine/mine.yaml", "extends: base.yaml\nmodel: {dropout: 0.2}")
    assert (load_recipe(mine).model.d_ff, load_recipe(mine).model.dropout) == (2048, 0.2)
    write("base.yaml", "model: {d_ff: 64}")
    assert load_recipe(mine).model.d_ff == 2048, "the file in the working folder is not beside the recipe"
    write("mine/base.yaml", "model: {d_ff: 96}")
    assert load_recipe(mine).model.d_ff == 96
    assert load_recipe(write("small.yaml", "extends: small.yaml")).model == load_recipe("small").model


def test_packaged_recipes_are_found_by_name_anywhere(folder: Path) -> None:
    assert load_recipe("base").name == "base"
    assert load_recipe("base.yaml").model == load_recipe("base").model
    assert load_recipe("table3/a-h1").model.heads == 1
    write("base.yaml", "model: {heads: 2}")
    assert load_recipe("base.yaml").model.heads == 2, "a file that is there comes first"


def test_packaged_corpora_are_no_recipes() -> None:
    assert not any(name.startswith("corpora") for name in packaged_names(kind="recipe"))
    error = refuse("corpora/demo")
    assert error.message == "there is no recipe 'corpora/demo'"


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("bsae", "did you mean nmt train base?"),
        ("table3/bsae", "did you mean nmt train table3/base?"),
        ("my-widee.yaml", "did you mean nmt train 'my wide.yaml'?"),
        ("qqqqqqqq", "take a file, or base, base-en-fr, big"),
        ("/", "take a file, or base, base-en-fr, big"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(folder: Path, reference: str, hint: str) -> None:
    write("my wide.yaml", "model: {d_model: 128}")
    error = refuse(reference)
    assert (error.message, error.where) == (f"there is no recipe {reference!r}", reference)
    assert error.hint.startswith(hint)


def test_set_gives_typed_values(folder: Path) -> None:
    file = write("a.yaml", "model: {d_model: 128}\ntraining: {clip_norm: 2.0, optimizer: {name: adam, beta2: 0.98}}")
    recipe = load_recipe(
        file,
        overrides=[
            "training.updates=1000",
            "training.clip_norm=null",
            "training.optimizer.beta2=0.997",
            "training.schedule={name: cosine, peak: 5e-4, warmup_updates: 100}",
            "model.attention_bias=true",
            "name='1e3'",
            "description=a = b",
            "training.updates = 2000",
        ],
    )
    assert recipe.training.updates == 2000, "the last one wins, and spaces do not matter"
    assert recipe.training.clip_norm is None
    assert recipe.training.optimizer.beta2 == 0.997
    assert recipe.training.schedule.model_dump() == {"name": "cosine", "peak": 5e-4, "warmup_updates": 100}
    assert recipe.model.attention_bias is True
    assert (recipe.name, recipe.description, recipe.model.d_model) == ("1e3", "a = b", 128)


def test_the_order_of_set_does_not_matter_to_a_section_of_another_kind(folder: Path) -> None:
    given = ["training.optimizer.beta2=0.999", "training.schedule.peak=1e-3", "training.schedule.name=cosine"]
    given += ["training.optimizer.name=adamw"]
    training = load_recipe("base", overrides=given).training
    assert training == load_recipe("base", overrides=given[::-1]).training
    assert (training.optimizer.name, training.optimizer.beta2) == ("adamw", 0.999)


@pytest.mark.parametrize("name", ["größe.yaml", "my recipe.yaml", "模型.yaml"])
def test_a_recipe_may_be_called_anything(folder: Path, name: str) -> None:
    assert load_recipe(write(name, "extends: base.yaml")).training == load_recipe("base").training


def test_set_merges_into_sections_that_have_only_defaults(folder: Path) -> None:
    recipe = load_recipe(write("a.yaml", "name: a"), overrides=["model={heads: 4, d_k: 16}", "model.d_v=32"])
    assert (recipe.model.heads, recipe.model.d_k, recipe.model.d_v, recipe.model.d_ff) == (4, 16, 32, 2048)


@pytest.mark.parametrize("text", ["training.updates", "training..updates=5", ""])
def test_set_without_key_or_value_is_refused(folder: Path, text: str) -> None:
    error = refuse("base", text)
    assert error.message == f"--set takes key=value, not {text!r}"
    assert (error.where, error.hint) == (f"--set {text}", "for example --set training.updates=1000")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("model.d_modl=8", "unknown key 'model.d_modl'", "did you mean model.d_model?"),
        ("model.heads=[1", "cannot read the value '[1'", "quote it as in a YAML file"),
        ("model={heads: 1, heads: 2}", "the key 'heads' is given twice", "remove one of them"),
        ("training.updates.x=1", "training.updates is a section, but should be a whole number", COUNT),
        ("training.updates=0", "training.updates is 0, but should be greater than 0", COUNT),
        ("extends=big.yaml", "unknown key 'extends'", "allowed here: name"),
        ("training.updates=", "--set training.updates= has no value", "give one: --set training.updates=VALUE"),
    ],
)
def test_a_wrong_set_is_refused_and_named(folder: Path, text: str, message: str, hint: str) -> None:
    error = refuse("base", text)
    assert error.message == message
    assert error.where == f"--set {text}"
    assert error.hint.startswith(hint)


@pytest.mark.parametrize("own", ["training: {keep_last: 3}", "model: {d_model: 500}"])
def test_a_mistake_of_several_settings_is_told_of_the_recipe_and_not_of_its_parent(folder: Path, own: str) -> None:
    assert refuse(write("mine.yaml", f"extends: base.yaml\n{own}")).where == "mine.yaml:2"


FOREIGN = {
    "fairseq": "task: translation\ncriterion: label_smoothed_cross_entropy\nmodel: {_name: transformer_wmt_en_de_big}",
    "OpenNMT-py": "data: {corpus_1: {path_src: a.en}}\nsrc_vocab: a.vocab\nsave_model: run/model\ntrain_steps: 9",
    "Marian": "train-sets: [a.en, a.de]\nvocabs: [a.spm, a.spm]\ndim-emb: 512",
    "Sockeye": "prepared_data: p\nnum_embed: '512:512'\ntransformer_model_size: '512:512'",
}


@pytest.mark.parametrize("toolkit", FOREIGN)
def test_a_configuration_of_another_toolkit_is_refused_with_the_page_that_maps_it(folder: Path, toolkit: str) -> None:
    error = refuse(write("other.yaml", FOREIGN[toolkit]))
    assert error.message.startswith("this is no recipe: it has the keys ")
    assert (error.where, "docs/how-to/other-toolkits.md" in error.hint) == ("other.yaml", True)


def test_every_value_has_its_origin(folder: Path) -> None:
    write("a.yaml", "model:\n  d_model: 128\n  d_ff: 256\ntraining: {optimizer: {name: adamw, beta1: 0.8}}")
    file = write("b.yaml", "extends: a.yaml\n\nmodel: {d_ff: 512}\naveraging:\n  last: 3")
    resolved = resolve_recipe(file, overrides=["training.updates=9", "decoding={beam: 2}"])
    leaves = [".".join(path) for path in flatten(resolved.recipe.model_dump(mode="json"))]
    assert list(resolved.origins) == leaves
    named = {key: origin for key, origin in resolved.origins.items() if origin != "default"}
    assert named == {
        "name": "b.yaml",
        "model.d_model": "a.yaml:2",
        "model.d_ff": "b.yaml:3",
        "model.d_k": "d_model / heads",
        "model.d_v": "d_model / heads",
        "training.updates": "--set training.updates=9",
        "training.optimizer.name": "a.yaml:4",
        "training.optimizer.beta1": "a.yaml:4",
        "averaging.last": "b.yaml:5",
        "decoding.beam": "--set decoding={beam: 2}",
    }


@pytest.mark.parametrize(
    "overrides", [[], ["description='5e-4'", "name='0o14'", "corpus='no'"], ["description='µ: #\"'"]]
)
def test_a_resolved_recipe_reads_back_equal(overrides: list[str]) -> None:
    recipe = load_recipe("base", overrides=overrides)
    assert parse_recipe(dump_recipe(recipe), source="recipe.yaml") == recipe


def test_a_stored_recipe_that_was_edited_wrongly_is_refused() -> None:
    text = dump_recipe(load_recipe("base")).replace("corpus: wmt14-en-de", "corpus: [many]")
    with pytest.raises(RecipeError, match="corpus is a list") as caught:
        parse_recipe(text, source="runs/x/recipe.yaml")
    assert (caught.value.where or "").startswith("runs/x/recipe.yaml:")
    assert caught.value.hint == "use the file as nmt wrote it"


def test_a_file_that_is_not_utf8_is_refused_with_its_line(folder: Path) -> None:
    Path("a.yaml").write_bytes("name: a\ndescription: größer".encode("latin-1"))
    error = refuse("a.yaml")
    assert (error.message, error.where, error.hint) == ("a.yaml is not UTF-8", "a.yaml:2", "save it as UTF-8")


def test_a_file_with_a_byte_order_mark_is_read(folder: Path) -> None:
    Path("a.yaml").write_bytes(b"\xef\xbb\xbfmodel: {heads: 2}\r\n")
    assert load_recipe("a.yaml").model.heads == 2


@pytest.mark.parametrize(
    ("settings", "widths"),
    [
        ([], (64, 64)),
        (["model.heads=16"], (32, 32)),
        (["model.d_model=256"], (32, 32)),
        (["model.d_k=16"], (16, 64)),
        (["model.d_v=null", "model.heads=4", "model.d_k=16"], (16, 128)),
    ],
)
def test_the_widths_of_a_head_follow_from_d_model_and_heads_unless_given(
    folder: Path, settings: list[str], widths: tuple[int, int]
) -> None:
    resolved = resolve_recipe("base", overrides=settings)
    assert (resolved.recipe.model.d_k, resolved.recipe.model.d_v) == widths
    is_given = any("d_k=" in setting for setting in settings)
    assert resolved.origins["model.d_k"] == ("--set model.d_k=16" if is_given else "d_model / heads")
    assert resolved.origins["model.d_v"] == "d_model / heads"


@pytest.mark.parametrize(
    ("source", "target", "model"),
    [("en", "de", "opus-mt-en-de"), ("eng", "pt_BR", "opus-mt-en-pt"), ("zh-Hant", "fra", "opus-mt-zh-fr")],
)
def test_few_pairs_are_answered_with_the_public_model_of_their_languages(source: str, target: str, model: str) -> None:
    pair = LanguagePair(source=source, target=target)
    warning = few_pairs_warning("my memory", num_pairs=49_999, pair=pair)
    assert warning is not None
    expected = f"nmt prepare ... --set tokenizer.taken_from=Helsinki-NLP/{model} -o 'data/my memory-tuned'"
    assert warning[1] == expected
    assert few_pairs_warning("my memory", num_pairs=50_000, pair=pair) is None
    assert few_pairs_warning("demo", num_pairs=3_000, pair=pair) is None
