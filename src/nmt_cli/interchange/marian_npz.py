"""Marian's own models: a .npz file with its settings inside, and vocabularies in files of SentencePiece or YAML.

The file has Marian's names of the tensors (transformer.h). The tensors are renamed as transformers names them, so that
one import serves both forms of a Marian model. Nothing is unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import ValidationError
from torch import Tensor

from nmt_cli.artifacts.directory_kinds import import_command
from nmt_cli.errors import ModelError
from nmt_cli.interchange.marian_model import (
    MASKED_LOGIT,
    MarianConfig,
    MarianModel,
    NormPlacement,
    TensorName,
    damaged_error,
)
from nmt_cli.interchange.marian_vocabulary import marian_symbols
from nmt_cli.recipe.mistakes import first_mistake
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.sentencepiece_model import UNKNOWN, read_pieces

SETTINGS = "special:model.yml"
_NORM_EPSILON = 1e-6  # what Marian adds to the variance
_POSITIONS = 1024  # Marian has no limit, but our model needs one
_END, _UNKNOWN = "</s>", "<unk>"
_YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_KEEP_MARIAN = "translate with Marian itself: nmt's model has no such part"
# Options of Marian with the values that our model can express. A missing option has the first value.
_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-train-position-embeddings": (False,),
    "transformer-no-projection": (False,),
    "transformer-no-affine": (False,),
    "transformer-no-bias": (False,),
    "transformer-tied-layers": ([],),
    "right-left": (False,),
    "ulr": (False,),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
}
# The options for the placement of the norms, and their values: d is dropout, a the residual sum, n the norm.
_NORM_OPTIONS = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
_POST_NORM, _PRE_NORM = ("", "dan", ""), ("n", "da", "n")


def find_npz(path: Path) -> Path | None:
    """The .npz file of a path: the path itself, or the only such file in a folder without a Hugging Face model.

    None if the path is no model of Marian's own form. ModelError if the folder has several.
    """
    if path.suffix == ".npz" and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    models = [file for file in sorted(path.glob("*.npz")) if "optimizer" not in file.name]
    if len(models) > 1:
        names = ", ".join(file.name for file in models[:4])
        hint = f"name the file: {import_command(models[0])}"
        raise ModelError(f"{path} has {len(models)} models: {names}", where=str(path), hint=hint)
    return models[0] if models else None


def read_npz(file: Path) -> MarianModel:
    """The Marian model in a .npz file, with the vocabularies beside it.

    Raises ModelError, with the name of the option, if it is not a Transformer of our kinds. Raises ModelError if it is
    damaged or lacks a file.
    """
    tensors = _tensors(file)
    options = _options(tensors, file)
    _check_supported(options, file)
    norm = _norm_placement(options, file)
    decoder = _decoder_options(file)
    source_file, target_file = _vocabulary_files(file, options, decoder)
    source, source_spm = _vocabulary(source_file, file.parent / "source.spm")
    target, target_spm = _vocabulary(target_file, file.parent / "target.spm")
    if source[_END] != target[_END]:
        message = f"the vocabularies give {_END} two ids, {source[_END]} and {target[_END]}"
        raise ModelError(message, where=str(source_file), hint=_KEEP_MARIAN)
    sizes = [len(source), len(target)]
    settings = _settings(options, decoder, sizes, eos=target[_END], file=file)
    weights = dict(_rename_tensors(_NpzTensors(tensors, file), settings, norm=norm))
    return MarianModel(
        directory=file.parent,
        file=file,
        kind="npz",
        settings=settings,
        unknown_piece=_UNKNOWN,
        languages=None,
        symbols=marian_symbols(source),
        weights=weights,
        source_vocabulary=source,
        target_vocabulary=target,
        source_spm=source_spm,
        target_spm=target_spm,
        has_own_positions=False,
        ignored_settings=["word-penalty"] if decoder.get("word-penalty") else [],
        norm=norm,
        norm_epsilon=_NORM_EPSILON,
    )


def _tensors(file: Path) -> dict[str, Any]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged_error(f"{file.name} cannot be read: {error}", where=file) from None


def _options(tensors: dict[str, Any], file: Path) -> dict[str, Any]:
    """Marian's options, which the model holds as YAML."""
    if SETTINGS not in tensors:
        message = f"{file.name} is no Marian model: it has no {SETTINGS}"
        raise ModelError(message, where=str(file), hint="name the .npz file that Marian wrote")
    try:
        options = yaml.safe_load(tensors.pop(SETTINGS).tobytes().rstrip(b"\0").decode())
    except (yaml.YAMLError, ValueError) as error:
        raise damaged_error(f"{SETTINGS} in {file.name} cannot be read: {error}", where=file) from None
    if not isinstance(options, dict):
        raise damaged_error(f"{SETTINGS} in {file.name} holds no options", where=file)
    return options


