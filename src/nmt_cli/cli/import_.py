"""`nmt import`: a model of another program as a model directory."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.recipe.schema import LanguagePair

logger = logging.getLogger(__name__)


def import_(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A Hugging Face Marian directory, as of OPUS-MT.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="Model directory to write.")],
    languages: Annotated[
        str | None, typer.Option(metavar="SRC-TGT", help="As in en-de; else what the directory says.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model at -o.")] = False,
) -> None:
    """Make a model directory of a Hugging Face Marian model, for example from OPUS-MT.

    Example: nmt import opus-mt-en-de -o models/opus-mt-en-de
    """
    from nmt_cli.interchange.importing import import_marian

    imported = import_marian(directory, output, languages=_languages(languages), overwrite=overwrite)
    pair = f"{imported.languages.source}-{imported.languages.target}"
    logger.info("%s: %s, %.1f million parameters", output, pair, imported.num_parameters / 1e6)
    if imported.lost_pieces:
        logger.info(
            "%s pieces of source.spm are not in the vocabulary: where Marian reads <unk>, smaller pieces are taken",
            f"{imported.lost_pieces:,}",
        )
    if imported.agreement is None:
        logger.info('not compared with the original: that needs pip install "nmt-cli[huggingface]"')
    else:
        logger.info("compared with transformers on %s", imported.agreement)
    logger.info("next: nmt decode -m %s < input.txt > output.txt", shlex.quote(str(output)))


def _languages(given: str | None) -> LanguagePair | None:
    if given is None:
        return None
    from nmt_cli.recipe.schema import LanguagePair

    source, _, target = given.partition("-")
    if not source or not target:
        raise UsageError(
            f"{given!r} is no pair of languages", where="--languages", hint="write it as --languages en-de"
        )
    return LanguagePair(source=source, target=target)
