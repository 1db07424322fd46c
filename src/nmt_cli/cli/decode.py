"""`nmt decode`: lines of text in, their translations out."""

from __future__ import annotations

import logging
import os
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
from nmt_cli.cli.decode_progress import Progress, shown_progress
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.blocks import Block, Translated

logger = logging.getLogger(__name__)

# How often a thread of an operation in torch looks for the others before it sleeps. Where other programs use the CPUs,
# hundreds of thousands of times, as is usual, make a short text take up to a hundred times as long (docs/LOG.md).
_SPINS = "1000"


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
    workers: options.WorkersOption = None,
    batch_tokens: options.BatchTokensOption = None,
) -> None:
    """Translate text: n lines in, n lines out, in order; a blank line stays blank.

    Example: nmt decode --beam 4 < input.txt > output.txt
    """
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # read when torch is imported
    check_form(form, nbest=nbest, next_words=next_words, word_scores=word_scores, alignments=alignments)
    check_output(output, source=source, prefix=prefix, overwrite=overwrite)
    is_bulk = source != STANDARD and not stream
    _check_processes(workers, threads, is_bulk=is_bulk)
    settings: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "max_extra_tokens": max_extra_tokens}
    settings |= {"length_penalty_form": length_penalty_form, "min_tokens": min_tokens, "batch_tokens": batch_tokens}
    settings |= {"samples": samples, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    told = Told(form=form, nbest=nbest, next_words=next_words, mbr=mbr, word_scores=word_scores, alignments=alignments)
    with opened_input(source, is_streamed=stream) as blocks, opened_prefixes(prefix, source=source) as next_prefixes:
        from nmt_cli.decoding.blocks import Block, Translating, choose_devices, spread, translating

        models = _models(model)
        devices = choose_devices(device, workers=workers, engine=engine, precision=precision, is_bulk=is_bulk)
        one = Translating(models, engine, precision, device, threads, settings=settings, asked=told.options)
        with translating(spread(one, devices)) as run:
            (nothing,) = run([Block(1, [])])  # refuses settings that make no sense, before input is waited for
            job = _job(nothing, models, source=source, prefix=prefix, told=told)
            statistics = Statistics(_by(nothing, devices))
            with opened_output(output, job=job, overwrite=overwrite, rows_are_numbered=told.has_numbered_rows) as file:
                todo = _blocks(without_first(blocks, file.lines_done, skip=next_prefixes), next_prefixes, file)
                with shown_progress(source, is_streamed=stream, lines_done=file.lines_done) as progress:
                    _write(run(todo), file, told=told, statistics=statistics, progress=progress)
    if stats:
        typer.echo(str(statistics), err=True)


def _blocks(
    blocks: Iterator[list[str]], next_prefixes: Callable[[int], list[str] | None], output: Output
) -> Iterator[Block]:
    """The blocks after those whose lines the output has, with their numbers and prefixes."""
    from nmt_cli.decoding.blocks import Block

    number = output.lines_done + 1
    for lines in blocks:
        yield Block(number, lines, next_prefixes(len(lines)))
        number += len(lines)


def _write(
    results: Iterator[Translated], output: Output, *, told: Told, statistics: Statistics, progress: Progress
) -> None:
    number = output.lines_done + 1
    for result in results:
        statistics.add(result.translations, started=result.started, ended=result.ended)
        text = told.render(result.translations, first_line=number)
        progress.wrote(partial(output.write, text), num_lines=len(result.translations))
        number += len(result.translations)


def _by(result: Translated, devices: Sequence[str]) -> str:
    """What computes, as --stats tells it."""
    if len(devices) == 1:
        return f"{result.engine} in {result.precision} on {result.device}"
    named = list(dict.fromkeys(devices)) if devices[0].startswith("cuda:") else [result.device]
    return f"{len(devices)} workers of {result.engine} in {result.precision} on {', '.join(named)}"


def _check_processes(workers: int | None, threads: int | None, *, is_bulk: bool) -> None:
    for flag, number in (("--threads", threads), ("--workers", workers)):
        if number is not None and number < 1:
            raise UsageError(f"{flag} is {number}, but should be at least 1", where=flag, hint=f"{flag} 1")
    if workers is not None and workers > 1 and not is_bulk:
        raise UsageError(
            f"--workers {workers} would translate ahead of a stream, whose lines are answered as they come",
            where="--workers",
            hint="give the text as a file, with -i FILE and without --stream, or leave out --workers",
        )


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
    nothing: Translated,
    models: Sequence[Path],
    *,
    source: Path,
    prefix: Path | None,
    told: Told,
) -> dict[str, Any] | None:
    """What the translations hang on, by which an interrupted command knows its own; None where a stream is read."""
    if not source.is_file() or (prefix is not None and not prefix.is_file()):
        return None
    from nmt_cli.bundle.manifest import MANIFEST
    from nmt_cli.decoding.unfinished import identity

    decoding = {name: value for name, value in nothing.settings.items() if name != "batch_tokens"}
    by = {"engine": nothing.engine, "precision": nothing.precision}
    files = {f"model {number}": identity(path / MANIFEST) for number, path in enumerate(models, 1)}
    texts = {"input": identity(source), "prefix": identity(prefix) if prefix is not None else None}
    return {**by, **files, **texts, **decoding, "format": told.form, **told.options}
