"""Recipes by name or file, with `extends`, `--set`, and the origin of each value."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Literal

from nmt_cli.errors import RecipeError, nearest_word
from nmt_cli.recipe.foreign_names import check_own_keys
from nmt_cli.recipe.mistakes import validate
from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import KeyPath, as_name, dotted_key, flatten
from nmt_cli.recipe.yaml_files import Document, dump_values, merge, parse_document, parse_setting, read_document

Kind = Literal["recipe", "corpus"]

_LIST_COMMANDS: dict[Kind, str] = {"recipe": "nmt recipes", "corpus": "nmt corpora"}
_DEFAULT_HINT = "write a value of that kind; nmt train base --dry-run shows one for each key"
# A child recipe is a system of its own: it does not inherit what its parent is called.
_KEYS_NOT_INHERITED = ("name", "description")
# Settings that follow from others if they are null.
_DERIVED_FROM: dict[KeyPath, str] = {("model", "d_k"): "d_model / heads", ("model", "d_v"): "d_model / heads"}


@dataclass(frozen=True, slots=True)
class ResolvedRecipe:
    """A recipe, and the origin of each value by dotted key: `file:line`, `--set ...` or `default`."""

    recipe: Recipe
    origins: dict[str, str]


def load_recipe(reference: str | Path, *, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file, or a recipe of the package by its name; `overrides` are `key.key=value`.

    Raises RecipeError with file and line for an unknown key, a wrong type or a value out of range.
    """
    return resolve_recipe(reference, overrides=overrides).recipe


def resolve_recipe(reference: str | Path, *, overrides: Sequence[str]) -> ResolvedRecipe:
    """Like `load_recipe`, with the origin of every value."""
    file = find_yaml_file(str(reference), kind="recipe", command="nmt train")
    named_after_file = Document({"name": as_name(file.stem, default="recipe")}, {("name",): str(file)})
    document = merge(named_after_file, _read_with_parents(file, children=()))
    document = merge(document, reduce(merge, map(parse_override, overrides), Document({}, {})))
    recipe = validate(document, Recipe, source=str(file), fix=_DEFAULT_HINT)
    given = flatten(document.values)

    def origin(path: tuple[str, ...]) -> str:
        is_derived = path in _DERIVED_FROM and given.get(path) is None
        return _DERIVED_FROM[path] if is_derived else document.origins.get(path, "default")

    keys = flatten(recipe.model_dump(mode="json"))
    return ResolvedRecipe(recipe, {dotted_key(path): origin(path) for path in keys})


def parse_recipe(text: str, *, source: str) -> Recipe:
    """The recipe in a YAML text without parents, as stored in a run."""
    document = parse_document(text, source=source)
    return validate(document, Recipe, source=source, fix="use the file as nmt wrote it")


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML with every value written out."""
    return dump_values(recipe.model_dump(mode="json"))


def packaged_folder() -> Path:
    """The folder of the package's own recipes: in the wheel, or at the top of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def find_yaml_file(reference: str, *, kind: Kind, command: str) -> Path:
    """The YAML file that an argument of `command` names: an existing file, else a recipe or corpus of the package.

    Raises RecipeError with the nearest name.
    """
    if Path(reference).is_file():
        return Path(reference)
    names = packaged_names(kind=kind)
    name = reference.removesuffix(".yaml")
    if name in names:
        folder = packaged_folder() / "corpora" if kind == "corpus" else packaged_folder()
        return folder / f"{name}.yaml"
    beside = map(str, Path(reference).parent.glob("*.yaml"))
    if near := nearest_word(reference, [*names, *beside]):
        hint = f"did you mean {command} {shlex.quote(near)}?"
    else:
        top_names = ", ".join(name for name in names if "/" not in name)
        hint = f"take a file, or {top_names}; {_LIST_COMMANDS[kind]} describes all"
    raise RecipeError(f"there is no {kind} {reference!r}", where=reference or None, hint=hint)


def packaged_names(*, kind: Kind) -> list[str]:
    """The names of the package's recipes or corpora."""
    folder = packaged_folder()
    if kind == "corpus":
        return sorted(file.stem for file in (folder / "corpora").glob("*.yaml"))
    files = [file.relative_to(folder).with_suffix("") for file in folder.rglob("*.yaml")]
    return sorted(file.as_posix() for file in files if file.parts[0] != "corpora")


def parse_override(text: str) -> Document:
    """The document that one `--set key.key=value` stands for."""
    flag = f"--set {text}"
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        hint = "for example --set training.updates=1000"
        raise RecipeError(f"--set takes key=value, not {text!r}", where=flag, hint=hint)
    if not value.strip():
        raise RecipeError(f"{flag} has no value", where=flag, hint=f"give one: --set {key}=VALUE")
    return parse_setting(value, path=path, source=flag)


def _read_with_parents(file: Path, *, children: tuple[Path, ...]) -> Document:
    """A recipe laid over the recipes that it extends; `children` are the files that led here."""
    document = read_document(file)
    check_own_keys(document.values, ["extends", *Recipe.model_fields], noun="recipe", where=str(file))
    if "extends" not in document.values:
        return document
    parent = document.values.pop("extends")
    where = document.origins.pop(("extends",))
    if not isinstance(parent, str):
        raise RecipeError("extends should be one file", where=where, hint="write extends: base.yaml")
    parent_file = _parent_file(parent, child=file, where=where)
    chain = (*children, file)
    if any(parent_file.samefile(member) for member in chain):
        circle = " -> ".join(member.name for member in (*chain, parent_file))
        raise RecipeError(f"recipes extend each other in a circle: {circle}", where=where, hint="remove this line")
    inherited = _read_with_parents(parent_file, children=chain)
    for key in _KEYS_NOT_INHERITED:
        inherited.values.pop(key, None)
        inherited.origins.pop((key,), None)
    return merge(inherited, document)


def _parent_file(parent: str, *, child: Path, where: str) -> Path:
    """The file that `extends` names in the recipe `child`: another one beside it, or else a recipe of the package."""
    # Without normpath, origins would read recipes/table3/../base.yaml.
    beside = Path(os.path.normpath(child.parent / parent))
    name, names = parent.removesuffix(".yaml"), packaged_names(kind="recipe")
    if name in names and (not beside.is_file() or beside.samefile(child)):
        return packaged_folder() / f"{name}.yaml"
    if beside.is_file():
        return beside
    near = nearest_word(name, [*names, *(other.stem for other in child.parent.glob("*.yaml") if other != child)])
    hint = f"did you mean {near}.yaml?" if near else f"write a path relative to {child.parent}, or a packaged recipe"
    raise RecipeError(f"the parent recipe {parent!r} does not exist", where=where, hint=hint)
