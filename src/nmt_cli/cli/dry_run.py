"""What `nmt train --dry-run` prints: a recipe that can be trained, each value with its origin, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt_cli.bundle.run import InitialModel
    from nmt_cli.dataset.manifest import Manifest
    from nmt_cli.recipe.loading import ResolvedRecipe
    from nmt_cli.recipe.mistakes import KeyPath
    from nmt_cli.recipe.schema import Recipe, TrainingConfig
    from nmt_cli.training.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Pieces:
    """The sizes of the vocabularies, where they come from, what prepared data holds, and the model to begin with."""

    source: int
    target: int
    whence: str
    manifest: Manifest | None
    initial: InitialModel | None


def describe_plan(resolved: ResolvedRecipe, pieces: Pieces, *, device: str, world_size: int) -> str:
    """The recipe as YAML with the origin of each value as a comment, then what it needs, as comments too."""
    from nmt_cli.recipe.documents import dump_annotated

    origins: dict[KeyPath, str] = {tuple(key.split(".")): origin for key, origin in resolved.origins.items()}
    recipe = dump_annotated(resolved.recipe.model_dump(mode="json"), origins)
    needs = _needs(resolved.recipe, pieces, device=device, world_size=world_size)
    return recipe + "\n" + "".join(f"# {line}\n" for line in needs)


def _needs(recipe: Recipe, pieces: Pieces, *, device: str, world_size: int) -> Iterator[str]:
    from nmt_cli.devices import choose_device, choose_precision
    from nmt_cli.training.estimate import estimate

    chosen, training = choose_device(device), recipe.training
    precision = choose_precision(training.precision, device=chosen, training=True)
    needs = estimate(
        recipe, source_vocab=pieces.source, target_vocab=pieces.target, precision=precision, world_size=world_size
    )
    total = needs.weight_bytes + needs.activation_bytes
    yield f"vocabulary: {pieces.source:,} source and {pieces.target:,} target pieces ({pieces.whence})"
    if pieces.initial is not None:
        yield f"begins with: the weights of {pieces.initial.path}"
    yield f"parameters: {needs.num_parameters:,} ({needs.num_parameters / 1e6:.1f} million)"
    yield f"device: {chosen.type}, {precision}" + (f", {world_size} of them" if world_size > 1 else "")
    yield f"batch: {training.batch_tokens:,} tokens an update = {_spread(training, needs, world_size=world_size)}"
    if pieces.manifest is not None:
        yield _epoch(pieces.manifest, recipe)
    yield (
        f"memory a device: about {total / 1e9:.1f} GB ({needs.weight_bytes / 1e9:.1f} weights and optimizer,"
        f" {needs.activation_bytes / 1e9:.1f} activations of {needs.tokens:,} tokens)"
    )


def _spread(training: TrainingConfig, needs: Estimate, *, world_size: int) -> str:
    """How an update is dealt out to devices and micro-batches."""
    most = training.max_tokens_per_device
    if most != "auto":
        return f"{world_size} device(s) x {needs.accumulation} micro-batch(es) of at most {most:,}"
    share = f"{world_size} device(s) x {needs.tokens:,}"
    return f"{share}, at once where memory holds them, else in equal parts: found at the start (auto)"


def _epoch(manifest: Manifest, recipe: Recipe) -> str:
    """How many updates an epoch has: one closes before either side would have more than its tokens."""
    counts = manifest.splits["train"]
    tokens = max(counts.source_tokens, counts.target_tokens)
    updates = max(1, round(tokens / recipe.training.batch_tokens))
    return f"epoch: about {updates:,} updates of {counts.pairs:,} pairs; {recipe.training.updates / updates:.1f} epochs"
