"""`nmt attention`: the attention of a model, as JSON or as a drawing."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt_cli import files
from nmt_cli.cli.arguments import DebugOption, FromOption, QuietOption, ToOption, find_models, model_option
from nmt_cli.errors import DataError, UsageError
from nmt_cli.text_encoding import check_characters

if TYPE_CHECKING:
    from nmt_cli.decoding.attention_maps import AttentionMap
    from nmt_cli.model.teacher_forcing import AttentionPart

logger = logging.getLogger(__name__)


def attention(
    source: Annotated[str, typer.Argument(metavar="SENTENCE", help="In the source language.", show_default=False)],
    translation: Annotated[
        str | None,
        typer.Argument(metavar="TRANSLATION", help="Its translation; else the model's own.", show_default=False),
    ] = None,
    model: Annotated[
        Path | None,
        model_option(help="Model, or a run for its model; else the newest under runs/."),
    ] = None,
    to: ToOption = None,
    from_: FromOption = None,
    part: Annotated[
        Literal["cross", "encoder", "decoder"],
        typer.Option(metavar="cross|encoder|decoder", help="cross: from the translation to the source."),
    ] = "cross",
    layer: Annotated[
        int | None, typer.Option("--layer", metavar="N", help="A single layer, from 1; else all of them.")
    ] = None,
    head: Annotated[
        str, typer.Option("--head", metavar="N|mean|all", help="A single head, from 1, the mean of them, or each.")
    ] = "mean",
    words: Annotated[bool, typer.Option("--words", help="Show words, not pieces; with cross.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.svg", help="Draw an SVG instead of printing JSON.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file at -o.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what each piece of a translation attends to, by layer and head.

    Example: nmt attention -m runs/base --head all -o attention.svg "The house is old."
    """
    from nmt_cli.artifacts.model_directory import load_saved_config

    _check_texts(source, translation)
    if words and part != "cross":
        message = "--words is about the attention from the translation to the source"
        raise UsageError(message, where="--words", hint="leave --words out, or take --part cross")
    if output is not None:
        _check_output(output, overwrite=overwrite)
    (directory,) = find_models(None if model is None else [model])
    config = load_saved_config(directory).recipe.model
    num_layers = config.encoder_layers if part == "encoder" else config.decoder_layers
    layers = list(range(num_layers)) if layer is None else [_parse_index(str(layer), num_layers, "--layer")]
    match head:
        case "mean":
            heads: list[int | None] = [None]
        case "all":
            heads = list(range(config.heads))
        case _:
            heads = [_parse_index(head, config.heads, "--head", other_values=", mean or all")]
    attention_map = _attention_map(directory, source, translation, from_=from_, to=to, part=part, words=words)
    _draw_or_print(attention_map, layers=layers, heads=heads, output=output)


def _check_texts(source: str, translation: str | None) -> None:
    for where, text in (("SENTENCE", source), ("TRANSLATION", translation)):
        if text is not None and not text.strip():
            hint = 'for example nmt attention "The house is old."'
            raise DataError(f"the {where.lower()} is blank", where=where, hint=hint)
        check_characters(text or "", where=where)


def _check_output(output: Path, *, overwrite: bool) -> None:
    if output.suffix != ".svg":
        hint = f"-o {shlex.quote(str(output.with_suffix('.svg')))}"
        raise UsageError(f"{output} would not be an SVG by its name", where="--output", hint=hint)
    if output.exists() and not overwrite:
        hint = "add --overwrite, or give another file with -o"
        raise UsageError(f"{output} exists already", where=str(output), hint=hint)


def _parse_index(number: str, count: int, option: str, *, other_values: str = "") -> int:
    """The index, from 0, of a layer or head that the user counts from 1."""
    if not number.isdecimal() or not 1 <= int(number) <= count:
        hint = f"a {option.removeprefix('--')} from 1 to {count}{other_values}"
        raise UsageError(f"{option} is {number}, and the model has {count}", where=option, hint=hint)
    return int(number) - 1


def _attention_map(
    model: Path,
    source: str,
    translation: str | None,
    *,
    from_: str | None,
    to: str | None,
    part: AttentionPart,
    words: bool,
) -> AttentionMap:
    import torch

    from nmt_cli.decoding.attention_maps import attention_between_pieces, attention_between_words
    from nmt_cli.decoding.torch_engine import TorchEngine
    from nmt_cli.decoding.translator import LineTranslator

    device = torch.device("cpu")
    engine = TorchEngine.load([model], device=device, precision="fp32")
    if translation is None and part != "encoder":
        (best,) = LineTranslator(engine).translate([source], to=to, from_=from_)
        translation = best.text
        logger.info("translation: %s", translation)
    (loaded,), direction = engine.loaded, engine.directions.find(from_, to)
    if words:
        assert translation is not None
        return attention_between_words(loaded, source, translation, direction=direction, device=device)
    return attention_between_pieces(loaded, source, translation, direction=direction, part=part, device=device)


def _draw_or_print(
    attention_map: AttentionMap, *, layers: list[int], heads: list[int | None], output: Path | None
) -> None:
    """Draw the heads of the layers into a file, or print them; None stands for the mean of all heads."""
    if output is None:
        typer.echo(json.dumps(attention_map.panels_as_json(layers=layers, heads=heads), ensure_ascii=False))
        return
    files.write_file(output, attention_map.as_svg(layers=layers, heads=heads), error=DataError)
    logger.info("%s: written", output)
