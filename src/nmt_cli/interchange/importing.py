"""The import of another program's model: a model directory, compared with the original.

It is a Marian model, in its own form or Hugging Face's, or an M2M-100 or NLLB-200 model in Hugging Face's form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from nmt_cli import __version__
from nmt_cli.artifacts.manifest import licence_files
from nmt_cli.artifacts.model_card import (
    front_matter,
    inherited_values,
    licence_text,
    names_at_head,
    read_card,
    with_front_matter,
)
from nmt_cli.artifacts.model_directory import (
    LoadedModel,
    SavedModelConfig,
    Vocabulary,
    check_replaceable,
    memory_errors,
    save_model,
)
from nmt_cli.artifacts.weights import weights_of
from nmt_cli.errors import ModelError, UsageError, first_line
from nmt_cli.interchange.huggingface import read_huggingface
from nmt_cli.interchange.marian_model import ACTIVATIONS, MarianModel, TensorName, damaged_error
from nmt_cli.interchange.marian_npz import find_npz, read_npz
from nmt_cli.interchange.marian_vocabulary import VocabularyRow, rewrite_with_rows, row_name, rows_by_our_ids
from nmt_cli.interchange.marian_weights import model_from_marian
from nmt_cli.interchange.other_programs import CTranslate2Program, TransformersProgram, ctranslate2_of_npz
from nmt_cli.interchange.verification import Agreement, random_lines, verify
from nmt_cli.languages import match_code, standard_code
from nmt_cli.recipe.directions import Directions, shown_codes
from nmt_cli.recipe.schema import LanguagePair, Recipe
from nmt_cli.recipe.section import as_name
from nmt_cli.templates.render import render
from nmt_cli.tokenization.tokenizer import Tokenizer

# A hundred lines, as for an export, take a minute in transformers with a model of OPUS-MT's size.
_NUM_LINES = 25
_ALL_TARGETS = "mul"  # several languages, in ISO 639-2


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """The result of an import; `comparison` has its comparison with the original in words.

    `ignored_settings` are settings of its search that nmt lacks. `agreement` is None if nothing was compared, and
    `comparison` then says why. `licence` is the one that its card names.
    """

    languages: Directions
    licence: str | None
    num_parameters: int
    ignored_settings: list[str]
    agreement: Agreement | None
    comparison: str


def import_model(
    path: Path, output: Path, *, languages: LanguagePair | None, imported_from: str | None, overwrite: bool
) -> ImportedModel:
    """Write the model at `path`, a directory or a Marian .npz file, as the model directory `output`.

    The model is compared with transformers, or a .npz file with CTranslate2's conversion of it, if that is installed.
    It is not written if they differ. `languages` come from its files if they are not given. `imported_from` names the
    model on the hub. Raises ModelError if `path` is no such model, lacks a file, is damaged or not supported, or if
    `output` may not be replaced. Raises UsageError if the languages are unknown, or given and in the model.
    """
    check_replaceable(output, overwrite=overwrite)
    npz = find_npz(path)
    with memory_errors(path, torch.device("cpu")):
        marian = read_huggingface(path) if npz is None else read_npz(npz)
        origin = str(marian.directory.resolve()) if imported_from is None else imported_from.partition("@")[0]
        name = origin.rpartition("/")[2]
        directions = _directions(marian, name, languages)
        source = _vocabulary_rows(marian, marian.source_vocabulary, num_rows=marian.settings.vocab_size)
        target = _vocabulary_rows(marian, marian.target_vocabulary, num_rows=marian.settings.target_rows)
        symbols = _pieces_without_text(marian)
        source_spm = rewrite_with_rows(marian.source_spm, source, symbols=symbols, file=marian.directory / "source.spm")
        target_spm = rewrite_with_rows(marian.target_spm, target, symbols=symbols, file=marian.directory / "target.spm")
        config = SavedModelConfig(
            nmt_version=__version__,
            languages=directions,
            vocabulary=Vocabulary(source=len(source), target=len(target), shared=source_spm == target_spm),
            updates=[],
            imported_from=imported_from,
            recipe=_recipe(marian, name),
        )
        model = model_from_marian(marian, config, source=source, target=target)
        marian.weights.clear()  # the comparison needs the memory
        loaded = LoadedModel(model, Tokenizer(source_spm), Tokenizer(target_spm), config)
        agreement, comparison = _compare_with_original(loaded, marian, source=source, target=target)
    num_parameters = model.num_parameters()
    inherited = inherited_values([marian.directory])
    licence = names_at_head(inherited, "license")
    card = _card(marian, config, num_parameters=num_parameters, agreement=agreement, inherited=inherited)
    save_model(
        output,
        config=config,
        weights=weights_of(model),
        source_spm=source_spm,
        target_spm=target_spm,
        card=card,
        overwrite=overwrite,
        unlisted=licence_files([marian.directory]),
    )
    return ImportedModel(
        languages=directions,
        licence=licence,
        num_parameters=num_parameters,
        ignored_settings=marian.ignored_settings,
        agreement=agreement,
        comparison=comparison,
    )


def _vocabulary_rows(marian: MarianModel, vocabulary: Mapping[str, int], *, num_rows: int) -> list[VocabularyRow]:
    """Marian's rows by our ids.

    ModelError if the vocabulary lacks the unknown piece, or the id of a special piece is no row.
    """
    settings = marian.settings
    if marian.unknown_piece not in vocabulary:
        raise damaged_error(f"the vocabulary has no {marian.unknown_piece}", where=marian.directory / "vocab.json")
    special = (settings.pad_token_id, settings.decoder_start_token_id, settings.eos_token_id)
    if outside := [number for number in special if not 0 <= number < num_rows]:
        message = f"{marian.file.name} has the id {outside[0]}, and the model {num_rows:,} rows"
        raise damaged_error(message, where=marian.file)
    return rows_by_our_ids(
        vocabulary,
        num_rows=num_rows,
        pad=settings.pad_token_id,
        unknown=vocabulary[marian.unknown_piece],
        start=settings.decoder_start_token_id,
        end=settings.eos_token_id,
    )


def _recipe(marian: MarianModel, name: str) -> Recipe:
    values: dict[str, Any] = {
        "name": as_name(name, default="imported"),
        "description": f"Imported from {_kind_name(marian)}.",
        "corpus": "imported",
        "model": _model_settings(marian),
        "decoding": {
            "beam": marian.settings.num_beams,
            "length_penalty": marian.settings.length_penalty,
            "length_penalty_form": "length",
            "min_tokens": marian.settings.min_new_tokens,
            "no_repeat_ngram": marian.settings.no_repeat_ngram_size,
        },
    }
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        setting = f"{first['loc'][-1]}: {first['input']}, which nmt's model cannot have: {first['msg']}"
        file_of_search = "the .yml of the decoder" if marian.kind == "npz" else "generation_config.json"
        hint = f"put another value there and, for the search, in {file_of_search}"
        raise ModelError(f"{marian.directory} has {setting}", where=str(marian.file), hint=hint) from None


def _model_settings(marian: MarianModel) -> dict[str, Any]:
    """The model section of the recipe."""
    settings = marian.settings
    width = settings.d_model // settings.encoder_attention_heads
    tying = "all" if settings.share_encoder_decoder_embeddings else "target"
    has_bias = bool(marian.weights[TensorName.BIAS].any())
    # A bias keeps the search from our start, which is a second row of another piece.
    is_start_second = settings.decoder_start_token_id in (settings.pad_token_id, settings.eos_token_id)
    sinusoids = "sinusoidal-fairseq" if marian.is_m2m100 else "sinusoidal"
    return {
        "encoder_layers": settings.encoder_layers,
        "decoder_layers": settings.decoder_layers,
        "d_model": settings.d_model,
        "d_ff": settings.encoder_ffn_dim,
        "heads": settings.encoder_attention_heads,
        "d_k": width,
        "d_v": width,
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "ffn_dropout": settings.activation_dropout,
        "norm": marian.norm,
        "norm_epsilon": marian.norm_epsilon,
        "activation": ACTIVATIONS[settings.activation_function],
        "attention_bias": True,
        "positions": "learned" if marian.has_own_positions else sinusoids,
        "max_positions": settings.max_position_embeddings,
        "tying": tying if settings.tie_word_embeddings else "none",
        "output_bias": has_bias or is_start_second,
    }


def _kind_name(marian: MarianModel) -> str:
    if marian.kind == "npz":
        return "a Marian model"
    return f"a Hugging Face {'M2M-100' if marian.is_m2m100 else 'Marian'} model"


def _directions(marian: MarianModel, name: str, given: LanguagePair | None) -> Directions:
    """The languages of the model, with the pieces that name them; UsageError as `import_model` raises it."""
    if marian.is_m2m100:
        if given is not None:
            message = f"{name} has its {len(marian.symbols)} languages in its vocabulary"
            hint = f"leave out `languages`; nmt decode takes --from {given.source} --to {given.target}"
            raise UsageError(message, setting="languages", hint=hint)
        symbols = dict(marian.symbols)
        return Directions(source_symbols=symbols, target_symbols=symbols, target_symbol_on="target")
    languages = given or marian.languages or _languages_in_name(name, marian)
    if not marian.symbols:
        return Directions(pairs=[languages])
    targets = [code for code in marian.symbols if standard_code(code) != standard_code(languages.source)]
    if given is not None and given.target != _ALL_TARGETS:
        if (target := match_code(given.target, targets)) is None:
            message = (
                f"{name} does not translate into {given.target!r}, but {shown_codes(targets, listed_by='vocab.json')}"
            )
            hint = f"`languages: {given.source}-{_ALL_TARGETS}` takes all of them"
            raise UsageError(message, setting="languages", hint=hint)
        targets = [target]
    pairs = [LanguagePair(source=languages.source, target=code) for code in targets]
    return Directions(pairs=pairs, target_symbols={code: marian.symbols[code] for code in targets})


def _pieces_without_text(marian: MarianModel) -> set[str]:
    """The pieces that stand for no text: languages and, in M2M-100, rows without a piece, such as a mask."""
    rows = set(range(marian.settings.vocab_size)) - set(marian.source_vocabulary.values())
    return {*marian.symbols.values(), *(map(row_name, rows) if marian.is_m2m100 else ())}


def _languages_in_name(name: str, marian: MarianModel) -> LanguagePair:
    """The languages in the name of the model; UsageError if it has none."""
    named = re.search(r"opus-mt-(?:tc-(?:big|base)-)?([A-Za-z_]+)-([A-Za-z_]+)$", name)
    if named is None:
        file = marian.file.name if marian.kind == "npz" else "tokenizer_config.json"
        message = f"the languages of {marian.directory} are not known: its {file} does not say them"
        hint = "add `languages: en-de`, the source's first"
        raise UsageError(message, where=str(marian.directory), setting="languages", hint=hint)
    source, target = named.groups()
    return LanguagePair(source=source, target=target)


def _compare_with_original(
    loaded: LoadedModel, marian: MarianModel, *, source: Sequence[VocabularyRow], target: Sequence[VocabularyRow]
) -> tuple[Agreement | None, str]:
    """The agreement with the other program that reads the model, or None; and the comparison in words."""
    name = "CTranslate2" if marian.kind == "npz" else "transformers"
    program: CTranslate2Program | TransformersProgram
    try:
        if marian.kind == "npz":
            program = ctranslate2_of_npz(marian.file, loaded, source=source, target=target)
        else:
            program = TransformersProgram(marian.directory, symbols=marian.symbols, kind=marian.kind)
    except UsageError as error:
        return None, f"not compared with the original: {error.message}; {error.hint}"
    except (ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:  # of the other program
        reason = first_line(error).replace(str(marian.directory), marian.directory.name)
        return None, f"not compared with the original: loading it in {name} failed: {reason}"
    lines = random_lines(loaded)
    if isinstance(program, TransformersProgram):
        # Marian and M2M-100 read <unk> for a piece that their vocabulary lacks; our tokenizer has no such pieces.
        rows = program.encode(lines)
        lines = [line for line, row in zip(lines, rows, strict=True) if program.unknown not in row][:_NUM_LINES]
    if marian.is_m2m100:
        # Transformers cuts the lines of NLLB by a copy of SentencePiece; where they differ, SentencePiece is right.
        ours = map(loaded.source.pieces, loaded.source.encode(lines))
        same = [line for line, row, other in zip(lines, ours, program.encode(lines), strict=True) if row == other]
        lines = same if 2 * len(same) > len(lines) else lines
    if not lines:
        message = "no line can be spelt in pieces of vocab.json, so nothing can be compared"
        raise damaged_error(message, where=marian.directory / "vocab.json")
    agreement = verify(loaded, program, lines, is_reduced=False)
    return agreement, f"compared with {name} on {agreement}"


def _card(
    marian: MarianModel,
    config: SavedModelConfig,
    *,
    num_parameters: int,
    agreement: Agreement | None,
    inherited: dict[str, Any],
) -> str:
    _, body = read_card(marian.directory)
    front = front_matter(config.languages) | inherited
    licence = names_at_head(inherited, "license")
    if config.imported_from is not None:
        front["base_model"] = config.imported_from.partition("@")[0]
    text = render(
        "imported_model_card.md",
        config=config,
        kind_name=_kind_name(marian),
        num_parameters=num_parameters,
        other_program="CTranslate2" if marian.kind == "npz" else "transformers",
        agreement=agreement,
        licence=None if licence is None else licence_text(licence),
        card=body.lstrip(),
    )
    return with_front_matter(front, text)
