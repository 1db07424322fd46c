"""The plan of a reproduction: the experiment, its recipe and corpus with every setting, and its folders."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import create_model

from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.preparing.corpus import DESCRIPTIVE_KEYS, Corpus, TokenizerConfig
from nmt_cli.preparing.corpus_loading import load_corpus
from nmt_cli.recipe.counterparts import counterpart_of
from nmt_cli.recipe.key_paths import dotted_key, fields_at, flatten
from nmt_cli.recipe.loading import load_recipe, parse_override
from nmt_cli.recipe.mistakes import suggest_key
from nmt_cli.recipe.schema import Recipe, SubwordSampling, num_parameters
from nmt_cli.recipe.section import Section
from nmt_cli.reproducing.experiments import Experiment

logger = logging.getLogger(__name__)

# The keys that recipe and corpus file share, except for the tokenizer sections, whose keys differ.
_KEYS_OF_BOTH = (Recipe.model_fields.keys() & Corpus.model_fields.keys()) - {"tokenizer"}
# Recipe and corpus as one schema: a wrong key is compared with the keys of both.
_FIELDS_OF_EITHER: dict[str, Any] = {
    key: (field.annotation, ...)
    for key, field in {**Recipe.model_fields, **Corpus.model_fields}.items()
    if key not in _KEYS_OF_BOTH and key != "limit"
} | {"tokenizer": (SubwordSampling | TokenizerConfig, ...)}
_RecipeOrCorpus = create_model("_RecipeOrCorpus", __base__=Section, **_FIELDS_OF_EITHER)
# Roughly the pieces on either side of a pair of newspaper sentences, with a vocabulary of some thousand pieces.
_PIECES_PER_SIDE = 35
_MAX_REHEARSED_CHECKPOINTS = 5
_MIN_REHEARSED_UPDATES = 3  # for a schedule that rises, and falls until the last update
_MAX_REHEARSED_LINES = 100
_MIN_REHEARSED_VOCABULARY = 1000


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings, each `key=value`: of the recipe for `nmt train`, and of the corpus file for `nmt prepare`."""

    recipe: tuple[str, ...] = ()
    corpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReproductionPlan:
    """An experiment to reproduce, with its recipe, corpus and folders.

    `limit` is the number of pairs of a rehearsal. `settings` are the user's settings, then the rehearsal's.
    `changes` are the user's settings, except for descriptions of the corpus and the choice among the experiment's
    corpora. Both lack what the rehearsal shortens.
    """

    experiment: Experiment
    recipe: Recipe
    corpus: Corpus
    data: Path
    run: Path
    settings: Overrides
    changes: Sequence[str]
    limit: int | None

    @property
    def folder(self) -> Path:
        """The folder of translations, scores, and records of the stages."""
        return self.run / "reproduction"

    @property
    def num_parameters(self) -> int:
        """The parameters of the model."""
        pieces = self.corpus.tokenizer.vocab_size
        return num_parameters(self.recipe.model, source_vocab=pieces, target_vocab=pieces)

    def num_translated(self, num_lines: int) -> int:
        """How many of the lines of a test set are translated."""
        return num_lines if self.limit is None else min(self.limit, _MAX_REHEARSED_LINES)


def plan_reproduction(
    experiment: Experiment, *, settings: Sequence[str], limit: int | None, data: Path | None, run: Path | None
) -> ReproductionPlan:
    """The plan of an experiment, or, with a limit of pairs, of its rehearsal; RecipeError for wrong settings.

    UsageError for the setting of a corpus that is not the experiment's.
    """
    user_settings = split_settings(settings, experiment=experiment.name)
    recipe = load_recipe(experiment.recipe, overrides=user_settings.recipe)
    if recipe.corpus is None or recipe.corpus not in experiment.corpora:
        raise UsageError(
            f"{experiment.name} is reproduced on {' or '.join(experiment.corpora)}, not on {recipe.corpus}",
            where="--set corpus",
            hint="leave it out; another corpus takes nmt prepare, nmt train, nmt average, nmt decode and nmt score",
        )
    corpus = load_corpus(recipe.corpus, overrides=user_settings.corpus).corpus
    remaining, overrides, suffix = list(settings), user_settings, ""
    if limit is not None:
        rehearsal = rehearsal_overrides(recipe, corpus.tokenizer, limit=limit, user_settings=user_settings)
        remaining = _settings_that_stay(settings, rehearsal)
        of_recipe = [setting for setting in user_settings.recipe if setting in remaining]
        overrides = Overrides((*of_recipe, *rehearsal.recipe), (*user_settings.corpus, *rehearsal.corpus))
        recipe = load_recipe(experiment.recipe, overrides=overrides.recipe)
        corpus = load_corpus(corpus.name, overrides=[*overrides.corpus, f"limit={limit}"]).corpus
        suffix = f"-limit-{limit}"
    return ReproductionPlan(
        experiment=experiment,
        recipe=recipe,
        corpus=corpus,
        data=data or Path("data") / f"{corpus.name}{suffix}",
        run=run or Path("runs") / f"{experiment.recipe}{suffix}",
        settings=overrides,
        changes=[setting for setting in remaining if _first_key(setting) not in DESCRIPTIVE_KEYS | {"corpus"}],
        limit=limit,
    )


