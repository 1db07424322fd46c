"""The export of a model directory for CTranslate2 or Hugging Face, written only if the other program computes the same.

Hugging Face's form is a MarianMTModel, which has the paper's architecture, and a MarianTokenizer. Only `export` and the
functions called `_write` write files. The others decide what stands in the files.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, assert_never

import torch

from nmt_cli import __version__, files
from nmt_cli.artifacts.manifest import LICENCE_FILES, WEIGHTS
from nmt_cli.artifacts.model_card import front_matter, read_card, with_front_matter, without_usage_section
from nmt_cli.artifacts.model_directory import LoadedModel, SavedModelConfig, load_model
from nmt_cli.artifacts.weights import write_tensors
from nmt_cli.decoding.ctranslate2.engine import PATIENCE, length_exponent
from nmt_cli.decoding.ctranslate2.model import import_ctranslate2, write_ctranslate2
from nmt_cli.devices import Quantization
from nmt_cli.errors import DataError, ModelError, UsageError
from nmt_cli.interchange.marian_vocabulary import names_for_marian
from nmt_cli.interchange.marian_weights import marian_weights
from nmt_cli.interchange.other_programs import CTranslate2Program, TransformersProgram
from nmt_cli.interchange.verification import Agreement, random_lines, usable_lines, verify
from nmt_cli.model.weight_layout import check_supported
from nmt_cli.recipe.schema import DecodingConfig, ModelConfig
from nmt_cli.templates.render import render
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

logger = logging.getLogger(__name__)

Target = Literal["ctranslate2", "huggingface"]
_KINDS: dict[Target, str] = {"ctranslate2": "a CTranslate2 model", "huggingface": "a Hugging Face model"}
_LIBRARIES: dict[Target, str] = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}
_WRITTEN_BY = "\nWritten by `nmt export`"  # in the card
_MIN_LINES = 10  # for a comparison
_MAX_PIECES = 512  # of an output, in the commands of the card
# What MarianMTModel computes. Whatever is not here is refused.
_SUPPORTED_BY_MARIAN = {
    "norm": ("post",),
    "norm_type": ("layer",),
    "activation": ("relu", "gelu", "silu"),
    "positions": ("sinusoidal", "sinusoidal-halves", "learned"),
    "tying": ("all", "target", "none"),
}
_OTHERS_TAKE_IT = "nmt export --to ctranslate2 may take it; nmt decode does"
_MAX_NORM_EPSILON = 3e-5  # MarianMTModel always adds 1e-5; up to this, a piece's log-probability changes by about 1e-4


def export(
    model: Path, output: Path, *, to: Target, quantization: Quantization, lines: Sequence[str] | None, overwrite: bool
) -> Agreement | None:
    """Write the model directory `model` as `output` for another program, and return how closely both agree on `lines`.

    The result is None if transformers is not installed, so that nothing was compared. Without `lines`, the comparison
    takes random lines of the model's own pieces. `quantization` is for CTranslate2: a quantised export is compared in
    float32 first. Raises ModelError if `model` is no model, if the other program cannot express the model, if the two
    differ, or if `output` may not be replaced. Raises UsageError if ctranslate2 is missing, and DataError if `lines`
    are too few.
    """
    front, body = read_card(output)
    is_export = front.get("library_name") == _LIBRARIES[to] and _WRITTEN_BY in body
    kind_name = f"{_KINDS[to]} of nmt export"
    files.check_replaceable(output, kind_name=kind_name, is_same_kind=is_export, overwrite=overwrite)
    if to == "ctranslate2":
        import_ctranslate2()  # raises the error of a missing package before the slow loading of the model
    loaded = load_model(model, device=torch.device("cpu"), dtype=torch.float32)
    compared_lines = random_lines(loaded) if lines is None else _choose_lines(lines, loaded)
    with files.new_directory(output, error=ModelError) as temporary:
        for name in ("source.spm", "target.spm", *LICENCE_FILES):
            if (model / name).is_file():
                shutil.copyfile(model / name, temporary / name)
        agreement = _write_and_verify(loaded, temporary, to=to, quantization=quantization, lines=compared_lines)
        card = _card(model, loaded.config, to=to, quantization=quantization, agreement=agreement)
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return agreement


def _write_and_verify(
    loaded: LoadedModel, directory: Path, *, to: Target, quantization: Quantization, lines: Sequence[str]
) -> Agreement | None:
    """Write the files of the other program, beside source.spm and target.spm, and compare it with our model."""
    match to:
        case "ctranslate2":
            write_ctranslate2(loaded, directory, quantization="float32")
            agreement = verify(loaded, CTranslate2Program(directory, loaded.source), lines, is_reduced=False)
            if quantization != "float32":
                write_ctranslate2(loaded, directory, quantization=quantization)
                agreement = verify(loaded, CTranslate2Program(directory, loaded.source), lines, is_reduced=True)
            return agreement
        case "huggingface":
            _write_marian(loaded, directory)
            symbols = loaded.config.languages.target_symbols
            try:
                program = TransformersProgram(directory, symbols=symbols, kind="marian")
            except UsageError as error:
                logger.warning("not compared with transformers: %s; %s", error.message, error.hint)
                return None
            return verify(loaded, program, lines, is_reduced=False)
        case other:
            assert_never(other)


def _write_marian(loaded: LoadedModel, directory: Path) -> None:
    """Write the weights and the JSON files. Raises ModelError for a model that MarianMTModel cannot express."""
    config = loaded.model.config
    _check_expressible(config)
    if loaded.config.languages.num_target_symbols:
        message = "MarianMTModel takes the target language before the source, and this model before its translation"
        raise ModelError(message, where="languages", hint=_OTHERS_TAKE_IT)
    write_tensors(directory / WEIGHTS, marian_weights(loaded.model))
    contents = {
        "config.json": _marian_config_json(loaded),
        "generation_config.json": _generation_config_json(loaded.config.recipe.decoding, config),
        "tokenizer_config.json": _tokenizer_config_json(loaded),
        "vocab.json": _vocabulary_json(loaded, loaded.source),
    }
    if not config.ties.source:
        contents["target_vocab.json"] = _vocabulary_json(loaded, loaded.target)
    _write_json(directory, contents)


def _write_json(directory: Path, contents: dict[str, Any]) -> None:
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _choose_lines(lines: Sequence[str], loaded: LoadedModel) -> list[str]:
    """The lines of the user's file that can be compared; DataError if they are too few."""
    usable = usable_lines(lines, loaded)
    if len(usable) < _MIN_LINES:
        raise DataError(
            f"{len(usable)} of its {len(lines):,} lines can be compared, and {_MIN_LINES} are needed: different"
            " ones, not blank, not long, spelt in the model's pieces",
            setting="input",
            hint="give a file of ordinary sentences of the source language, or leave `input` out",
        )
    return usable


