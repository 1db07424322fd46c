"""`nmt attention`: the attention of a model, in the terminal and as a drawing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from nmt_cli.cli.arguments import models_of
from nmt_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.attention_maps import AttentionMap
    from nmt_cli.model.forced import AttentionPart

logger = logging.getLogger(__name__)

SourceArgument = Annotated[str, typer.Argument(metavar="SENTENCE", help="In the source language.", show_default=False)]
TargetArgument = Annotated[
    str | None,
    typer.Argument(metavar="TRANSLATION", help="Its translation; else the model's own.", show_default=False),
]
ModelOption = Annotated[
    list[Path] | None,  # a list so that a second one is refused, not dropped
    typer.Option("--model", "-m", metavar="DIR", help="Model, or a run for its model; else the newest under runs/."),
]
PartOption = Annotated[
    str, typer.Option(metavar="cross|encoder|decoder", help="cross: from the translation to the source.")
]
LayerOption = Annotated[
    int | None, typer.Option("--layer", "-l", metavar="N", help="A single layer, from 1; else all of them.")
]
HeadOption = Annotated[
    str, typer.Option("--head", metavar="N|mean|all", help="A single head, from 1, the mean of them, or each.")
]
WordsOption = Annotated[bool, typer.Option("--words", help="Words in place of pieces; with cross.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.svg", help="Draw an SVG in place of the terminal.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the file at -o.")]


def attention(
    source: SourceArgument,
    translation: TargetArgument = None,
    model: ModelOption = None,
    part: PartOption = "cross",
    layer: LayerOption = None,
    head: HeadOption = "mean",
    words: WordsOption = False,
    output: OutputOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Show what each piece of a translation looks at in the source, for each layer and head.

    Example: nmt attention -m runs/base --head all -o attention.svg "The house is old ."
    """
    _check_texts(source, translation)
    chosen = _part(part, words=words)
    if output is not None and output.suffix != ".svg":
        hint = f"-o {output.with_suffix('.svg')}"
        raise UsageError(f"{output} would not be an SVG by its name", where="--output", hint=hint)
    if output is not None and output.exists() and not overwrite:
        hint = "add --overwrite, or give another file with -o"
        raise UsageError(f"{output} exists already", where=str(output), hint=hint)
    directory = _model(model)
    num_layers, num_heads = _size(directory, part=chosen)
    layers = list(range(num_layers)) if layer is None else [_number(layer, num_layers, "--layer")]
    heads = _heads(head, num_heads)
    found = _map(directory, source, translation, part=chosen, words=words)
    _show(found, layers=layers, heads=heads, output=output)


def _check_texts(source: str, translation: str | None) -> None:
    if not source.strip():
        hint = 'give one: nmt attention "The house is old ."'
        raise DataError("the sentence is blank", where="SENTENCE", hint=hint)
    if translation is not None and not translation.strip():
        hint = "give one after the sentence, or leave it out for the model's own"
        raise DataError("the translation is blank", where="TRANSLATION", hint=hint)


def _show(found: AttentionMap, *, layers: list[int], heads: list[int | None], output: Path | None) -> None:
    from nmt_cli.decoding.attention_svg import attention_as_svg, attention_as_text

    if output is not None:
        try:
            output.write_text(attention_as_svg(found, layers=layers, heads=heads), encoding="utf-8")
        except OSError as problem:
            hint = "give another file with -o"
            raise DataError(f"cannot write the drawing: {problem.strerror}", where=str(output), hint=hint) from None
        logger.info("%s: written", output)
        return
    for layer in layers:
        for head in heads:
            weights = found.weights[layer].mean(dim=0) if head is None else found.weights[layer, head]
            name = "mean of all heads" if head is None else f"head {head + 1}"
            typer.echo(f"layer {layer + 1}, {name}")
            typer.echo("\n".join(attention_as_text(found, weights)) + "\n")


def _map(model: Path, source: str, translation: str | None, *, part: AttentionPart, words: bool) -> AttentionMap:
    from nmt_cli.decoding.attention_maps import AttentionMaps

    if translation is None and part != "encoder":
        from nmt_cli.decoding.translator import Translator

        (best,) = Translator.from_pretrained(model, device="cpu").translate([source])
        translation = best.text
        logger.info("translation: %s", translation)
    maps = AttentionMaps.from_pretrained(model)
    if words:
        return maps.cross_words(source, translation or "")
    # The encoder sees no translation, and the map of it needs some.
    return maps.pieces(source, source if translation is None else translation, part=part)


def _model(given: Sequence[Path] | None) -> Path:
    if given and len(given) > 1:
        hint = f"give one of them: -m {given[0]}"
        raise UsageError(f"attention is shown of one model, not of {len(given)}", where="--model", hint=hint)
    (model,) = models_of(given)
    return model


def _size(model: Path, *, part: AttentionPart) -> tuple[int, int]:
    """The number of layers in that part of the model, and the number of heads in each layer."""
    from nmt_cli.artifacts.manifest import require_model
    from nmt_cli.artifacts.model_directory import load_saved_config

    require_model(model)
    config = load_saved_config(model).recipe.model
    return config.encoder_layers if part == "encoder" else config.decoder_layers, config.heads


def _part(part: str, *, words: bool) -> AttentionPart:
    from nmt_cli.model.forced import AttentionPart

    if words and part != "cross":
        hint = "leave --words out, or take --part cross"
        raise UsageError(
            "--words is about the attention from the translation to the source", where="--words", hint=hint
        )
    parts: tuple[AttentionPart, ...] = get_args(AttentionPart)
    for one in parts:
        if part == one:
            return one
    raise UsageError(f"there is no part called {part!r}", where="--part", hint=f"take one of: {', '.join(parts)}")


def _heads(given: str, limit: int) -> list[int | None]:
    """The places of the heads to show, from 0; None is the mean of all."""
    match given:
        case "mean":
            return [None]
        case "all":
            return list(range(limit))
        case _:
            return [_number(given, limit, "--head", more=", mean or all")]


def _number(given: int | str, limit: int, option: str, *, more: str = "") -> int:
    """The place, from 0, of a layer or head that is counted from 1."""
    text = str(given)
    if not text.isdecimal() or not 1 <= int(text) <= limit:
        hint = f"a {option.removeprefix('--')} from 1 to {limit}{more}"
        raise UsageError(f"{option} is {text}, and the model has {limit}", where=option, hint=hint)
    return int(text) - 1
