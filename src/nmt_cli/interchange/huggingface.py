"""Hugging Face directories of Marian models, such as OPUS-MT's, and of M2M-100 and NLLB-200, read and checked.

Reading needs nothing of transformers, and runs no code from the directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from nmt_cli import files
from nmt_cli.artifacts.directory_kinds import MODEL_TYPES, OTHER_MODEL_HINT, check_is_importable, model_type
from nmt_cli.errors import ModelError
from nmt_cli.interchange.huggingface_weights import check_no_pointer, read_weights
from nmt_cli.interchange.marian_model import (
    ACTIVATIONS,
    FETCH_AGAIN,
    HuggingFaceKind,
    MarianConfig,
    MarianModel,
    TensorName,
    damaged_error,
)
from nmt_cli.interchange.marian_vocabulary import marian_symbols
from nmt_cli.interchange.marian_weights import marian_order
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe.mistakes import first_mistake
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.sentencepiece_model import read_pieces

_NORM_EPSILON = 1e-5  # the default of torch, which transformers uses
_SAME_POSITIONS = 1e-4  # the largest difference of equal position tables
# Of M2M-100, by the order of their rows; its directory need not list them (Fan et al. 2020, arXiv:2010.11125).
_M2M100_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
_M2M100_SYMBOL, _NLLB_SYMBOL = re.compile("__([a-z]+)__"), re.compile("([a-z]{3}_[A-Z][a-z]{3})")
_M2M100_SPM = "sentencepiece.bpe.model"
# Settings of the search in transformers that nmt lacks, with the values that change nothing.
_OTHER_SEARCH = {
    "do_sample": False,
    "early_stopping": False,
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
# Of transformers, where they are not Marian's.
_M2M100_DEFAULTS = {"activation_function": "relu", "attention_dropout": 0.1, "scale_embedding": True}
_USE_TRANSFORMERS = "use it with transformers; OPUS-MT's own models are read"


def read_huggingface(directory: Path) -> MarianModel:
    """The Marian, M2M-100 or NLLB model in `directory`.

    Raises ModelError if it is no such model, lacks a file, is damaged or not supported.
    """
    check_is_importable(directory)
    written = _written_settings(directory)
    kind: HuggingFaceKind = "marian"
    if is_m2m100 := written["model_type"] == "m2m_100":
        kind = "m2m100" if (directory / "vocab.json").is_file() else "nllb"
    settings = _settings(written, directory)
    _check_supported(settings, directory)
    tokenizer = _read_optional_json(directory / "tokenizer_config.json")
    unknown = tokenizer.get("unk_token") or "<unk>"
    # Older versions of transformers write an object.
    unknown_piece = str(unknown.get("content") if isinstance(unknown, dict) else unknown)
    if is_m2m100:
        if not (directory / _M2M100_SPM).exists():  # transformers 5 saves NLLB without it
            hint = f"copy {_M2M100_SPM} from the model that it was fine-tuned from"
            raise ModelError(f"there is no {_M2M100_SPM}", where=str(directory), hint=hint)
        spms = [_read_bytes(directory / _M2M100_SPM)] * 2
        source, symbols = _m2m100_vocabulary(
            directory, tokenizer, spms[0], num_rows=settings.vocab_size, is_nllb=kind == "nllb"
        )
        target = source
    else:
        spms = [_read_bytes(directory / f"{side}.spm") for side in ("source", "target")]
        source = _vocabulary(directory / "vocab.json", num_rows=settings.vocab_size)
        symbols = marian_symbols(source)
        is_separate = bool(tokenizer.get("separate_vocabs"))
        target_file = directory / ("target_vocab.json" if is_separate else "vocab.json")
        target = _vocabulary(target_file, num_rows=settings.target_rows) if is_separate else source
    weights = read_weights(directory)
    has_own_positions = not is_m2m100 and _has_own_positions(weights, settings)
    if not has_own_positions:
        weights = {name: tensor for name, tensor in weights.items() if "embed_positions" not in name}
    _resolve_tied_weights(weights, settings)
    return MarianModel(
        directory=directory,
        file=directory / "config.json",
        kind=kind,
        settings=settings,
        unknown_piece=unknown_piece,
        languages=None if is_m2m100 else _languages(tokenizer),
        symbols=symbols,
        weights=weights,
        source_vocabulary=source,
        target_vocabulary=target,
        source_spm=spms[0],
        target_spm=spms[1],
        has_own_positions=has_own_positions,
        ignored_settings=_ignored_settings(
            written, settings, {settings.pad_token_id, settings.decoder_start_token_id, target.get(unknown_piece)}
        ),
        norm="pre" if is_m2m100 else "post",
        norm_epsilon=_NORM_EPSILON,
    )


def _written_settings(directory: Path) -> dict[str, Any]:
    """The settings in config.json and generation_config.json, of which the second counts; without null."""
    file = directory / "config.json"
    content = files.read_json(file, error=ModelError, hint="name a folder with a whole Hugging Face model")
    kind = model_type(file)
    if kind not in MODEL_TYPES:
        description = f"a Hugging Face model of type {kind!r}" if kind else "no Hugging Face model"
        message = f"{directory} is {description}, and nmt import reads Marian, M2M-100 and dense NLLB-200 models"
        raise ModelError(message, where=str(file), hint=OTHER_MODEL_HINT)
    generation = _read_optional_json(directory / "generation_config.json")
    for key in ("eos_token_id", "pad_token_id"):  # of the model, in config.json; the other file may have a list
        generation.pop(key, None)
    defaults = _M2M100_DEFAULTS if kind == "m2m_100" else {}
    return {key: value for key, value in {**defaults, **content, **generation}.items() if value is not None}


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


def _m2m100_vocabulary(
    directory: Path, tokenizer: Mapping[str, Any], spm: bytes, *, num_rows: int, is_nllb: bool
) -> tuple[dict[str, int], dict[str, str]]:
    """The row of each piece of M2M-100 or NLLB, and the piece of each language.

    M2M-100 lists its pieces in vocab.json. NLLB's are those of the SentencePiece model, whose three special pieces
    fairseq replaced by its four. The languages follow in both.
    """
    file, pattern = directory / "vocab.json", _M2M100_SYMBOL
    if is_nllb:
        file, pattern = directory / _M2M100_SPM, _NLLB_SYMBOL
        try:
            pieces = [piece.text for piece in read_pieces(spm)]
        except ValueError as error:
            raise damaged_error(f"{file.name} is {error}", where=file) from None
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]]
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
    else:
        vocabulary = _vocabulary(file, num_rows=num_rows)
    rows = _symbol_rows(directory, tokenizer, pattern, first=len(vocabulary))
    if not rows and not is_nllb:
        rows = {f"__{code}__": len(vocabulary) + number for number, code in enumerate(_M2M100_LANGUAGES.split())}
    if not rows or max(rows.values()) >= num_rows:
        message = f"the languages of {directory} are not known: no file of its tokenizer lists them"
        raise ModelError(message, where=str(directory), hint="fetch special_tokens_map.json or tokenizer.json, too")
    matches = map(pattern.fullmatch, rows)
    return vocabulary | rows, {match[1]: match[0] for match in matches if match is not None}


def _symbol_rows(
    directory: Path, tokenizer: Mapping[str, Any], pattern: re.Pattern[str], *, first: int
) -> dict[str, int]:
    """The rows of the languages, from the file that says them; where they are only listed, from row `first` on."""
    added = _read_optional_json(directory / "tokenizer.json").get("added_tokens") or [
        {"id": int(number), **token} for number, token in tokenizer.get("added_tokens_decoder", {}).items()
    ]
    rows = {token["content"]: int(token["id"]) for token in added if pattern.fullmatch(token["content"])}
    for listing in (_read_optional_json(directory / "special_tokens_map.json"), tokenizer):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = [token["content"] if isinstance(token, dict) else token for token in listing.get(key) or []]
            symbols = filter(pattern.fullmatch, listed)
            rows = rows or {symbol: first + number for number, symbol in enumerate(symbols)}
    return rows


def _vocabulary(file: Path, *, num_rows: int) -> dict[str, int]:
    content = files.read_json(file, error=ModelError, hint=FETCH_AGAIN)
    if not isinstance(content, dict) or not all(isinstance(number, int) for number in content.values()):
        raise damaged_error(f"{file.name} is not one id for each piece", where=file)
    vocabulary: dict[str, int] = content
    if (highest := max(vocabulary.values(), default=0)) >= num_rows:
        raise damaged_error(f"{file.name} has ids up to {highest:,}, and the model {num_rows:,} rows", where=file)
    return vocabulary


def _has_own_positions(weights: Mapping[str, Tensor], settings: MarianConfig) -> bool:
    """Whether the weights have positions that differ from Marian's sinusoids."""
    if not all(name in weights for name in TensorName.POSITIONS):
        return False
    marian = sinusoids(settings.max_position_embeddings, settings.d_model)[:, marian_order(settings.d_model)]
    if any(weights[name].shape != marian.shape for name in TensorName.POSITIONS):
        return True  # `model_from_marian` then reports the wrong shape
    return any(float((weights[name].float() - marian).abs().max()) > _SAME_POSITIONS for name in TensorName.POSITIONS)


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


def _read_bytes(file: Path) -> bytes:
    try:
        check_no_pointer(file)
        return file.read_bytes()
    except OSError as error:
        raise damaged_error(f"{file.name} cannot be read: {error.strerror}", where=file) from None


def _read_optional_json(file: Path) -> dict[str, Any]:
    content = files.read_json(file, error=ModelError, hint=FETCH_AGAIN) if file.is_file() else {}
    return content if isinstance(content, dict) else {}