def split_settings(settings: Sequence[str], *, experiment: str) -> Overrides:
    """The settings, told apart by the file that has their keys: the recipe or the corpus file.

    RecipeError, with the nearest key, for a key of neither file. UsageError for a key of both files, and for `limit`,
    which is the option --limit.
    """
    for setting in settings:
        key = _first_key(setting)
        if key in _KEYS_OF_BOTH:
            message, hint = f"the recipe and the corpus both have a key {key}", "leave it out"
            hint += "; -o names the folder of the run, --data that of the data" if key == "name" else ""
            raise UsageError(message, where=f"--set {setting}", hint=hint)
        if key == "limit":
            hint = f"nmt reproduce {experiment} --limit 10000 rehearses it on so many pairs"
            raise UsageError("the limit of a reproduction is an option", where=f"--set {setting}", hint=hint)
        for path, value in _leaves(setting).items():
            _check_key(path, value, setting=setting)
    recipe = tuple(setting for setting in settings if _belongs_to_recipe(setting))
    return Overrides(recipe, tuple(setting for setting in settings if setting not in recipe))


def rehearsal_overrides(
    recipe: Recipe, tokenizer: TokenizerConfig, *, limit: int, user_settings: Overrides
) -> Overrides:
    """The settings of a rehearsal on `limit` pairs; recipe and tokenizer have the user's settings in them.

    The number of updates is about one pass over the pairs, at least three, and at least the number of averaged
    checkpoints. A rehearsal averages at most five checkpoints, unless the user sets a number. The schedule stays, so
    the learning rate is the one of the first updates. If a schedule ends with the last update, its phases get shorter.
    The user's settings stay too, except for an interval that leaves no room for the checkpoints.
    """
    settings = (*user_settings.recipe, *user_settings.corpus)
    user_keys = {dotted_key(path) for setting in settings for path in _leaves(setting)}
    _, num_checkpoints = recipe.averaging.choice
    training, updates = recipe.training, recipe.training.updates
    if "averaging.last" not in user_keys:
        num_checkpoints = min(num_checkpoints, updates, _MAX_REHEARSED_CHECKPOINTS)
    if "training.updates" not in user_keys:
        one_pass = math.ceil(limit * _PIECES_PER_SIDE / training.batch_tokens)
        updates = min(max(num_checkpoints, one_pass, _MIN_REHEARSED_UPDATES), updates)
    checkpoint_every = max(updates // num_checkpoints, 1)
    recipe_values = {
        "training.updates": updates,
        "training.log_every": max(updates // 10, 1),
        "training.checkpoint_every": checkpoint_every,
        "training.keep_last": num_checkpoints,
        "averaging.last": num_checkpoints,
        # Only validated checkpoints can be the best.
        "validation.every": checkpoint_every if recipe.averaging.best else updates,
        "validation.max_sentences": min(limit, _MAX_REHEARSED_LINES),
    }
    lengths = {"training.checkpoint_every": training.checkpoint_every, "validation.every": recipe.validation.every}
    if training.schedule.name in ("cosine", "wsd"):  # they end with the last update
        phases = {name: length for name, length in training.schedule if name.endswith("_updates")}
        lengths |= {f"training.schedule.{name}": length for name, length in phases.items()}
        longest = max(updates // 10, 1)
        recipe_values |= {f"training.schedule.{name}": min(length, longest) for name, length in phases.items()}
    user_keys -= {key for key, length in lengths.items() if length > recipe_values[key]}  # the user's are too long
    corpus_values = {}
    if not tokenizer.comes_from_elsewhere:
        corpus_values["tokenizer.vocab_size"] = min(tokenizer.vocab_size, max(_MIN_REHEARSED_VOCABULARY, limit))
    return Overrides(
        recipe=tuple(f"{key}={value}" for key, value in recipe_values.items() if key not in user_keys),
        corpus=tuple(f"{key}={value}" for key, value in corpus_values.items() if key not in user_keys),
    )


def _settings_that_stay(settings: Sequence[str], rehearsal: Overrides) -> list[str]:
    """The user's settings; a warning names each setting that the rehearsal shortens, and leaves it out."""
    shortened = {setting.partition("=")[0] for setting in rehearsal.recipe}
    keys_of = {setting: {dotted_key(path) for path in _leaves(setting)} for setting in settings}
    left_out = [setting for setting, keys in keys_of.items() if keys and keys <= shortened]
    for setting in left_out:
        logger.warning("--set %s is left out: the rehearsal is shorter", setting)
    return [setting for setting in settings if setting not in left_out]


def _leaves(setting: str) -> dict[tuple[str, ...], Any]:
    """The values that a --set sets, by the paths of their keys."""
    return flatten(parse_override(setting).values)


def _check_key(path: tuple[str, ...], value: Any, *, setting: str) -> None:
    """Raise RecipeError if a part of the path is in neither schema."""
    for length in range(1, len(path) + 1):
        prefix = path[:length]
        allowed = fields_at(_RecipeOrCorpus, prefix[:-1], values={})
        if not allowed:
            return  # the path goes on below a value that is no section: the schema has an error of its own for that
        if prefix[-1] not in allowed:
            known = (*Corpus.other_toolkits, *Recipe.other_toolkits)
            counterpart = counterpart_of(prefix[-1], known)
            answer = None if counterpart is None else counterpart.answer(value, warmup_updates=None)
            hint = suggest_key(prefix, allowed, schema=_RecipeOrCorpus, answer=answer, as_flags=True)
            raise RecipeError(f"unknown key {dotted_key(prefix)!r}", where=f"--set {setting}", hint=hint)


def _belongs_to_recipe(setting: str) -> bool:
    """Whether the first key that a setting sets is the recipe's; both files have a `tokenizer`, with other keys."""
    section, *keys = next(iter(_leaves(setting)), (_first_key(setting),))
    if section == "tokenizer" and keys:
        return keys[0] in SubwordSampling.model_fields
    return section in Recipe.model_fields


def _first_key(setting: str) -> str:
    return setting.partition("=")[0].partition(".")[0].strip()
