"""A rehearsal: the same chain with the same model, on the first N pairs for a few updates, a matter of minutes.

What differs from the experiment is in these settings and nowhere else; a user's own settings of the same keys go first.
"""

from __future__ import annotations

from dataclasses import dataclass

from nmt_cli.preparing.corpora import TokenizerConfig
from nmt_cli.recipe.schema import Recipe
from nmt_cli.reproducing.settings import Settings

# Pieces of a side of a sentence of newspaper text with a vocabulary of some thousand pieces, roughly.
_PIECES_A_PAIR = 35
_MOST_CHECKPOINTS = 5
_MOST_LINES = 100
_SMALLEST_VOCABULARY = 1000


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal on `limit` pairs sets: in the corpus, in the recipe, and how many lines it translates."""

    limit: int
    corpus_settings: tuple[str, ...]
    recipe_settings: tuple[str, ...]
    lines: int

    def folder(self, name: str) -> str:
        """The name of a folder of the rehearsal beside the experiment's own."""
        return f"{name}-limit-{self.limit}"


def rehearse(recipe: Recipe, tokenizer: TokenizerConfig, *, limit: int, settings: Settings) -> Rehearsal:
    """The rehearsal of a recipe and of a corpus's tokenizer, which have the user's `settings` in them.

    Updates are about one pass over the pairs, and at least as many as the checkpoints that are averaged: those of the
    recipe, but no more than five. The schedule stays, so that the learning rate is that of the first updates.
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
