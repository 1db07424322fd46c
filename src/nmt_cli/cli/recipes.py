"""`nmt recipes`: the recipes that come with nmt, how large their models are, and what they are for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli.cli.arguments import DebugOption, JsonOption, QuietOption, complete_packaged
from nmt_cli.cli.printing import print_facts, print_json, print_list

if TYPE_CHECKING:
    from nmt_cli.recipe.schema import Recipe

_COLUMNS = ("name", "parameters", "updates", "tokens", "corpus", "description")
_NUMBER_COLUMNS = ("parameters", "updates", "tokens")
_LOW_RATE = "--set training.schedule='{name: inverse_sqrt, peak: 1e-4, warmup_updates: 100}'"
MOST_PAIRS_FOR_SMALL, _MOST_PAIRS_FOR_MEDIUM = 100_000, 1_000_000


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE",
            help="Everything about one recipe.",
            show_default=False,
            autocompletion=complete_packaged("recipe"),
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """List the recipes that nmt train knows by name.

    Example: nmt recipes base
    """
    from nmt_cli.recipe.loading import find_yaml_file, load_recipe, packaged_names

    references = [name] if name is not None else sorted(packaged_names(kind="recipe"), key=lambda name: "/" in name)
    files = [find_yaml_file(reference, kind="recipe", command="nmt recipes") for reference in references]
    descriptions = [_describe(reference, load_recipe(file)) for reference, file in zip(references, files, strict=True)]
    if as_json:
        print_json(descriptions[0] if name is not None else descriptions)
    elif name is not None:
        print_facts(_facts(descriptions[0]))
    else:
        print_list(_COLUMNS, map(_table_row, descriptions), right_aligned=_NUMBER_COLUMNS, num_sentence_columns=1)


def recipe_for(corpus: str, *, num_pairs: int) -> str:
    """The packaged recipe for the prepared data of a corpus: the corpus's own, else one that fits the number of pairs.

    Variants in folders do not count.
    """
    from nmt_cli.recipe.loading import load_recipe, packaged_names

    if corpus in packaged_names(kind="corpus"):
        names = [name for name in packaged_names(kind="recipe") if "/" not in name]
        if own := next((name for name in names if load_recipe(name).corpus == corpus), None):
            return own
    if num_pairs <= MOST_PAIRS_FOR_SMALL:
        return "small"
    return "medium" if num_pairs <= _MOST_PAIRS_FOR_MEDIUM else "base"


def prepare_command(corpus: str | None, data: Path) -> str:
    """The command that prepares a recipe's corpus in `data`; a corpus that is not packaged has a file of its own."""
    from nmt_cli.recipe.loading import packaged_names

    is_packaged = corpus in packaged_names(kind="corpus")
    command = f"nmt prepare {corpus if is_packaged else 'FILE.yaml'}"
    is_usual = is_packaged and data == Path("data") / str(corpus)
    return command if is_usual else f"{command} -o {shlex.quote(str(data))}"


def train_command(recipe: str, data: Path, *, is_shared: bool, init_from: str | None) -> str:
    """The command that trains a recipe on prepared data, whose two languages share a vocabulary if `is_shared`.

    With a model to begin with, the rate is a low one: a high rate erases what the model knows.
    """
    command = f"nmt train {recipe} --data {shlex.quote(str(data))}"
    if init_from is not None:
        return f"{command} --init-from {shlex.quote(init_from)} {_LOW_RATE}"  # the model has its own tying
    return command if is_shared else f"{command} --set model.tying=target"  # all would need one vocabulary


def _describe(reference: str, recipe: Recipe) -> dict[str, Any]:
    """All facts about a recipe; `parameters` is null if the vocabulary of its corpus is not known yet.

    A recipe without a corpus is described with the default vocabulary of `nmt prepare`.
    """
    from nmt_cli.preparing.corpus import DEFAULT_VOCAB_SIZE
    from nmt_cli.preparing.corpus_loading import load_corpus
    from nmt_cli.recipe.loading import packaged_names
    from nmt_cli.recipe.schema import num_parameters

    size = DEFAULT_VOCAB_SIZE if recipe.corpus is None else None
    if recipe.corpus is not None and recipe.corpus in packaged_names(kind="corpus"):
        size = load_corpus(recipe.corpus, overrides=()).corpus.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE
    count = None if size is None else num_parameters(recipe.model, source_vocab=size, target_vocab=size)
    return {
        "name": reference,
        "description": recipe.description,
        "corpus": recipe.corpus,
        "vocabulary": size,
        "parameters": count,
        "model": recipe.model.model_dump(mode="json"),
        "updates": recipe.training.updates,
        "batch_tokens": recipe.training.batch_tokens,
        "schedule": recipe.training.schedule.model_dump(mode="json"),
        "optimizer": recipe.training.optimizer.model_dump(mode="json"),
    }


def _table_row(recipe: dict[str, Any]) -> list[str]:
    return [
        recipe["name"],
        "?" if recipe["parameters"] is None else f"{recipe['parameters'] / 1e6:.1f} M",
        f"{recipe['updates']:,}",
        f"{recipe['batch_tokens']:,}",
        recipe["corpus"] or "your own",
        recipe["description"].partition(". ")[0].removesuffix("."),
    ]


def _facts(recipe: dict[str, Any]) -> Iterator[tuple[str, str]]:
    model, schedule = recipe["model"], recipe["schedule"]
    yield "recipe", f"{recipe['name']}: {recipe['description'] or 'no description'}"
    yield "corpus", recipe["corpus"] or "your own"
    if recipe["parameters"] is not None:
        yield "parameters", f"{recipe['parameters']:,} with {recipe['vocabulary']:,} shared pieces"
    yield (
        "model",
        f"{model['encoder_layers']} + {model['decoder_layers']} layers, d_model {model['d_model']}, "
        f"d_ff {model['d_ff']}, {model['heads']} heads of {model['d_k']}, {model['norm']}-norm, "
        f"dropout {model['dropout']:g}",
    )
    yield "training", f"{recipe['updates']:,} updates of {recipe['batch_tokens']:,} tokens"
    rates = ", ".join(f"{key} {value}" for key, value in schedule.items() if key != "name")
    yield "schedule", f"{schedule['name']} ({rates}), {recipe['optimizer']['name']}"
    train = f"nmt train {shlex.quote(recipe['name'])}"
    if recipe["corpus"] is None:
        yield "next", "nmt prepare --train FILE --languages en-de"
    else:
        data = Path("data") / recipe["corpus"]
        yield "next", train if data.is_dir() else prepare_command(recipe["corpus"], data)
    yield "every value", f"{train} --dry-run"
