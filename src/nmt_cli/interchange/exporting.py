"""The export of a model directory for CTranslate2 or Hugging Face, written only if the other program computes the same.

Hugging Face's form is a MarianMTModel, which has the paper's architecture, and a MarianTokenizer. An M2M-100 or NLLB
model goes back to its own form. Only `export` and the functions called `_write` write files. The others decide what
stands in the files.
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
from nmt_cli.interchange.huggingface import M2M100_SPM
from nmt_cli.interchange.marian_model import CLASSES, MASKED_LOGIT, HuggingFaceKind
from nmt_cli.interchange.marian_vocabulary import names_for_marian
from nmt_cli.interchange.marian_weights import m2m100_weights, marian_weights
from nmt_cli.interchange.other_programs import CTranslate2Program, TransformersProgram
from nmt_cli.interchange.verification import Agreement, random_lines, usable_lines, verify
from nmt_cli.model.weight_layout import refusal
from nmt_cli.recipe.schema import DecodingConfig, ModelConfig
from nmt_cli.templates.render import render
from nmt_cli.tokenization.sentencepiece_model import CONTROL, read_pieces, with_pieces
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

logger = logging.getLogger(__name__)

Target = Literal["ctranslate2", "huggingface"]
_KINDS: dict[Target, str] = {"ctranslate2": "a CTranslate2 model", "huggingface": "a Hugging Face model"}
_LIBRARIES: dict[Target, str] = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}
_WRITTEN_BY = "\nWritten by `nmt export`"  # in the card
_MIN_LINES = 10  # for a comparison
_MAX_PIECES = 512  # of an output, in the commands of the card
# What MarianMTModel computes. Whatever is not here is refused.
_TAKEN_BY_MARIAN = {
    "norm": ("post",),
    "norm_type": ("layer",),
    "activation": ("relu", "gelu", "silu"),
    "positions": ("sinusoidal", "sinusoidal-halves", "learned"),
    "tying": ("all", "target", "none"),
}
_TAKEN_BY_M2M100 = {
    "norm": ("pre",),
    "activation": ("relu", "gelu", "silu"),
    "positions": ("sinusoidal-fairseq",),
    "tying": ("all",),
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
            kind = _kind_of(loaded.config)
            _write_marian(loaded, directory) if kind == "marian" else _write_m2m100(loaded, directory, kind)
            symbols = loaded.config.languages.target_symbols
            try:
                program = TransformersProgram(directory, symbols=symbols, kind=kind)
            except UsageError as error:
                logger.warning("not compared with transformers: %s; %s", error.message, error.hint)
                return None
            return verify(loaded, program, lines, is_reduced=False)
        case other:
            assert_never(other)


def _kind_of(config: SavedModelConfig) -> HuggingFaceKind:
    """The kind of Hugging Face model that a model becomes."""
    languages = config.languages
    if not languages.num_target_symbols or config.recipe.model.positions != "sinusoidal-fairseq":
        return "marian"
    return "m2m100" if next(iter(languages.target_symbols.values())).startswith("__") else "nllb"


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


def _write_m2m100(loaded: LoadedModel, directory: Path, kind: HuggingFaceKind) -> None:
    """Write the weights, the vocabulary and the JSON files of an M2M-100 or NLLB model.

    Raises ModelError for a model that M2M100ForConditionalGeneration cannot express.
    """
    model, config = loaded.model, loaded.model.config
    pieces = read_pieces((directory / "source.spm").read_bytes())
    texts = [piece.text for piece in pieces]
    _check_expressible_in_m2m100(loaded, texts)
    # Our rows in fairseq's order: <s>, padding, </s>, unknown, and the rest. Languages follow the pieces of text.
    begin = texts.index("<s>")
    rest = [number for number in range(begin, len(texts)) if number != begin]
    num_text = next(count for count, number in enumerate(rest) if pieces[number].kind == CONTROL)
    spm_pieces = [pieces[number] for number in (UNK, begin, EOS, *rest[:num_text])]
    spm = with_pieces((directory / "source.spm").read_bytes(), spm_pieces, has_bytes=False, special_ids=(-1, 0, 1, 2))
    (directory / M2M100_SPM).write_bytes(spm)
    for side in ("source", "target"):
        (directory / f"{side}.spm").unlink(missing_ok=True)
    rows = [begin, PAD, EOS, UNK, *rest]
    weights = m2m100_weights(model, rows)
    write_tensors(directory / WEIGHTS, weights)
    named = {texts[number]: row for row, number in enumerate(rows)}
    symbols = [texts[number] for number in rest[num_text:] if not texts[number].startswith("<")]
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    search = _generation_config_json(loaded.config.recipe.decoding, config)
    contents: dict[str, Any] = {
        "config.json": _architecture_json(config)
        | {
            "architectures": ["M2M100ForConditionalGeneration"],
            "model_type": "m2m_100",
            "vocab_size": len(rows),
            **ids,
        },
        "generation_config.json": search | ids | {"bad_words_ids": [[0], [1], [3]]},
        "tokenizer_config.json": {
            "tokenizer_class": CLASSES[kind][1],
            "model_max_length": config.max_positions,
            "additional_special_tokens": symbols,
            "clean_up_tokenization_spaces": False,
        },
        "special_tokens_map.json": {"additional_special_tokens": symbols},
    }
    if kind == "nllb":  # transformers 5 would put the mask before the languages
        special = {named[text]: text for text in (texts[PAD], texts[UNK], texts[EOS], "<s>", *symbols)}
        special[max(special) + 1] = "<mask>"
        added = {str(row): _special_token(text) for row, text in special.items()}
        contents["tokenizer_config.json"]["added_tokens_decoder"] = added
    else:
        contents["vocab.json"] = {piece: row for piece, row in named.items() if row < 4 + num_text}
    _write_json(directory, contents)


def _special_token(text: str) -> dict[str, Any]:
    """A token that no text has, as transformers writes it."""
    return {"content": text, "special": True} | dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)


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
    model_class, tokenizer_class = CLASSES[_kind_of(config)]
    text = render(
        "exported_model_card.md",
        to=to,
        direction=direction,
        model_class=model_class,
        tokenizer_class=tokenizer_class,
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
    if (error := refusal(config, program="MarianMTModel", taken=_TAKEN_BY_MARIAN, hint=hint)) is not None:
        raise error
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


def _check_expressible_in_m2m100(loaded: LoadedModel, texts: Sequence[str]) -> None:
    """Raise ModelError unless M2M100ForConditionalGeneration can express the model; `texts` are its pieces."""
    model, config, program = loaded.model, loaded.model.config, "M2M100ForConditionalGeneration"
    if (error := refusal(config, program=program, taken=_TAKEN_BY_M2M100, hint=_OTHERS_TAKE_IT)) is not None:
        raise error
    weight, bias = model.output_weight.detach(), model.output_bias
    expected = torch.zeros(model.target_vocab)
    expected[BOS] = MASKED_LOGIT
    obstacle = None
    if "<s>" not in texts[EOS + 1 :]:
        obstacle = "its vocabulary is not that of an M2M-100 or NLLB model"
    elif bias is None or not torch.equal(bias.detach()[: model.target_vocab], expected):
        obstacle = "training has given it a bias of the output"
    elif not torch.equal(weight[BOS], weight[EOS]):
        obstacle = "training has given the decoder a start that is not </s>"
    if obstacle is not None:
        message = f"{program} has no place for this model: {obstacle}"
        raise ModelError(message, where="model.safetensors", hint=_OTHERS_TAKE_IT)


def _marian_config_json(loaded: LoadedModel) -> dict[str, Any]:
    config, vocabulary = loaded.model.config, loaded.config.vocabulary
    return _architecture_json(config) | {
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
    }


def _architecture_json(config: ModelConfig) -> dict[str, Any]:
    """What config.json says of Marian and M2M-100 alike."""
    return {
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
