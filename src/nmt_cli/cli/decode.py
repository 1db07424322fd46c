"""`nmt decode`: lines of text in, their translations out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli import decode_options as options
from nmt_cli.cli.decode_files import (
    STANDARD,
    Output,
    check_output,
    opened_input,
    opened_output,
    opened_prefixes,
    without_first,
)
from nmt_cli.cli.decode_formats import Statistics, Told, check_form
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.translator import Translation, Translator

logger = logging.getLogger(__name__)


def decode(
    model: options.ModelOption = None,
    source: options.InputOption = STANDARD,
    output: options.OutputOption = STANDARD,
    overwrite: options.OverwriteOption = False,
    prefix: options.PrefixOption = None,
    stream: options.StreamOption = False,
    beam: options.BeamOption = None,
    nbest: options.NbestOption = 1,
    length_penalty: options.LengthPenaltyOption = None,
    length_penalty_form: options.LengthPenaltyFormOption = None,
    max_extra_tokens: options.MaxExtraTokensOption = None,
    min_tokens: options.MinTokensOption = None,
    next_words: options.NextWordsOption = None,
    mbr: options.MbrOption = None,
    samples: options.SamplesOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    seed: options.SeedOption = None,
    form: options.FormatOption = "text",
    word_scores: options.WordScoresOption = False,
    alignments: options.AlignmentsOption = False,
    stats: options.StatsOption = False,
    engine: options.EngineOption = "torch",
    precision: options.PrecisionOption = "auto",
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    batch_tokens: options.BatchTokensOption = None,
) -> None:
    """Translate text: n lines in, n lines out, in order; a blank line stays blank.

    Example: nmt decode --beam 4 < input.txt > output.txt
    """
    check_form(form, nbest=nbest, next_words=next_words, word_scores=word_scores, alignments=alignments)
    check_output(output, source=source, overwrite=overwrite)
    _use_threads(threads)
    settings: dict[str, Any]
    settings = {"beam": beam, "length_penalty": length_penalty, "length_penalty_form": length_penalty_form}
    settings |= {"max_extra_tokens": max_extra_tokens, "min_tokens": min_tokens, "batch_tokens": batch_tokens}
    settings |= {"samples": samples, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    told = Told(form=form, nbest=nbest, next_words=next_words, mbr=mbr, word_scores=word_scores, alignments=alignments)
    with opened_input(source, is_streamed=stream) as blocks, opened_prefixes(prefix, source=source) as next_prefixes:
        translator, models = _open(model, device=device, precision=precision, engine=engine)
        translate = partial(translator.translate, **settings, **told.options)
        translate(lines=[])  # refuses settings that make no sense, before input is waited for
        job = _job(translator, models, source=source, prefix=prefix, settings=settings, told=told)
        statistics = Statistics(f"{translator.engine} in {translator.precision} on {translator.device}")
        with opened_output(output, job=job, overwrite=overwrite, rows_are_numbered=told.has_numbered_rows) as opened:
            _translate(translate, blocks, next_prefixes, opened, told=told, statistics=statistics)
    if stats:
        typer.echo(str(statistics), err=True)


def _translate(
    translate: Callable[..., list[Translation]],
    blocks: Iterator[list[str]],
    next_prefixes: Callable[[int], list[str] | None],
    output: Output,
    *,
    told: Told,
    statistics: Statistics,
) -> None:
    """Translate all blocks but the lines that the output has already."""
    number = output.lines_done + 1
    for lines in without_first(blocks, output.lines_done, skip=next_prefixes):
        started = time.perf_counter()
        translations = translate(lines=lines, first_line=number, prefixes=next_prefixes(len(lines)))
        statistics.add(translations, seconds=time.perf_counter() - started)
        output.write(told.render(translations, first_line=number))
        number += len(lines)


def _open(model: Sequence[Path] | None, *, device: str, precision: str, engine: str) -> tuple[Translator, list[Path]]:
    from nmt_cli.decoding.translator import Translator

    models = _models(model)
    return Translator.from_pretrained(models, device=device, precision=precision, engine=engine), models


def _use_threads(threads: int | None) -> None:
    if threads is None:
        return
    if threads < 1:
        raise UsageError(f"--threads is {threads}, but should be at least 1", where="--threads", hint="--threads 1")
    import torch

    torch.set_num_threads(threads)


def _models(given: Sequence[Path] | None) -> list[Path]:
    """The model directories to use: those given, those of runs given, or the newest; the last two are named."""
    from nmt_cli.bundle.directory import model_of_run, newest_model
    from nmt_cli.bundle.kinds import kind_of

    if not given:
        models = [newest_model(Path("runs"))]
        logger.info("model: %s", models[0])
        return models
    models = []
    for path in given:
        is_run = kind_of(path) == "run"
        models.append(model_of_run(path) if is_run else path)
        if is_run:
            logger.info("model: %s", models[-1])
    return models


def _job(
    translator: Translator,
    models: Sequence[Path],
    *,
    source: Path,
    prefix: Path | None,
    settings: dict[str, Any],
    told: Told,
) -> dict[str, Any] | None:
    """What the translations hang on, by which an interrupted command knows its own; None where a stream is read."""
    if not source.is_file() or (prefix is not None and not prefix.is_file()):
        return None
    from nmt_cli.bundle.manifest import MANIFEST
    from nmt_cli.decoding.unfinished import identity

    decoding = translator.settings(**settings).model_dump(exclude={"batch_tokens"})
    by = {"engine": translator.engine, "precision": translator.precision}
    files = {f"model {number}": identity(path / MANIFEST) for number, path in enumerate(models, 1)}
    texts = {"input": identity(source), "prefix": identity(prefix) if prefix is not None else None}
    return {**by, **files, **texts, **decoding, "format": told.form, **told.options}