def _check_supported(options: Mapping[str, Any], file: Path) -> None:
    """Raise ModelError with the name of an option that our model cannot express."""
    for name, supported in _SUPPORTED.items():
        value = options.get(name, supported[0])
        if value not in supported:
            raise _unsupported_error(name, value, file)
    decoder_width = options.get("transformer-decoder-dim-ffn") or options.get("transformer-dim-ffn")
    if decoder_width != options.get("transformer-dim-ffn"):
        raise _unsupported_error("transformer-decoder-dim-ffn", decoder_width, file)


def _norm_placement(options: Mapping[str, Any], file: Path) -> NormPlacement:
    """The placement of the norms; ModelError with the name of the option for any other placement."""
    values = tuple(options.get(name, default) for name, default in zip(_NORM_OPTIONS, _POST_NORM, strict=True))
    expected = _PRE_NORM if values[0] == "n" else _POST_NORM
    for name, value, expected_value in zip(_NORM_OPTIONS, values, expected, strict=True):
        if value != expected_value:
            raise _unsupported_error(name, value, file)
    return "pre" if expected == _PRE_NORM else "post"


def _unsupported_error(name: str, value: Any, file: Path) -> ModelError:
    text = str(value).lower() if isinstance(value, bool) else value or "''"
    return ModelError(f"{file.name} was trained with --{name} {text}", where=str(file), hint=_KEEP_MARIAN)


def _decoder_options(file: Path) -> dict[str, Any]:
    """The options with which Marian's decoder is started; Marian writes them beside the model."""
    candidates = (file.with_name(f"{file.name}.decoder.yml"), file.with_name("decoder.yml"))
    decoder_file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if decoder_file is None:
        return {}
    try:
        content = yaml.safe_load(decoder_file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise damaged_error(f"{decoder_file.name} cannot be read: {error}", where=decoder_file) from None
    return content if isinstance(content, dict) else {}


def _vocabulary_files(file: Path, options: Mapping[str, Any], decoder: Mapping[str, Any]) -> tuple[Path, Path]:
    """The vocabularies of source and target, as the decoder's options name them; one file if the languages share it."""
    folder = file.parent
    names = decoder.get("vocabs") or options.get("vocabs")
    if not names:
        hint = f"put decoder.yml beside {file.name}, with vocabs: [SOURCE, TARGET] in it"
        raise ModelError(f"nothing names the vocabularies of {file.name}", where=str(folder), hint=hint)
    found = []
    for name in map(str, names if isinstance(names, list) else [names]):
        # The name may be a path of the machine that trained, and the file lie beside the model.
        path = next((path for path in (folder / name, folder / Path(name).name) if path.is_file()), None)
        if path is None:
            raise ModelError(f"there is no vocabulary {name}", where=str(folder), hint=f"put it beside {file.name}")
        found.append(path)
    return found[0], found[-1]


def _vocabulary(file: Path, spm: Path) -> tuple[dict[str, int], bytes]:
    """The ids of a vocabulary by piece, and the SentencePiece model that makes its pieces."""
    if file.suffix == ".spm":
        model = file.read_bytes()
        try:
            pieces = read_pieces(model)
        except ValueError as error:
            raise damaged_error(f"{file.name} is {error}", where=file) from None
        vocabulary = {piece.text: index for index, piece in enumerate(pieces)}
        unknown = next((piece.text for piece in pieces if piece.kind == UNKNOWN), _UNKNOWN)
        if unknown in vocabulary:
            vocabulary[_UNKNOWN] = vocabulary.pop(unknown)
    else:
        vocabulary = _yaml_vocabulary(file)
        if not spm.is_file():
            message = f"{file.name} lists pieces, and there is no {spm.name} that makes them"
            hint = f"put source.spm and target.spm beside {file.name}; text in BPE of subword-nmt is not supported"
            raise ModelError(message, where=str(spm), hint=hint)
        model = spm.read_bytes()
    for special in (_END, _UNKNOWN):
        if special not in vocabulary:
            raise damaged_error(f"the vocabulary has no {special}", where=file)
    return vocabulary, model


def _yaml_vocabulary(file: Path) -> dict[str, int]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_YAML_LOADER)  # makes text only
        vocabulary = {str(piece): int(index) for piece, index in content.items()}
    except (yaml.YAMLError, ValueError, AttributeError, TypeError):
        raise damaged_error(f"{file.name} is not one id for each piece", where=file) from None
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise damaged_error(f"{file.name} does not count its pieces from 0 on", where=file)
    return vocabulary


