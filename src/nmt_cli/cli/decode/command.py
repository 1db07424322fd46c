"""`nmt decode`: lines of text in, their translations out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.arguments import models_of
from nmt_cli.cli.decode import options
from nmt_cli.cli.decode.files import (
    STANDARD,
    Output,
    check_output,
    opened_input,
    opened_output,
    opened_prefixes,
    without_first,
)
from nmt_cli.cli.decode.formats import LineCounter, OutputFormat, Statistics, shown_progress
from nmt_cli.cli.decoding_options import takes_decoding_options
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.parallel import LineBlock, TranslatedBlock, TranslationJob

# How often a waiting OpenMP thread looks for the others before it sleeps. If other programs use the CPUs, the default
# of 300,000 makes a short text take up to a hundred times as long (docs/design/cpu-search.md#threads).
_SPINS = "1000"


@takes_decoding_options()
def decode(
    model: options.ModelOption = None,
    source: options.InputOption = STANDARD,
    output: options.OutputOption = STANDARD,
    overwrite: options.OverwriteOption = False,
    prefix: options.PrefixOption = None,
    stream: options.StreamOption = False,
    nbest: options.NbestOption = 1,
    mbr: options.MbrOption = None,
    form: options.FormatOption = "text",
    word_scores: options.WordScoresOption = False,
    alignments: options.AlignmentsOption = False,
    stats: options.StatsOption = False,
    engine: options.EngineOption = "torch",
    precision: options.PrecisionOption = "auto",
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    workers: options.WorkersOption = None,
    *,
    overrides: Mapping[str, Any],
) -> None:
    """Translate text: n lines in, n lines out, in order; a blank line stays blank.

    Example: nmt decode --beam 4 < input.txt > output.txt
    """
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # read when torch is imported
    formatting = OutputFormat(form, nbest=nbest, word_scores=word_scores, alignments=alignments)
    check_output(output, source=source, prefix=prefix, overwrite=overwrite)
    is_bulk = source != STANDARD and not stream
    _check_processes(workers, threads, is_bulk=is_bulk)
    with opened_input(source, is_streamed=stream) as blocks, opened_prefixes(prefix, source=source) as next_prefixes:
        from nmt_cli.decoding import parallel

        models = models_of(model)
        asked = {"nbest": nbest, "mbr": mbr, "word_scores": word_scores, "alignments": alignments}
        job = parallel.TranslationJob(models, engine, precision, device, threads, overrides=overrides, asked=asked)
        devices = parallel.choose_devices(device, workers=workers, engine=engine, precision=precision, is_bulk=is_bulk)
        with parallel.parallel_translator(parallel.jobs_for_devices(job, devices)) as run:
            (nothing,) = run([parallel.LineBlock(1, [])])  # refuses wrong settings before it waits for input
            statistics = Statistics(_by(nothing, devices))
            record = _job_record(nothing, job, source=source, prefix=prefix, form=form)
            rows_are_numbered = formatting.has_numbered_rows
            with opened_output(output, job=record, overwrite=overwrite, rows_are_numbered=rows_are_numbered) as file:
                todo = _blocks(without_first(blocks, file.lines_done, skip=next_prefixes), next_prefixes, file)
                with shown_progress(source, is_streamed=stream, lines_done=file.lines_done) as progress:
                    _write(run(todo), file, formatting=formatting, statistics=statistics, progress=progress)
    if stats:
        typer.echo(str(statistics), err=True)


def _blocks(
    blocks: Iterator[list[str]], next_prefixes: Callable[[int], list[str] | None], output: Output
) -> Iterator[LineBlock]:
    """The blocks that the output does not have yet, with their numbers and prefixes."""
    from nmt_cli.decoding.parallel import LineBlock

    number = output.lines_done + 1
    for lines in blocks:
        yield LineBlock(number, lines, next_prefixes(len(lines)))
        number += len(lines)


def _write(
    results: Iterator[TranslatedBlock],
    output: Output,
    *,
    formatting: OutputFormat,
    statistics: Statistics,
    progress: LineCounter,
) -> None:
    number = output.lines_done + 1
    for result in results:
        statistics.add(result.translations, started=result.started, ended=result.ended)
        text = formatting.render(result.translations, first_line=number)
        progress.wrote(partial(output.write, text), num_lines=len(result.translations))
        number += len(result.translations)


def _by(result: TranslatedBlock, devices: Sequence[str]) -> str:
    """The engine, its precision and its devices, for --stats."""
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


def _job_record(
    nothing: TranslatedBlock, job: TranslationJob, *, source: Path, prefix: Path | None, form: str
) -> dict[str, Any] | None:
    """All that the translations depend on, so that an interrupted command is only continued by itself.

    None if the text is a stream, which nothing can continue.
    """
    if not source.is_file() or (prefix is not None and not prefix.is_file()):
        return None
    from nmt_cli.artifacts.manifest import MANIFEST
    from nmt_cli.cli.decode.partial_output import file_identity

    return {
        "engine": nothing.engine,
        "precision": nothing.precision,
        **{f"model {number}": file_identity(path / MANIFEST) for number, path in enumerate(job.models, 1)},
        "input": file_identity(source),
        "prefix": file_identity(prefix) if prefix is not None else None,
        **{name: value for name, value in nothing.settings.items() if name != "batch_tokens"},
        "format": form,
        **job.asked,
    }
