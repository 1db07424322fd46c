"""The model directory: all that decode, serve and export need, written whole and read strictly.

config.yaml, model.safetensors (float32), source.spm, target.spm, README.md (the model card) and manifest.json. torch is
imported when a model is loaded or saved, so that finding and describing one is quick.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nmt_cli import files
from nmt_cli.bundle.config import CONFIG, DAMAGED, WEIGHTS, BundleConfig, dump_config, load_config
from nmt_cli.bundle.kinds import kind_of, require_model
from nmt_cli.bundle.manifest import MANIFEST, read_manifest, verify, write_manifest
from nmt_cli.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from nmt_cli.model.transformer import Transformer
    from nmt_cli.tokenization.tokenizer import Tokenizer

__all__ = ["BundleConfig", "LoadedModel", "load", "load_config", "newest_model", "save"]

_NEEDED = (CONFIG, WEIGHTS, "source.spm", "target.spm")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to translate: the Transformer in eval mode, its tokenizers, and its config.yaml."""

    model: Transformer
    source: Tokenizer
    target: Tokenizer
    config: BundleConfig


def load(path: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The model in the directory `path`, in `dtype` on `device`, once size and hash of all that is read are checked.

    Raises ModelError for a directory that is no model, a file that is missing, damaged or foreign, and weights or
    tokenizers that do not fit config.yaml.
    """
    require_model(path)
    verify(path, error=ModelError, hint=DAMAGED, hashed=_NEEDED)
    config = load_config(path)
    vocabulary = config.vocabulary
    source = _tokenizer(path / "source.spm", num_pieces=vocabulary.source)
    target = _tokenizer(path / "target.spm", num_pieces=vocabulary.target)

    from nmt_cli.bundle import weights

    model = weights.bare_model(config).to(device=device, dtype=dtype)
    tensors = weights.read_tensors(path / WEIGHTS, hint=DAMAGED)
    weights.load_weights(model, tensors, where=str(path / WEIGHTS), hint=DAMAGED)
    return LoadedModel(model.eval(), source, target, config)


def save(
    path: Path,
    *,
    config: BundleConfig,
    weights: Mapping[str, Tensor],
    source_spm: Path,
    target_spm: Path,
    card: str,
    overwrite: bool,
) -> None:
    """Write a model directory, whole or not at all; the weights are stored in float32.

    Raises ModelError where `path` exists and `overwrite` is not set, where it is no model directory (nothing else is
    ever replaced), where the disk is full, and where the weights do not fit the recipe.
    """
    from nmt_cli.bundle.weights import bare_model, check_names_and_shapes, shapes_of, weights_of, write_tensors

    check_replaceable(path, overwrite=overwrite)
    check_names_and_shapes(
        shapes_of(weights),
        expected=shapes_of(weights_of(bare_model(config))),
        where=str(path),
        hint="save the weights of the model that this recipe and these vocabularies make",
    )
    with files.new_directory(path, error=ModelError) as temporary:
        (temporary / CONFIG).write_text(dump_config(config), encoding="utf-8")
        write_tensors(temporary / WEIGHTS, {name: tensor.float() for name, tensor in weights.items()})
        shutil.copyfile(source_spm, temporary / "source.spm")
        shutil.copyfile(target_spm, temporary / "target.spm")
        (temporary / "README.md").write_text(card, encoding="utf-8")
        write_manifest(temporary, {"kind": "model", "updates": config.updates})


def check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Raise ModelError unless `path` is a new or an empty folder or, with `overwrite`, an old model directory."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if kind_of(path) != "model":
        raise ModelError(
            f"{path} exists and is not a model directory, so it is not replaced",
            where=str(path),
            hint="choose another folder with -o",
        )
    if not overwrite:
        raise ModelError(
            f"the model directory {path} exists already",
            where=str(path),
            hint="add --overwrite to replace it, or choose another folder with -o",
        )


def newest_model(runs: Path) -> Path:
    """The model of the run in the folder `runs` that finished one last: its averaged/, else its model/.

    averaged/ gives way to model/ where the run was trained further since. ModelError says what to type where there is
    no model.
    """
    folders = [path for path in sorted(runs.glob("*")) if kind_of(path) == "run" and not path.name.startswith(".")]
    finished = [(_finished_at(run), run) for run in folders if _finished_at(run)]
    if finished:
        return model_of_run(max(finished)[1])
    if folders:
        hint = f"let it finish: nmt train ..., or make a model of what there is: nmt average {folders[-1]}"
        raise ModelError(f"no run in {runs} has a finished model", where=str(runs), hint=hint)
    raise ModelError(
        f"there is no model: {runs} holds no runs",
        where=str(runs),
        hint="name a model with -m MODEL, or train one: nmt train RECIPE",
    )


def model_of_run(run: Path) -> Path:
    """The model of a run: its averaged/, unless it was trained further since, else its model/.

    ModelError where it has neither.
    """
    averaged, final = run / "averaged", run / "model"
    if not any((model / MANIFEST).is_file() for model in (averaged, final)):
        hint = f"let it finish: nmt train ..., or make a model of what there is: nmt average {run}"
        raise ModelError(f"the run {run} has no finished model", where=str(run), hint=hint)
    if not (averaged / MANIFEST).is_file():
        return final
    if (final / MANIFEST).is_file() and _last_update(final) > _last_update(averaged):
        return final
    return averaged


def _finished_at(run: Path) -> int:
    """When the last model of a run was written, in nanoseconds; 0: it has none."""
    manifests = [run / name / MANIFEST for name in ("averaged", "model")]
    return max((file.stat().st_mtime_ns for file in manifests if file.is_file()), default=0)


def _last_update(model: Path) -> int:
    updates: list[int] = read_manifest(model, error=ModelError, hint=DAMAGED).get("updates", [])
    return max(updates, default=0)


def _tokenizer(file: Path, *, num_pieces: int) -> Tokenizer:
    from nmt_cli.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(file)
    if tokenizer.vocab_size != num_pieces:
        raise ModelError(
            f"{file.name} has {tokenizer.vocab_size:,} pieces, but {CONFIG} says {num_pieces:,}",
            where=str(file),
            hint=DAMAGED,
        )
    return tokenizer
