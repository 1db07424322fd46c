"""Hugging Face directories of Marian models, such as OPUS-MT's, read and checked.

Reading needs nothing of transformers, and runs no code from the directory.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from nmt_cli import files
from nmt_cli.artifacts.directory_kinds import check_is_marian
from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.errors import ModelError
from nmt_cli.hub import WEIGHTS_FILES
from nmt_cli.interchange.marian_model import (
    ACTIVATIONS,
    FETCH_AGAIN,
    MarianConfig,
    MarianModel,
    TensorName,
    damaged_error,
)
from nmt_cli.interchange.marian_weights import marian_order
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe.mistakes import first_mistake
from nmt_cli.recipe.schema import LanguagePair

_NORM_EPSILON = 1e-5  # the default of torch, which transformers uses
_SAME_POSITIONS = 1e-4  # the largest difference of equal position tables
_ONE_FILE = "they are in several files: load it with transformers, and save it with max_shard_size='100GB'"
_MAX_POINTER_BYTES = 1000  # Git LFS stores a large file elsewhere, and a pointer of this size in git
# Settings of the search in transformers that nmt lacks, with the values that change nothing.
_OTHER_SEARCH = {
    "do_sample": False,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "diversity_penalty": 0.0,
    "num_beam_groups": 1,
    "min_length": 0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
}
_USE_TRANSFORMERS = "use it with transformers; OPUS-MT's own models are read"


def read_huggingface(directory: Path) -> MarianModel:
    """The Marian model in `directory`.

    Raises ModelError if it is no Marian model, lacks a file, is damaged or not supported.
    """
    check_is_marian(directory)
    written = _written_settings(directory)
    settings = _settings(written, directory)
    _check_supported(settings, directory)
    tokenizer = _read_optional_json(directory / "tokenizer_config.json")
    unknown = tokenizer.get("unk_token") or "<unk>"
    # Older versions of transformers write an object.
    unknown_piece = str(unknown.get("content") if isinstance(unknown, dict) else unknown)
    source = _vocabulary(directory / "vocab.json", num_rows=settings.vocab_size)
    is_separate = bool(tokenizer.get("separate_vocabs"))
    target_file = directory / ("target_vocab.json" if is_separate else "vocab.json")
    target = _vocabulary(target_file, num_rows=settings.target_rows) if is_separate else source
    weights = _weights(directory)
    has_own_positions = _has_own_positions(weights, settings)
    if not has_own_positions:
        weights = {name: tensor for name, tensor in weights.items() if name not in TensorName.POSITIONS}
    _resolve_tied_weights(weights, settings)
    return MarianModel(
        directory=directory,
        file=directory / "config.json",
        is_npz=False,
        settings=settings,
        unknown_piece=unknown_piece,
        languages=_languages(tokenizer),
        weights=weights,
        source_vocabulary=source,
        target_vocabulary=target,
        source_spm=_read_bytes(directory / "source.spm"),
        target_spm=_read_bytes(directory / "target.spm"),
        has_own_positions=has_own_positions,
        ignored_settings=_ignored_settings(
            written, settings, {settings.pad_token_id, settings.decoder_start_token_id, target.get(unknown_piece)}
        ),
        norm="post",
        norm_epsilon=_NORM_EPSILON,
    )


def _written_settings(directory: Path) -> dict[str, Any]:
    """The settings in config.json and generation_config.json, of which the second counts; without null."""
    file = directory / "config.json"
    content = files.read_json(file, error=ModelError, hint="name a folder with a Hugging Face Marian model, whole")
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind != "marian":
        description = f"a Hugging Face model of type {kind!r}" if kind else "no Hugging Face model"
        raise ModelError(
            f"{directory} is {description}, and nmt import reads Marian models, such as OPUS-MT's",
            where=str(file),
            hint="give a folder whose config.json says model_type: marian",
        )
    generation = _read_optional_json(directory / "generation_config.json")
    for key in ("eos_token_id", "pad_token_id"):  # of the model, in config.json; the other file may have a list
        generation.pop(key, None)
    return {key: value for key, value in {**content, **generation}.items() if value is not None}


def _settings(written: Mapping[str, Any], directory: Path) -> MarianConfig:
    try:
        return MarianConfig.model_validate(written)
    except ValidationError as error:
        raise damaged_error(f"config.json: {first_mistake(error)}", where=directory / "config.json") from None


def _check_supported(settings: MarianConfig, directory: Path) -> None:
    """Raise ModelError for settings of transformers' Marian models that our models do not have."""
    obstacles = {
        f"activation_function {settings.activation_function!r}": settings.activation_function not in ACTIVATIONS,
        "embeddings that are not scaled (scale_embedding: false)": not settings.scale_embedding,
        "different heads in encoder and decoder": settings.encoder_attention_heads != settings.decoder_attention_heads,
        "different feed-forward widths in encoder and decoder": settings.encoder_ffn_dim != settings.decoder_ffn_dim,
    }
    file = directory / "config.json"
    for obstacle, exists in obstacles.items():
        if exists:
            message = f"{directory} has {obstacle}, which nmt's model does not support"
            raise ModelError(message, where=str(file), hint=_USE_TRANSFORMERS)


