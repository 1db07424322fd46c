"""The settings of a reproduction: the user's own, and the ones of a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import create_model

from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.preparing.corpus import Corpus, TokenizerConfig
from nmt_cli.recipe.loading import flatten, parse_override
from nmt_cli.recipe.mistakes import dotted, fields_at, suggest
from nmt_cli.recipe.schema import Recipe, Section

# Keys of a corpus file that do not change its text.
KEYS_WITHOUT_EFFECT = frozenset({"description", "licence", "citation", "pairs", "bytes"})

_AMBIGUOUS = Recipe.model_fields.keys() & Corpus.model_fields.keys()
_FIELDS: dict[str, Any] = {
    key: (field.annotation, ...)
    for key, field in {**Recipe.model_fields, **Corpus.model_fields}.items()
    if key not in _AMBIGUOUS and key != "limit"
}
# Where a near match of an unknown key is looked for; nothing is read by it.
_EITHER = create_model("_EITHER", __base__=Section, **_FIELDS)
# Pieces of a side of a sentence of newspaper text with a vocabulary of some thousand pieces, roughly.
_PIECES_A_PAIR = 35
_MOST_CHECKPOINTS = 5
_MOST_LINES = 100
_SMALLEST_VOCABULARY = 1000


@dataclass(frozen=True, slots=True)
class Overrides:
    """The user's settings as they were given, each `key=value`."""

    given: tuple[str, ...] = ()

    @property
    def recipe(self) -> tuple[str, ...]:
        """The settings of the recipe, for `nmt train`."""
        return tuple(setting for setting in self.given if _first_part(setting) in Recipe.model_fields)

    @property
    def corpus(self) -> tuple[str, ...]:
        """The settings of the corpus file, for `nmt prepare`."""
        return tuple(setting for setting in self.given if _first_part(setting) not in Recipe.model_fields)

    @property
    def changing(self) -> tuple[str, ...]:
        """The settings that make it another experiment: all except the keys that do not change the text."""
        return tuple(setting for setting in self.given if _first_part(setting) not in KEYS_WITHOUT_EFFECT)

    def sets_in_corpus(self, key: str) -> bool:
        """True if a key of the corpus file, written with its sections, is among the settings."""
        return any(dotted(path) == key for one in self.corpus for path in flatten(parse_override(one).values))


def read_overrides(given: Sequence[str], *, experiment: str) -> Overrides:
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
    return Overrides(tuple(given))


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The settings of a rehearsal on `limit` pairs, and the number of lines that it translates."""

    limit: int
    corpus_settings: tuple[str, ...]
    recipe_settings: tuple[str, ...]
    lines: int

    def folder(self, name: str) -> str:
        """The folder of a rehearsal, named after the experiment's own."""
        return f"{name}-limit-{self.limit}"


def rehearse(recipe: Recipe, tokenizer: TokenizerConfig, *, limit: int, settings: Overrides) -> Rehearsal:
    """The rehearsal of a recipe and of a corpus's tokenizer, which have the user's `settings` in them.

    Updates are about one pass over the pairs, and at least as many as the checkpoints that are averaged: as many as the
    recipe says, but no more than five. The schedule stays, so the learning rate is the one of the first updates.
    """
    chosen = {setting.partition("=")[0].strip() for setting in settings.recipe}
    if recipe.averaging.last is None:
        chosen.add("averaging.last")  # the best are averaged instead, by a setting of the user's
    averaged = recipe.averaging.last or recipe.averaging.best or 1
    one_pass = -(-limit * _PIECES_A_PAIR // recipe.training.batch_tokens)
    updates = min(max(min(averaged, _MOST_CHECKPOINTS), one_pass), recipe.training.updates)
    if "training.updates" in chosen:
        updates = recipe.training.updates
    checkpoints = averaged if "averaging.last" in chosen else min(averaged, _MOST_CHECKPOINTS, updates)
    lines = min(limit, _MOST_LINES)
    is_sized = settings.sets_in_corpus("tokenizer.vocab_size") or tokenizer.taken_from is not None
    vocab_size = min(tokenizer.vocab_size, max(_SMALLEST_VOCABULARY, limit))
    values = {
        "training.updates": updates,
        "training.log_every": max(updates // 10, 1),
        "training.checkpoint_every": max(updates // checkpoints, 1),
        "training.keep_last": checkpoints,
        "averaging.last": checkpoints,
        "validation.every": updates,
        "validation.max_sentences": lines,
    }
    return Rehearsal(
        limit=limit,
        corpus_settings=() if is_sized else (f"tokenizer.vocab_size={vocab_size}",),
        recipe_settings=tuple(f"{key}={value}" for key, value in values.items() if key not in chosen),
        lines=lines,
    )


def _check_key(path: tuple[str, ...], *, setting: str) -> None:
    """Raise RecipeError if a part of the path is in neither schema."""
    for length in range(1, len(path) + 1):
        allowed, place = fields_at(_EITHER, path[: length - 1], values={}), path[:length]
        if not allowed:
            return  # below a value that is no section, of which the schema itself tells what it should be
        if place[-1] not in allowed:
            hint = suggest({"type": "extra_forbidden"}, place, schema=_EITHER, values={}, fix="")
            raise RecipeError(f"unknown key {dotted(place)!r}", where=f"--set {setting}", hint=hint)


def _first_part(setting: str) -> str:
    return setting.partition("=")[0].partition(".")[0].strip()
