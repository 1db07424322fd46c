"""The settings of a reproduction: keys of the recipe and of the corpus file, told apart by their first part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import create_model

from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.preparing.corpora import Corpus
from nmt_cli.recipe.loading import flatten, parse_override
from nmt_cli.recipe.mistakes import dotted, fields_at, suggest
from nmt_cli.recipe.schema import Recipe, Section

# What a corpus may say differently and still be the same text.
WITHOUT_EFFECT = frozenset({"description", "licence", "citation", "mirror", "pairs", "bytes"})

_AMBIGUOUS = Recipe.model_fields.keys() & Corpus.model_fields.keys()
_FIELDS: dict[str, Any] = {
    key: (field.annotation, ...)
    for key, field in {**Recipe.model_fields, **Corpus.model_fields}.items()
    if key not in _AMBIGUOUS and key != "limit"
}
# Where a near match of an unknown key is looked for; nothing is read by it.
_EITHER = create_model("_EITHER", __base__=Section, **_FIELDS)


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings as they were given, each `key=value`."""

    given: tuple[str, ...] = ()

    @property
    def recipe(self) -> tuple[str, ...]:
        """Those of the recipe, for `nmt train`."""
        return tuple(setting for setting in self.given if _first_part(setting) in Recipe.model_fields)

    @property
    def corpus(self) -> tuple[str, ...]:
        """Those of the corpus file, for `nmt prepare`."""
        return tuple(setting for setting in self.given if _first_part(setting) not in Recipe.model_fields)

    @property
    def changing(self) -> tuple[str, ...]:
        """Those that make it another experiment: all but those that say where the same text comes from, or of it."""
        return tuple(setting for setting in self.given if _first_part(setting) not in WITHOUT_EFFECT)

    def sets_in_corpus(self, key: str) -> bool:
        """True where a key of the corpus file, given with its sections, is among them."""
        return any(dotted(path) == key for one in self.corpus for path in flatten(parse_override(one).values))


def read_settings(given: Sequence[str], *, experiment: str) -> Settings:
    """The settings, of which every key is one of the recipe or of the corpus file.

    RecipeError for an unknown key, with the nearest in either; UsageError for one that is not clear, or is an option.
    """
    for setting in given:
        document = parse_override(setting)
        key = _first_part(setting)
        if key in _AMBIGUOUS:
            raise UsageError(
                f"--set {key} could be that of the recipe or of the corpus",
                where=f"--set {setting}",
                hint="leave it out; -o names the folder of the run, --data that of the data",
            )
        if key == "limit":
            hint = f"nmt reproduce {experiment} --limit 10000 rehearses it on so many pairs"
            raise UsageError("the limit of a reproduction is an option", where=f"--set {setting}", hint=hint)
        for path in flatten(document.values):
            _check_key(path, setting=setting)
    return Settings(tuple(given))


def _check_key(path: tuple[str, ...], *, setting: str) -> None:
    """RecipeError where a part of the path is in neither schema."""
    for length in range(1, len(path) + 1):
        allowed, place = fields_at(_EITHER, path[: length - 1], values={}), path[:length]
        if not allowed:
            return  # below a value that is no section, of which the schema itself tells what it should be
        if place[-1] not in allowed:
            hint = suggest({"type": "extra_forbidden"}, place, schema=_EITHER, values={}, fix="")
            raise RecipeError(f"unknown key {dotted(place)!r}", where=f"--set {setting}", hint=hint)


def _first_part(setting: str) -> str:
    return setting.partition("=")[0].partition(".")[0].strip()
