"""The mean of finished models, for example of a model before and after fine-tuning.

Wortsman et al. 2022, arXiv:2109.01903: the mean forgets less of the first model than fine-tuning alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from nmt_cli import __version__, files
from nmt_cli.artifacts.average import mean_weights
from nmt_cli.artifacts.manifest import DAMAGED, WEIGHTS, verify_files
from nmt_cli.artifacts.model_card import front_matter, join_front_matter
from nmt_cli.artifacts.model_directory import SavedModelConfig, check_replaceable, load_saved_config, save_model
from nmt_cli.errors import ModelError
from nmt_cli.recipe.schema import DROPOUTS
from nmt_cli.templates.render import render

_TOKENIZERS = ("source.spm", "target.spm")


def write_mean_of_models(paths: Sequence[Path], *, output: Path, overwrite: bool, command: Sequence[str]) -> None:
    """Write the mean of the weights of these model directories as a model directory, whose card shows `command`.

    All other files are from the last model. Raises ModelError if a model is damaged or given twice, or if architectures
    or vocabularies differ.
    """
    check_replaceable(output, overwrite=overwrite)
    configs = [load_saved_config(path) for path in paths]
    for path in paths:
        verify_files(path, error=ModelError, hint=DAMAGED, hashed=(WEIGHTS, *_TOKENIZERS))
    _refuse_others(paths, configs)
    weights = mean_weights(paths, hint=DAMAGED)
    last = configs[-1]
    longest = [config.longest_source for config in configs]
    config = last.model_copy(
        update={
            "nmt_version": __version__,
            "updates": [],
            "validation": [],
            "mean": None,
            "longest_source": None if None in longest else max(length or 0 for length in longest),
        }
    )
    body = render("mean_model_card.md", config=config, paths=[str(path) for path in paths], command=shlex.join(command))
    source_spm, target_spm = (paths[-1] / name for name in _TOKENIZERS)
    save_model(
        output,
        config=config,
        weights=weights,
        source_spm=source_spm,
        target_spm=target_spm,
        card=join_front_matter(front_matter(config.languages), body),
        overwrite=overwrite,
    )


def _refuse_others(paths: Sequence[Path], configs: Sequence[SavedModelConfig]) -> None:
    """Raise ModelError for a model that is given twice, or that has another vocabulary or architecture."""
    hashes = [files.sha256(path / WEIGHTS) for path in paths]
    for place, (path, config) in enumerate(zip(paths, configs, strict=True)):
        where = str(path)
        if hashes[place] in hashes[:place]:
            twin = paths[hashes.index(hashes[place])]
            raise ModelError(f"{path} has the weights of {twin}", where=where, hint="name each model once")
        for name in _TOKENIZERS:
            if files.sha256(path / name) != files.sha256(paths[0] / name):
                hint = "average models of one vocabulary: a model, and what --init-from made of it"
                raise ModelError(f"{path} has another {name} than {paths[0]}", where=where, hint=hint)
        ours, first = config.recipe.model, configs[0].recipe.model
        # Learned positions are a table with a row for each of max_positions.
        free = DROPOUTS if first.positions == "learned" else DROPOUTS | {"max_positions"}
        for key in type(ours).model_fields:
            if key not in free and getattr(ours, key) != getattr(first, key):
                message = f"{path} has model.{key} {getattr(ours, key)}, and {paths[0]} {getattr(first, key)}"
                raise ModelError(message, where=where, hint="average models of one architecture")
