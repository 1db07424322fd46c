"""`nmt export` and `nmt import`: a model for another program, and a model of another program."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt_cli.cli.arguments import DebugOption, QuietOption, find_models
from nmt_cli.console import show_progress
from nmt_cli.devices import Quantization
from nmt_cli.errors import UsageError
from nmt_cli.languages import parse_languages

logger = logging.getLogger(__name__)

_MAX_LINES = 100_000


def export(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A model, or a run for its model.", show_default=False),
    ],
    to: Annotated[
        Literal["ctranslate2", "huggingface"],
        typer.Option("--to", metavar="ctranslate2|huggingface", help="The program that will read it."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to write; else MODEL-TO or MODEL-TO-PRECISION."),
    ] = None,
    precision: Annotated[
        Quantization | None,
        typer.Option(metavar="float32|int8|...", help="Precision of CTranslate2's weights; else float32."),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="Source text to verify with; else made-up lines."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the export at -o.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a model for CTranslate2 or Hugging Face, compared on a hundred lines.

    Example: nmt export runs/base/averaged --to ctranslate2 --precision int8
    """
    from nmt_cli.interchange.exporting import export as write_export
    from nmt_cli.scoring.texts import read_text

    if precision is not None and to != "ctranslate2":
        message = "an export to Hugging Face is in float32; transformers converts it to other precisions"
        raise UsageError(message, where="--precision", hint="leave --precision out")
    quantization: Quantization = precision or "float32"
    is_local = model.exists()
    (model,) = find_models([model])
    if output is None:
        suffix = f"-{quantization}" if quantization != "float32" else ""
        name = f"{model.resolve().name}-{to}{suffix}"
        beside = model.resolve() if model.name in ("", "..") else model
        output = beside.with_name(name) if is_local else Path(name)
    agreement = write_export(
        model,
        output,
        to=to,
        quantization=quantization,
        lines=None if lines is None else read_text(str(lines), stdin=sys.stdin).lines[:_MAX_LINES],
        overwrite=overwrite,
    )
    if agreement is not None:
        logger.info("compared on %s", agreement)
    logger.info("%s: written; how to use it is in its README.md", output)


def import_(
    path: Annotated[
        Path,
        typer.Argument(metavar="DIR|NPZ|NAME", help="A Marian, M2M-100 or NLLB-200 model.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="Model directory to write.")],
    languages: Annotated[
        str | None, typer.Option(metavar="SRC-TGT", help="As in en-de; else what the directory says.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model at -o.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Make a model directory of an OPUS-MT, M2M-100 or NLLB-200 model.

    Example: nmt import Helsinki-NLP/opus-mt-en-de -o models/opus-mt-en-de
    """
    from nmt_cli.artifacts.directory_kinds import check_is_importable
    from nmt_cli.artifacts.model_card import licence_text
    from nmt_cli.artifacts.model_directory import check_replaceable
    from nmt_cli.hub import hub_name
    from nmt_cli.interchange.find_model import import_from_hub
    from nmt_cli.recipe.schema import LanguagePair

    check_replaceable(output, overwrite=overwrite)
    given_pair = None
    if languages is not None:
        source, target = parse_languages(languages)
        given_pair = LanguagePair(source=source, target=target)
    name = hub_name(path)
    if name is None:
        check_is_importable(path)
    from nmt_cli.interchange.importing import import_model  # imports torch, which takes seconds

    if name is None:
        imported = import_model(path, output, languages=given_pair, imported_from=None, overwrite=overwrite)
    else:
        imported = import_from_hub(name, output, languages=given_pair, overwrite=overwrite, show_progress=show_progress)
    directions = imported.languages
    logger.info("%s: %s, %.1f million parameters", output, directions, imported.num_parameters / 1e6)
    if imported.licence is not None:
        text = licence_text(imported.licence)
        logger.log(logging.INFO if text == imported.licence else logging.WARNING, "licence %s", text)
    if imported.ignored_settings:
        logger.warning("its search in nmt goes without %s", ", ".join(imported.ignored_settings))
    logger.info("%s", imported.comparison)
    logger.info("next: %s", directions.decode_command(str(output)))
