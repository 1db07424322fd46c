"""The plan of a reproduction: the experiment, its recipe and corpus with every setting, and its folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import UsageError
from nmt_cli.preparing.corpus import Corpus, load_corpus
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.reproducing.experiments import Experiment
from nmt_cli.reproducing.settings import Overrides, Rehearsal, read_overrides, rehearse
from nmt_cli.training.micro_batch_size import estimate


@dataclass(frozen=True, slots=True)
class Reproduction:
    """An experiment to reproduce, with its recipe, corpus and folders; `settings` are the user's own."""

    experiment: Experiment
    recipe: Recipe
    corpus: Corpus
    data: Path
    run: Path
    settings: Overrides
    rehearsal: Rehearsal | None

    @property
    def folder(self) -> Path:
        """The folder of translations, scores, and records of the stages."""
        return self.run / "reproduction"

    @property
    def num_parameters(self) -> int:
        """The parameters of the model."""
        pieces = self.corpus.tokenizer.vocab_size
        found = estimate(self.recipe, source_vocab=pieces, target_vocab=pieces, precision="fp32", world_size=1)
        return found.num_parameters

    @property
    def languages(self) -> str:
        """The pair of languages as `nmt score` takes it."""
        return f"{self.corpus.languages.source}-{self.corpus.languages.target}"

    @property
    def recipe_settings(self) -> tuple[str, ...]:
        """The settings that `nmt train` is given: a rehearsal's, then the user's."""
        return (*(self.rehearsal.recipe_settings if self.rehearsal else ()), *self.settings.recipe)

    @property
    def corpus_settings(self) -> tuple[str, ...]:
        """The settings that `nmt prepare` is given: a rehearsal's, then the user's."""
        return (*(self.rehearsal.corpus_settings if self.rehearsal else ()), *self.settings.corpus)


def plan_reproduction(
    experiment: Experiment, *, settings: Sequence[str], limit: int | None, data: Path | None, run: Path | None
) -> Reproduction:
    """The plan of an experiment, or, with a limit of pairs, of its rehearsal; RecipeError for wrong settings.

    UsageError for the setting of another corpus.
    """
    users = read_overrides(settings, experiment=experiment.name)
    recipe = load_recipe(experiment.recipe, overrides=users.recipe)
    if recipe.corpus != experiment.corpus:
        raise UsageError(
            f"{experiment.name} is reproduced on {experiment.corpus}, not on {recipe.corpus}",
            where="--set corpus",
            hint="leave it out; another corpus takes nmt prepare, nmt train, nmt average, nmt decode and nmt score",
        )
    corpus = load_corpus(experiment.corpus, overrides=users.corpus).corpus
    rehearsal = None
    if limit is not None:
        rehearsal = rehearse(recipe, corpus.tokenizer, limit=limit, settings=users)
        recipe = load_recipe(experiment.recipe, overrides=[*rehearsal.recipe_settings, *users.recipe])
        overrides = [*rehearsal.corpus_settings, *users.corpus, f"limit={limit}"]
        corpus = load_corpus(experiment.corpus, overrides=overrides).corpus

    def place(parent: str, name: str) -> Path:
        return Path(parent) / (name if rehearsal is None else rehearsal.folder(name))

    return Reproduction(
        experiment=experiment,
        recipe=recipe,
        corpus=corpus,
        data=data or place("data", corpus.name),
        run=run or place("runs", experiment.recipe),
        settings=users,
        rehearsal=rehearsal,
    )