def _settings(
    options: Mapping[str, Any], decoder: Mapping[str, Any], sizes: list[int], *, eos: int, file: Path
) -> MarianConfig:
    """The settings as Hugging Face has them; each vocabulary gets a row for the start."""
    if options.get("dim-vocabs", sizes) != sizes:
        message = f"the vocabularies have {sizes[0]:,} and {sizes[1]:,} pieces, and {file.name} other numbers of rows"
        raise damaged_error(message, where=file)
    ties_all = bool(options.get("tied-embeddings-all"))
    is_shared = ties_all or bool(options.get("tied-embeddings-src"))
    if sizes[0] != sizes[1] and not is_shared:
        sizes = [max(sizes)] * 2  # the row of the start has one number for both sides
    try:
        return MarianConfig(
            vocab_size=sizes[0] + 1,
            decoder_vocab_size=sizes[1] + 1,
            d_model=options["dim-emb"],
            encoder_layers=options["enc-depth"],
            decoder_layers=options["dec-depth"],
            encoder_attention_heads=options["transformer-heads"],
            decoder_attention_heads=options["transformer-heads"],
            encoder_ffn_dim=options["transformer-dim-ffn"],
            decoder_ffn_dim=options["transformer-dim-ffn"],
            max_position_embeddings=_POSITIONS,
            activation_function=options.get("transformer-ffn-activation", "swish"),
            scale_embedding=True,
            dropout=options.get("transformer-dropout", 0.1),
            attention_dropout=options.get("transformer-dropout-attention", 0.0),
            activation_dropout=options.get("transformer-dropout-ffn", 0.0),
            share_encoder_decoder_embeddings=is_shared,
            tie_word_embeddings=ties_all or bool(options.get("tied-embeddings")),
            pad_token_id=sizes[1],
            eos_token_id=eos,
            decoder_start_token_id=sizes[1],
            num_beams=decoder.get("beam-size", DecodingConfig().beam),
            length_penalty=decoder.get("normalize", 0.0),
        )
    except KeyError as error:
        raise damaged_error(f"{SETTINGS} in {file.name}: no option {error}", where=file) from None
    except ValidationError as error:
        raise damaged_error(f"the options of {file.name}: {first_mistake(error)}", where=file) from None


class _NpzTensors:
    """The tensors of a .npz file, each of which can be taken once; `remaining` has the tensors not yet taken."""

    def __init__(self, arrays: Mapping[str, Any], file: Path) -> None:
        self.file = file
        self.remaining = {name: array for name, array in arrays.items() if not name.startswith("special:")}

    def take(self, name: str) -> Tensor:
        """A tensor in float32; ModelError if it is missing or quantised."""
        if name not in self.remaining:
            raise damaged_error(f"the tensor {name} is missing", where=self.file)
        array = self.remaining.pop(name)
        if array.dtype not in (np.float32, np.float16, np.float64):
            message = f"the tensor {name} is {array.dtype}: the model was quantised by marian-conv"
            raise ModelError(message, where=str(self.file), hint="give the model as Marian trained it, in float32")
        return torch.from_numpy(array.astype(np.float32))

    def linear(self, name: str, weight: str, bias: str) -> Iterator[tuple[str, Tensor]]:
        """The projection that transformers calls `name`."""
        yield f"{name}.weight", self.take(weight).T.contiguous()
        yield f"{name}.bias", self.take(bias).flatten()

    def layer_norm(self, name: str, marian: str, suffix: str) -> Iterator[tuple[str, Tensor]]:
        """The norm that transformers calls `name`, and Marian `marian`."""
        yield f"{name}.weight", self.take(f"{marian}_scale{suffix}").flatten()
        yield f"{name}.bias", self.take(f"{marian}_bias{suffix}").flatten()


