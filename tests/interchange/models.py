"""Model directories whose random weights are large enough that a wrong one shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from nmt_cli.bundle import directory
from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.bundle.weights import weights_of
from nmt_cli.recipe.schema import Recipe
from tests.bundle.tiny import tiny_config, tiny_model, tiny_recipe, write_spm

CPU = torch.device("cpu")


def recipe_with(model: dict[str, Any] | None = None, **decoding: Any) -> Recipe:
    return tiny_recipe(model=model, decoding={"beam": 3, "max_extra_tokens": 6, **decoding})


def save_sharp(path: Path, recipe: Recipe | None = None) -> Path:
    """Write a model directory; biases and norms are not what they begin with, and likely pieces are likely."""
    recipe = recipe or recipe_with()
    model = tiny_model(recipe)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(std=0.3).add_(1 if name.endswith("norm.weight") else 0)
            elif name == "output_weight":
                parameter.mul_(math.sqrt(8))
    spm = write_spm(path.parent / "spm" / "shared.spm")
    directory.save(
        path,
        config=tiny_config(recipe, updates=[7]),
        weights=weights_of(model),
        source_spm=spm,
        target_spm=spm,
        card="---\nlanguage:\n- en\n- de\n---\n\n# The model's own card\n",
        overwrite=False,
    )
    return path


def load(path: Path) -> LoadedModel:
    return directory.load(path, device=CPU, dtype=torch.float32)
