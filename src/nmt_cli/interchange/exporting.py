"""The export of a model directory for another program, written only if both compute the same."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, assert_never

import torch

from nmt_cli import __version__, files
from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.card import join_front_matter, split_front_matter, without_usage_section
from nmt_cli.artifacts.manifest import foreign_kind
from nmt_cli.artifacts.model_directory import LoadedModel, SavedModelConfig
from nmt_cli.decoding.ctranslate2 import model as ctranslate2_model
from nmt_cli.decoding.ctranslate2.engine import PATIENCE, length_exponent
from nmt_cli.decoding.ctranslate2.model import Quantization
from nmt_cli.errors import DataError, ModelError
from nmt_cli.interchange import huggingface, programs
from nmt_cli.interchange.programs import CTranslate2Program, TransformersProgram
from nmt_cli.interchange.verification import Agreement, OtherProgram, made_up_lines, usable_lines, verify
from nmt_cli.templates.render import render

Target = Literal["ctranslate2", "huggingface"]
_KINDS: dict[Target, str] = {"ctranslate2": "a CTranslate2 model", "huggingface": "a Hugging Face model"}
_MIN_LINES = 10
_MAX_PIECES = 512


def export(
    model: Path,
    output: Path,
    *,
    to: Target,
    quantization: Quantization,
    lines: Sequence[str] | None,
    overwrite: bool,
) -> Agreement:
    """Write the model directory `model` as `output` for another program, and return how closely both agree on `lines`.

    Without `lines`, they are made up of the model's own pieces. `quantization` is CTranslate2's; float32 weights
    are always compared first. Raises ModelError if `model` is no model, if the target cannot express it, if the two
    differ, or if `output` may not be replaced. Raises UsageError if a package is missing, and DataError if `lines`
    are too few.
    """
    files.check_replaceable(
        output,
        what=_KINDS[to],
        is_one=lambda found: foreign_kind(found) == _KINDS[to],
        overwrite=overwrite,
        error=ModelError,
    )
    (programs.transformers_library if to == "huggingface" else ctranslate2_model.import_ctranslate2)()
    loaded = model_directory.load_model(model, device=torch.device("cpu"), dtype=torch.float32)
    chosen = _comparison_lines(lines, loaded)
    with files.new_directory(output, error=ModelError) as temporary:
        match to:
            case "ctranslate2":
                agreement = _as_ctranslate2(loaded, temporary, quantization=quantization, lines=chosen)
                for name in ("source.spm", "target.spm"):
                    shutil.copyfile(model / name, temporary / name)
            case "huggingface":
                spm = {"source_spm": model / "source.spm", "target_spm": model / "target.spm"}
                huggingface.write_huggingface(loaded, temporary, **spm)
                agreement = verify(loaded, TransformersProgram(temporary), chosen, is_reduced=False)
            case other:
                assert_never(other)
        card = _card(model, loaded.config, to=to, quantization=quantization, agreement=agreement)
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return agreement


def _as_ctranslate2(
    loaded: LoadedModel, directory: Path, *, quantization: Quantization, lines: Sequence[str]
) -> Agreement:
    def engine() -> OtherProgram:
        return CTranslate2Program(directory, source=loaded.source, target=loaded.target)

    ctranslate2_model.write_ctranslate2(loaded, directory, quantization="float32")
    agreement = verify(loaded, engine(), lines, is_reduced=False)
    if quantization == "float32":
        return agreement
    _clear(directory)
    ctranslate2_model.write_ctranslate2(loaded, directory, quantization=quantization)
    return verify(loaded, engine(), lines, is_reduced=True)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def _comparison_lines(lines: Sequence[str] | None, loaded: LoadedModel) -> list[str]:
    if lines is None:
        return made_up_lines(loaded)
    chosen = usable_lines(lines, loaded)
    if len(chosen) < _MIN_LINES:
        raise DataError(
            f"{len(chosen)} of its {len(lines):,} lines can be compared, and {_MIN_LINES} are needed: different"
            " ones, not blank, not long, spelt in the model's pieces",
            setting="input",
            hint="give a file of ordinary sentences of the source language, or leave `input` out",
        )
    return chosen


def _card(
    model: Path, config: SavedModelConfig, *, to: Target, quantization: Quantization, agreement: Agreement
) -> str:
    """README.md: how to use this directory, then the model's own card without its section on nmt."""
    card = model / "README.md"
    original = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    front, body = split_front_matter(original)
    library = "ctranslate2" if to == "ctranslate2" else "transformers"
    front = {"language": [config.languages.source, config.languages.target], **front}
    decoding = config.recipe.decoding
    text = render(
        "exported_model_card.md",
        to=to,
        quantization=quantization,
        version=__version__,
        decoding=decoding,
        patience=PATIENCE if decoding.beam > 1 else 1,
        exponent=length_exponent(decoding),
        max_pieces=min(_MAX_PIECES, config.recipe.model.max_positions),
        agreement=agreement,
        card=without_usage_section(body),
    )
    return join_front_matter(front | {"library_name": library, "pipeline_tag": "translation"}, text)
