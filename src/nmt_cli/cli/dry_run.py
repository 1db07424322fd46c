"""What `nmt train --dry-run` prints: a recipe that can be trained, each value with its origin, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt_cli.dataset.manifest import Manifest
    from nmt_cli.recipe.loading import ResolvedRecipe
    from nmt_cli.recipe.mistakes import KeyPath
    from nmt_cli.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Pieces:
    """The sizes of the vocabularies, where they come from, and, of prepared data, what it holds."""

    source: int
    target: int
    whence: str
    manifest: Manifest | None


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
    yield f"parameters: {needs.num_parameters:,} ({needs.num_parameters / 1e6:.1f} million)"
    yield f"device: {chosen.type}, {precision}" + (f", {world_size} of them" if world_size > 1 else "")
    yield (
        f"batch: {training.batch_tokens:,} tokens an update = {world_size} device(s) x {needs.accumulation}"
        f" micro-batch(es) of at most {training.max_tokens_per_device:,}"
    )
    if pieces.manifest is not None:
        yield _epoch(pieces.manifest, recipe)
    yield (
        f"memory a device: about {total / 1e9:.1f} GB ({needs.weight_bytes / 1e9:.1f} weights and optimizer,"
        f" {needs.activation_bytes / 1e9:.1f} activations)"
    )


def _epoch(manifest: Manifest, recipe: Recipe) -> str:
    """How many updates an epoch has: one closes when either side has its tokens."""
    counts = manifest.splits["train"]
    tokens = max(counts.source_tokens, counts.target_tokens)
    updates = max(1, round(tokens / recipe.training.batch_tokens))
    return f"epoch: about {updates:,} updates of {counts.pairs:,} pairs; {recipe.training.updates / updates:.1f} epochs"