def _card(
    model: Path, config: SavedModelConfig, *, to: Target, quantization: Quantization, agreement: Agreement | None
) -> str:
    """README.md: how to use this directory, then the model's own card without its section on nmt."""
    front, body = read_card(model)
    decoding, directions = config.recipe.decoding, config.languages
    direction = directions.direction(directions.first)
    text = render(
        "exported_model_card.md",
        to=to,
        direction=direction,
        quantization=quantization,
        version=__version__,
        decoding=decoding,
        patience=PATIENCE if decoding.beam > 1 else 1,
        exponent=length_exponent(decoding),
        max_pieces=min(_MAX_PIECES, config.recipe.model.max_positions),
        agreement=agreement,
        card=without_usage_section(body),
    )
    front_of_export = {"library_name": _LIBRARIES[to], "pipeline_tag": "translation"}
    return with_front_matter(front_matter(config.languages) | front | front_of_export, text)


def _check_expressible(config: ModelConfig) -> None:
    """Raise ModelError for a setting that MarianMTModel cannot express."""
    hint = _OTHERS_TAKE_IT
    check_supported(config, program="MarianMTModel", supported=_SUPPORTED_BY_MARIAN, hint=hint)
    width, rest = divmod(config.d_model, config.heads)
    widest = max(config.d_k, config.d_v)
    obstacles = [
        (rest != 0, "heads", f"{config.heads} heads do not divide d_model: {config.d_model}"),
        (widest > width, "d_k", f"d_k: {config.d_k} and d_v: {config.d_v} go beyond d_model / heads = {width}"),
        (
            config.norm_epsilon > _MAX_NORM_EPSILON,
            "norm_epsilon",
            f"norm_epsilon: {config.norm_epsilon:g} is more than Marian's, 1e-05",
        ),
    ]
    for is_obstacle, key, reason in obstacles:
        if is_obstacle:
            message = f"MarianMTModel has no place for this model: {reason}"
            raise ModelError(message, where=f"model.{key}", hint=hint)


def _marian_config_json(loaded: LoadedModel) -> dict[str, Any]:
    config, vocabulary = loaded.model.config, loaded.config.vocabulary
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": vocabulary.source,
        "decoder_vocab_size": vocabulary.target,
        "share_encoder_decoder_embeddings": config.ties.source,
        "tie_word_embeddings": config.ties.output,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.ffn_dropout,
        "scale_embedding": True,
        "max_position_embeddings": config.max_positions,
        "dtype": "float32",
    }


def _generation_config_json(decoding: DecodingConfig, config: ModelConfig) -> dict[str, Any]:
    return {
        "num_beams": decoding.beam,
        "length_penalty": decoding.length_exponent,
        "early_stopping": False,  # True would end a search at the first finished hypotheses instead of the best
        "min_new_tokens": decoding.min_tokens or None,
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "max_length": config.max_positions,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "bad_words_ids": [[PAD], [UNK], [BOS]],
    }


def _tokenizer_config_json(loaded: LoadedModel) -> dict[str, Any]:
    languages, config = loaded.config.languages, loaded.model.config
    sides = (languages.sources, languages.targets)
    source, target = (codes[0] if len(codes) == 1 else "mul" for codes in sides)  # "mul": several, in ISO 639-2
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source,
        "target_lang": target,
        "unk_token": loaded.target.pieces([UNK])[0],
        "eos_token": loaded.target.pieces([EOS])[0],
        "pad_token": loaded.target.pieces([PAD])[0],
        "model_max_length": config.max_positions,
        "separate_vocabs": not config.ties.source,
        "clean_up_tokenization_spaces": False,
    }


def _vocabulary_json(loaded: LoadedModel, tokenizer: Tokenizer) -> dict[str, int]:
    """The ids by MarianTokenizer's names of the pieces, as in vocab.json."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    names = names_for_marian(pieces, loaded.config.languages.target_symbols)
    return {name: number for number, name in enumerate(names)}
