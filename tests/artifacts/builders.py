"""Small but whole artefacts: recipes, tokenizers, runs with checkpoints, model directories."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.manifest import write_manifest
from nmt_cli.artifacts.model_directory import SavedModelConfig, Vocabulary
from nmt_cli.artifacts.weights import weights_of, write_tensors
from nmt_cli.files import sha256
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.loading import dump_recipe
from nmt_cli.recipe.schema import LanguagePair, Recipe, TrainedLines
from tests.tokenization.models import OUR_IDS, train_spm

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
TINY = {
    "encoder_layers": 2,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_k": 8,
    "d_v": 8,
    "embedding_multiple": 8,
    "max_positions": 64,
}


def tiny_recipe(*, model: Mapping[str, Any] | None = None, **sections: Any) -> Recipe:
    values = {"name": "tiny", "corpus": "mini", "model": {**TINY, **(model or {})}, **sections}
    return Recipe.model_validate(values)


@functools.cache
def spm_bytes(vocab_size: int = 300, symbols: tuple[str, ...] = ()) -> bytes:
    return train_spm(
        ["a small house stands by the old sea", "ein kleines Haus steht am alten Meer"] * 5,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        normalization_rule_name="identity",
        control_symbols=list(symbols),
        **OUR_IDS,
    )


def write_spm(path: Path, *, vocab_size: int = 300) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(spm_bytes(vocab_size))
    return path


def tiny_model(recipe: Recipe, *, seed: int = 1, source_vocab: int = 300, target_vocab: int = 300) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(recipe.model, source_vocab=source_vocab, target_vocab=target_vocab).eval()


def single(source: str, target: str) -> Directions:
    """The only direction of a model without symbols."""
    return Directions(pairs=[LanguagePair(source=source, target=target)])


EN_DE = single("en", "de").find("en", "de")


def tiny_config(
    recipe: Recipe,
    *,
    source_vocab: int = 300,
    target_vocab: int = 300,
    updates: list[int],
    trained_lines: TrainedLines | None = None,
    languages: str | Directions = "en-de",
) -> SavedModelConfig:
    return SavedModelConfig(
        nmt_version="0.1.0",
        languages=single(*languages.split("-")) if isinstance(languages, str) else languages,
        vocabulary=Vocabulary(source=source_vocab, target=target_vocab, shared=source_vocab == target_vocab),
        updates=updates,
        trained_lines=trained_lines,
        recipe=recipe,
    )


def save_tiny(
    path: Path,
    *,
    spm_folder: Path,
    recipe: Recipe | None = None,
    model: Transformer | None = None,
    seed: int = 1,
    overwrite: bool = False,
    update: int = 7,
    trained_lines: TrainedLines | None = None,
    card: str = "# A card\n",
    languages: str | Directions = "en-de",
    spm: bytes | None = None,
) -> Transformer:
    """Write a model directory of this model, or of random weights, at `path` and return its model."""
    recipe = recipe or tiny_recipe()
    model = model or tiny_model(recipe, seed=seed)
    spm = spm or write_spm(spm_folder / "shared.spm").read_bytes()
    if isinstance(languages, Directions):
        spm = spm_bytes(
            symbols=tuple(dict.fromkeys([*languages.source_symbols.values(), *languages.target_symbols.values()]))
        )
    model_directory.save_model(
        path,
        config=tiny_config(recipe, updates=[update], trained_lines=trained_lines, languages=languages),
        weights=weights_of(model),
        source_spm=spm,
        target_spm=spm,
        card=card,
        overwrite=overwrite,
    )
    return model


def write_checkpoint(
    run: Path,
    update: int,
    *,
    weights: Mapping[str, Tensor],
    loss: float | None = None,
    bleu: float | None = None,
) -> Path:
    path = run / "checkpoints" / f"update-{update:08}"
    path.mkdir(parents=True)
    write_tensors(path / "model.safetensors", weights)
    write_tensors(path / "optimizer.safetensors", {"first_moment": torch.zeros(3)})
    (path / "state.json").write_text('{"position": 0}\n')
    validation = None if loss is None else {"loss": loss, "bleu": bleu}
    fields = {"kind": "checkpoint", "update": update, "recipe_fingerprint": "recipe-one", "validation": validation}
    write_manifest(path, fields)
    return path


def write_run(run: Path, *, recipe: Recipe | None = None, updates: int = 0, finished: str | None = None) -> Recipe:
    """A run with `updates` checkpoints, 100 updates apart; the loss falls, and the last but one has the best BLEU."""
    recipe = recipe or tiny_recipe()
    run.mkdir(parents=True)
    spm = write_spm(run / "source.spm")
    write_spm(run / "target.spm")
    fingerprint = sha256(spm)
    record = {
        "languages": {"source": "en", "target": "de"},
        "data": "data/mini",
        "corpus": "mini",
        "source_vocab": 300,
        "target_vocab": 300,
        "command": ["nmt", "train", "tiny.yaml", "--data", "data/mini"],
        "started": "2026-01-02T03:04:05+00:00",
        "finished": finished,
        "trained_lines": {"several_sentences": 0.0123, "usual_longest": 1030},
        "tokenizers": {"source": fingerprint, "target": fingerprint},
        "data_summary": {
            "splits": {"train": {"pairs": 1234, "source_tokens": 23456, "target_tokens": 24567}},
            "inputs": [{"split": "train", "name": "mini.en", "bytes": 5, "sha256": "ab" * 32}],
            "corpus": {"name": "mini", "description": "Two sentences about a house."},
        },
    }
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (run / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    events: list[dict[str, Any]] = []
    for number in range(1, updates + 1):
        update = 100 * number
        bleu = 10.0 + (number if number != updates - 1 else 30)
        loss = 5.0 - 0.25 * number
        model = tiny_model(recipe, seed=number)
        write_checkpoint(run, update, weights=weights_of(model), loss=loss, bleu=bleu)
        events += [
            {"event": "train", "update": update, "epoch": 1, "loss": loss, "target_tokens_per_second": 4321.0},
            {"event": "validation", "update": update, "loss": loss, "nll": 2.0, "perplexity": 7.4, "bleu": bleu}
            | {"signature": SIGNATURE, "seconds": 1.0},
        ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return recipe