def _ignored_settings(
    written: Mapping[str, Any], settings: MarianConfig, never_generated: Collection[int | None]
) -> list[str]:
    """The settings of the search that nmt lacks; OPUS-MT names the padding a bad word, and our export all of these."""
    ignored = [name for name, neutral in _OTHER_SEARCH.items() if written.get(name, neutral) != neutral]
    if any(word not in [[index] for index in never_generated] for word in settings.bad_words_ids):
        ignored.append("bad_words_ids")
    return ignored


def _languages(tokenizer: Mapping[str, Any]) -> LanguagePair | None:
    try:
        return LanguagePair.model_validate({side: tokenizer.get(f"{side}_lang") for side in ("source", "target")})
    except ValidationError:
        return None


def _vocabulary(file: Path, *, num_rows: int) -> dict[str, int]:
    content = files.read_json(file, error=ModelError, hint=FETCH_AGAIN)
    if not isinstance(content, dict) or not all(isinstance(number, int) for number in content.values()):
        raise damaged_error(f"{file.name} is not one id for each piece", where=file)
    vocabulary: dict[str, int] = content
    if (highest := max(vocabulary.values(), default=0)) >= num_rows:
        raise damaged_error(f"{file.name} has ids up to {highest:,}, and the model {num_rows:,} rows", where=file)
    return vocabulary


def _weights(directory: Path) -> dict[str, Tensor]:
    """The tensors in float32, from model.safetensors or, in older directories, pytorch_model.bin."""
    file = next((directory / name for name in WEIGHTS_FILES if (directory / name).is_file()), None)
    if file is None:
        raise ModelError(
            f"{directory} has no weights: neither {' nor '.join(WEIGHTS_FILES)}",
            where=str(directory),
            hint=_ONE_FILE if any(directory.glob("*.index.json")) else FETCH_AGAIN,
        )
    _check_no_pointer(file)
    tensors = read_tensors(file, hint=FETCH_AGAIN) if file.suffix == ".safetensors" else _read_pickled(file)
    return {name: tensor.float() for name, tensor in tensors.items()}


def _read_pickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch pickled; code in the file is refused, not run."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever a damaged file makes of it
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise damaged_error(f"{file.name} cannot be read: {reason}", where=file) from None
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise damaged_error(f"{file.name} holds something else than tensors", where=file)
    return {str(name): tensor for name, tensor in content.items()}


def _has_own_positions(weights: Mapping[str, Tensor], settings: MarianConfig) -> bool:
    """Whether the weights have positions that differ from Marian's sinusoids."""
    if not all(name in weights for name in TensorName.POSITIONS):
        return False
    marian = sinusoids(settings.max_position_embeddings, settings.d_model)[:, marian_order(settings.d_model)]
    if any(weights[name].shape != marian.shape for name in TensorName.POSITIONS):
        return True  # `model_from_marian` then reports the wrong shape
    return any(float((weights[name] - marian).abs().max()) > _SAME_POSITIONS for name in TensorName.POSITIONS)


def _resolve_tied_weights(weights: dict[str, Tensor], settings: MarianConfig) -> None:
    """Drop the copies of shared tensors, and add tensors that some directories leave out."""
    original, names = TensorName.TARGET, [TensorName.OUTPUT] if settings.tie_word_embeddings else []
    if settings.share_encoder_decoder_embeddings:
        original = TensorName.SHARED
        names = [TensorName.SOURCE, TensorName.TARGET, *names]
    else:
        weights.pop(TensorName.SHARED, None)
    copies = [weights.pop(name) for name in names if name in weights]
    if original not in weights and copies:
        weights[original] = copies[0]
    weights.setdefault(TensorName.BIAS, torch.zeros(1, settings.target_rows))


def _check_no_pointer(file: Path) -> None:
    if file.stat().st_size < _MAX_POINTER_BYTES and file.read_bytes().startswith(b"version https://git-lfs"):
        message = f"{file.name} is a pointer of Git LFS, not the file itself"
        hint = f"git -C {shlex.quote(str(file.parent))} lfs pull, or nmt import OWNER/NAME -o MODEL"
        raise ModelError(message, where=str(file), hint=hint)


def _read_bytes(file: Path) -> bytes:
    try:
        _check_no_pointer(file)
        return file.read_bytes()
    except OSError as error:
        raise damaged_error(f"{file.name} cannot be read: {error.strerror}", where=file) from None


def _read_optional_json(file: Path) -> dict[str, Any]:
    content = files.read_json(file, error=ModelError, hint=FETCH_AGAIN) if file.is_file() else {}
    return content if isinstance(content, dict) else {}