def _rename_tensors(
    tensors: _NpzTensors, settings: MarianConfig, *, norm: NormPlacement
) -> Iterator[tuple[str, Tensor]]:
    """The tensors under transformers' names, in float32; ModelError for a tensor that is missing or left over."""
    suffix = "_pre" if norm == "pre" else ""
    yield from _embeddings(tensors, settings)
    for side, count in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        attentions = {"self": "self_attn"} | ({"context": "encoder_attn"} if side == "decoder" else {})
        for layer in range(count):
            marian, ours = f"{side}_l{layer + 1}", f"model.{side}.layers.{layer}"
            for kind, name in attentions.items():
                for letter, part in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
                    weight, bias = f"{marian}_{kind}_W{letter}", f"{marian}_{kind}_b{letter}"
                    yield from tensors.linear(f"{ours}.{name}.{part}_proj", weight, bias)
                yield from tensors.layer_norm(f"{ours}.{name}_layer_norm", f"{marian}_{kind}_Wo_ln", suffix)
            for part in ("1", "2"):
                yield from tensors.linear(f"{ours}.fc{part}", f"{marian}_ffn_W{part}", f"{marian}_ffn_b{part}")
            yield from tensors.layer_norm(f"{ours}.final_layer_norm", f"{marian}_ffn_ffn_ln", suffix)
        if norm == "pre":
            yield from tensors.layer_norm(f"model.{side}.layer_norm", f"{side}_top_ln", "")
    if tensors.remaining:
        message = f"the tensor {next(iter(tensors.remaining))} has no place in nmt's model"
        raise ModelError(message, where=str(tensors.file), hint=_KEEP_MARIAN)


def _embeddings(tensors: _NpzTensors, settings: MarianConfig) -> Iterator[tuple[str, Tensor]]:
    """The embeddings, the output matrix and its bias.

    Marian has no row for the start of a sentence. Each matrix gets rows of zeros up to that row, and their bias keeps
    them from being predicted.
    """
    if settings.share_encoder_decoder_embeddings:
        output_matrix = tensors.take("Wemb")
        yield TensorName.SHARED, _pad_rows(output_matrix, settings.vocab_size, value=0.0)
    else:
        source_matrix, output_matrix = tensors.take("encoder_Wemb"), tensors.take("decoder_Wemb")
        yield TensorName.SOURCE, _pad_rows(source_matrix, settings.vocab_size, value=0.0)
        yield TensorName.TARGET, _pad_rows(output_matrix, settings.target_rows, value=0.0)
    if not settings.tie_word_embeddings:
        if "decoder_ff_logit_out_Wt" in tensors.remaining:
            output_matrix = tensors.take("decoder_ff_logit_out_Wt")
        else:
            output_matrix = tensors.take("decoder_ff_logit_out_W").T.contiguous()
        yield TensorName.OUTPUT, _pad_rows(output_matrix, settings.target_rows, value=0.0)
    bias = output_matrix.new_zeros(len(output_matrix), 1)
    if "decoder_ff_logit_out_b" in tensors.remaining:
        bias = tensors.take("decoder_ff_logit_out_b").reshape(-1, 1)
    yield TensorName.BIAS, _pad_rows(bias, settings.target_rows, value=MASKED_LOGIT).T


def _pad_rows(matrix: Tensor, rows: int, *, value: float) -> Tensor:
    """The matrix with rows of one value at its end; one that is larger stays, for `model_from_marian` to refuse."""
    missing = max(0, rows - len(matrix))
    return torch.cat([matrix, matrix.new_full((missing, *matrix.shape[1:]), value)])
