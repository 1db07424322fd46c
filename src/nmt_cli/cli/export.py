"""`nmt export`: a model for another program."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from nmt_cli.cli.arguments import models_of
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.ctranslate2.model import Quantization
    from nmt_cli.interchange.exporting import Target

logger = logging.getLogger(__name__)

_MOST_LINES = 100_000


def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model, or a run for its model.", show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", metavar="ctranslate2|huggingface", help="The program that shall read it.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to write; else beside MODEL, MODEL-ctranslate2."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="float32|int8|...", help="Of CTranslate2's weights, by its names; float32 if not given."),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Source text to compare both sides on, of which 100 lines are taken; else made-up lines.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the export at -o.")] = False,
) -> None:
    """Write a model for CTranslate2 or Hugging Face, once both sides translate a hundred lines alike.

    Example: nmt export runs/base/averaged --to ctranslate2 --precision int8
    """
    from nmt_cli.interchange.exporting import export as write_export

    target = _target(to)
    quantization = _quantization(precision, to=target)
    (model,) = models_of([model])
    if output is None:
        suffix = f"-{quantization}" if quantization != "float32" else ""
        output = model.with_name(f"{model.resolve().name}-{target}{suffix}")
    agreement = write_export(
        model,
        output,
        to=target,
        quantization=quantization,
        lines=None if lines is None else _read(lines),
        overwrite=overwrite,
    )
    logger.info("compared on %s", agreement)
    logger.info("%s: written; how to use it is in its README.md", output)


def _target(to: str) -> Target:
    from nmt_cli.interchange.exporting import Target

    targets: tuple[Target, ...] = get_args(Target)
    for target in targets:
        if to == target:
            return target
    raise UsageError(f"there is no export to {to!r}", where="--to", hint=f"take one of: {', '.join(targets)}")


def _quantization(precision: str | None, *, to: Target) -> Quantization:
    from nmt_cli.decoding.ctranslate2.model import Quantization

    if precision is None:
        return "float32"
    if to != "ctranslate2":
        raise UsageError(
            "an export to Hugging Face is in float32, of which transformers makes what it is asked for",
            where="--precision",
            hint="leave --precision out",
        )
    names: tuple[Quantization, ...] = get_args(Quantization)
    for name in names:
        if precision == name:
            return name
    raise UsageError(
        f"CTranslate2 has no precision called {precision!r}",
        where="--precision",
        hint=f"take one of: {', '.join(names)}",
    )


def _read(file: Path) -> list[str]:
    from nmt_cli.cli.decode.files import read_blocks
    from nmt_cli.files import open_bytes

    with open_bytes(file) as stream:
        chunks = iter(lambda: stream.read(1 << 16), b"")
        blocks = read_blocks(chunks, has_more=lambda: True, max_lines=1000, name=str(file))
        return list(islice((line for block in blocks for line in block), _MOST_LINES))
