"""`nmt decode`: lines of text in, their translations out."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli.cli.arguments import DebugOption, FromOption, QuietOption, ToOption, find_models, model_option
from nmt_cli.cli.decode.document_file import DocumentFile, check_document, choose_source
from nmt_cli.cli.decode.input import STANDARD, OnInvalidBytes
from nmt_cli.cli.decode.output import FormatName, OutputFormat, check_output, file_identity, is_stream, open_output
from nmt_cli.cli.decode.text_lines import TextLines, open_lines
from nmt_cli.console import ProgressLines, show_progress
from nmt_cli.devices import DECODING_SPINS, bound_spinning
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.parallel import TranslatedBlock, TranslationJob
    from nmt_cli.decoding.translation import Translation

logger = logging.getLogger(__name__)

_search_option = partial(typer.Option, rich_help_panel="Search")
_sampling_option = partial(typer.Option, rich_help_panel="Sampling")
_output_option = partial(typer.Option, rich_help_panel="Output")
_computing_option = partial(typer.Option, rich_help_panel="Computing")


def decode(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Document to translate: .html, .docx, .odt, .epub, .md, .po, .xliff, .srt or other; else lines.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[Path] | None,
        model_option(help="Model or run; repeated: an ensemble. Else the newest run."),
    ] = None,
    source: Annotated[
        Path, typer.Option("--input", "-i", metavar="FILE", help="Text to translate, also .gz, .zst, .xz; - is stdin.")
    ] = STANDARD,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, continued after a stop; - is stdout.")
    ] = STANDARD,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file at -o.")] = False,
    column: Annotated[
        str | None,
        typer.Option(
            "--column", metavar="NAME", help="Column of a CSV or TSV document to translate: its name or number."
        ),
    ] = None,
    to: ToOption = None,
    from_: FromOption = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", metavar="NAME=VALUE", help="A tag of the training text, such as domain=news; repeatable."
        ),
    ] = None,
    prefix: Annotated[
        Path | None,
        typer.Option("--prefix", metavar="FILE", help="Beginnings of translations, one per line, which may be blank."),
    ] = None,
    terms: Annotated[
        Path | None,
        typer.Option("--terms", metavar="FILE", help="Terms and their translations, in two columns of TSV or CSV."),
    ] = None,
    errors: Annotated[
        OnInvalidBytes,
        typer.Option(
            "--errors", metavar="strict|replace", help="Bytes that are not UTF-8: an error, or U+FFFD instead."
        ),
    ] = "strict",
    stream: Annotated[
        bool, typer.Option("--stream", help="Translate each line at once, without waiting for more.")
    ] = False,
    beam: Annotated[
        int | None,
        _search_option("--beam", "-b", metavar="N", help="Beam width; 1: greedy search. Else the model's own."),
    ] = None,
    length_penalty: Annotated[
        float | None,
        _search_option(metavar="A", help="Alpha: a larger one favours longer translations; else the model's own."),
    ] = None,
    length_penalty_form: Annotated[
        str | None,
        _search_option(
            metavar="gnmt|length|none",
            help="Divide log P by ((5 + n) / 6)^alpha, by n^alpha, or by nothing; else the model's own.",
        ),
    ] = None,
    max_extra_tokens: Annotated[
        int | None,
        _search_option(
            metavar="N",
            help="How many pieces longer than its source a translation may be; else the model's own.",
        ),
    ] = None,
    min_tokens: Annotated[
        int | None,
        _search_option(metavar="N", help="Fewest pieces of a translation, without EOS; else the model's own."),
    ] = None,
    no_repeat_ngram: Annotated[
        int | None,
        _search_option(
            metavar="N", help="No N pieces in a row occur twice in a translation; 0: any may; else the model's own."
        ),
    ] = None,
    stop_loops: Annotated[
        bool | None,
        _search_option("--stop-loops", help="Search again if a translation repeats itself and its source does not."),
    ] = None,
    split_sentences: Annotated[
        str | None,
        _search_option(
            metavar="auto|always|never",
            help="Translate each sentence of a line by itself; auto: unless training had many such lines.",
        ),
    ] = None,
    nbest: Annotated[
        int,
        _search_option(
            "--nbest", "-n", metavar="N", help="Translations of a line, at most the beam; with tsv or jsonl."
        ),
    ] = 1,
    mbr: Annotated[
        str | None,
        _search_option(
            "--mbr", metavar="chrf|bleu", help="Take the candidate most like the others (minimum Bayes risk)."
        ),
    ] = None,
    copy_symbols: Annotated[
        bool,
        _search_option("--copy-symbols", help="Leave addresses, placeholders and lines without letters as they are."),
    ] = False,
    markup: Annotated[
        str | None,
        _search_option(
            metavar="html|xml", help="Lines have tags, which stay: each on the words that translate its words."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        _sampling_option(metavar="N", help="Translations to sample for each line; 0: search; else the model's own."),
    ] = None,
    temperature: Annotated[
        float | None,
        _sampling_option(
            metavar="T",
            help="Above 1 it evens probabilities out, below 1 it sharpens them; else the model's own.",
        ),
    ] = None,
    top_k: Annotated[
        int | None, _sampling_option(metavar="K", help="Sample from the K most probable pieces; else the model's own.")
    ] = None,
    top_p: Annotated[
        float | None,
        _sampling_option(
            metavar="P",
            help="Sample from the smallest set of pieces whose probabilities sum to P; else the model's own.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        _sampling_option(
            metavar="N", help="Seed of sampling; samples depend on it and on the line's number; else the model's own."
        ),
    ] = None,
    form: Annotated[
        FormatName,
        _output_option(
            "--format",
            metavar="text|tsv|jsonl",
            help="tsv: line, rank, score, log-probability, text. jsonl: objects with alternatives.",
        ),
    ] = "text",
    word_scores: Annotated[
        bool,
        _output_option("--word-scores", help="Log-probability of each word and of the end; with tsv or jsonl."),
    ] = False,
    alignments: Annotated[
        bool,
        _output_option("--alignments", help="Pairs of source and target words, 0-0 1-2 (Pharaoh); with tsv or jsonl."),
    ] = False,
    stats: Annotated[
        bool,
        _output_option("--stats", help="Sentences and tokens per second, engine and precision, on stderr."),
    ] = False,
    batch_tokens: Annotated[
        int | None,
        _computing_option(
            metavar="N", help="Tokens per batch of the search: source pieces times beam; else the model's own."
        ),
    ] = None,
    engine: Annotated[
        str,
        _computing_option(metavar="torch|ctranslate2", help="ctranslate2 is an extra that is fast on CPUs."),
    ] = "torch",
    precision: Annotated[
        str,
        _computing_option(metavar="auto|fp32|bf16|int8", help="auto: fp32 on a CPU, bf16 on a GPU; int8 is for CPUs."),
    ] = "auto",
    device: Annotated[
        str, _computing_option(metavar="auto|cpu|cuda|cuda:N", help="auto: a GPU if there is one.")
    ] = "auto",
    threads: Annotated[
        int | None, _computing_option(min=1, metavar="N", help="CPUs to use; else all allowed ones.")
    ] = None,
    workers: Annotated[
        int | None,
        _computing_option(
            min=1, metavar="N", help="Processes, each with the model; with -i. Else one, or one per GPU."
        ),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Translate lines of text, n in and n out, or a document.

    Example: nmt decode --beam 4 < input.txt > output.txt
    """
    bound_spinning(DECODING_SPINS)
    source, is_document = choose_source(file, source)
    check_output(output, inputs=list(filter(None, (source, prefix, terms))), overwrite=overwrite)
    if is_document:
        flags_for_lines = {
            "--prefix": prefix is not None,
            "--format": form != "text",
            "--nbest": nbest != 1,
            "--word-scores": word_scores,
            "--alignments": alignments,
            "--errors": errors != "strict",
            "--stream": stream,
            "--markup": markup is not None,
        }
        check_document(source, output=output, refused=[flag for flag, is_given in flags_for_lines.items() if is_given])
    elif column is not None:
        hint = "give a CSV or TSV file without -i: nmt decode FILE --column NAME"
        raise UsageError("lines of text have no columns", where="--column", hint=hint)
    has_terms, is_bulk = terms is not None, source != STANDARD and not stream
    formatting = OutputFormat(form, nbest=nbest, word_scores=word_scores, alignments=alignments, has_terms=has_terms)
    _check_workers(workers, is_bulk=is_bulk)
    overrides = {
        "beam": beam,
        "length_penalty": length_penalty,
        "length_penalty_form": length_penalty_form,
        "max_extra_tokens": max_extra_tokens,
        "min_tokens": min_tokens,
        "no_repeat_ngram": no_repeat_ngram,
        "stop_loops": stop_loops,
        "split_sentences": split_sentences,
        "samples": samples,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "batch_tokens": batch_tokens,
    }
    with ExitStack() as stack:
        lines = None
        if not is_document:
            opened = open_lines(source, prefix_file=prefix, is_streamed=stream, errors=errors, formatting=formatting)
            lines = stack.enter_context(opened)
        models = find_models(model)  # raises the error of a wrong name before torch is imported
        to_translate = lines or DocumentFile.read(source, model=models[0], from_=from_, to=to, column=column)
        from nmt_cli.decoding import parallel
        from nmt_cli.decoding.terms import TermList

        options: dict[str, Any] = {"nbest": nbest, "mbr": mbr, "word_scores": word_scores, "alignments": alignments}
        options |= {"copy_symbols": copy_symbols, "markup": markup, **to_translate.options}
        spoken = {"to": to, "from_": from_, "tags": _parse_tags(tag or [])}
        options |= {name: value for name, value in spoken.items() if value}
        options |= {"terms": TermList.read(terms)} if terms is not None else {}
        job = parallel.TranslationJob(models, engine, precision, device, threads, overrides=overrides, options=options)
        jobs = parallel.jobs_for_workers(job, workers=workers, is_bulk=is_bulk)
        translate = stack.enter_context(parallel.parallel_translator(jobs))
        (probe,) = translate([parallel.LineBlock(1, [])])  # raises the error of wrong settings before input is awaited
        statistics = Statistics(_engine_and_devices(probe, [one.device for one in jobs]))
        inputs = {"input": source, "prefix": prefix, "terms": terms}
        record = _job_record(probe, job, inputs=inputs, output=output, form=form, column=column)
        write, lines_done = stack.enter_context(
            open_output(output, job=record, overwrite=overwrite, finish=to_translate.finish)
        )
        is_typed = stream or (source == STANDARD and sys.stdin.isatty())
        count = stack.enter_context(show_count(to_translate, output, is_typed=is_typed, has_bar=len(jobs) == 1))
        count(lines_done)
        for result in translate(to_translate.line_blocks(lines_done=lines_done)):
            statistics.add(result.translations, started=result.started, ended=result.ended)
            write(to_translate.render(result.translations, first_line=lines_done + 1))
            for number, translation in enumerate(result.translations, lines_done + 1):
                if translation.unmet_terms:
                    unmet = ", ".join(map(repr, translation.unmet_terms))
                    logger.warning("%s lacks the translation of %s", to_translate.place(number), unmet)
            lines_done += len(result.translations)
            count(lines_done)
    if stats:
        typer.echo(str(statistics), err=True)


def _parse_tags(tags: Sequence[str]) -> dict[str, str]:
    """The tags by their names; UsageError if one is not NAME=VALUE."""
    for tag in tags:
        if not all(tag.partition("=")):
            hint = "for example --tag domain=news"
            raise UsageError(f"--tag {tag} is not NAME=VALUE", where="--tag", hint=hint)
    return {name: value for name, _, value in (tag.partition("=") for tag in tags)}


def _check_workers(workers: int | None, *, is_bulk: bool) -> None:
    """Raise UsageError if several workers would translate a stream."""
    if workers is not None and workers > 1 and not is_bulk:
        message = f"--workers {workers} would translate ahead of a stream, whose lines are answered as they come"
        hint = "give the text as a file, with -i FILE and without --stream, or leave out --workers"
        raise UsageError(message, where="--workers", hint=hint)


@dataclass(slots=True)
class Statistics:
    """Counts of sentences and tokens, the engine, and the seconds; loading and waiting for input do not count."""

    engine: str
    sentences: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    last_ended: float = 0.0

    def add(self, translations: Sequence[Translation], *, started: float, ended: float) -> None:
        """Count one block; of its time, only the part that overlaps no earlier block."""
        self.sentences += len(translations)
        self.target_tokens += sum(translation.num_pieces for translation in translations)
        self.seconds += max(0.0, ended - max(started, self.last_ended))
        self.last_ended = max(ended, self.last_ended)

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.sentences:,} sentences and {self.target_tokens:,} target tokens in {self.seconds:.2f} s: "
            f"{self.sentences / seconds:,.1f} sentences/s, {self.target_tokens / seconds:,.0f} tokens/s, "
            f"by {self.engine}"
        )


@contextmanager
def show_count(
    text: TextLines | DocumentFile, output: Path, *, is_typed: bool, has_bar: bool
) -> Iterator[Callable[[int], object]]:
    """A function that shows on stderr how many lines or blocks are done, with the whole number and the time left.

    Nothing is shown beside translations on the same terminal, and between lines that the user types. Without a bar,
    which the messages of worker processes would break, it is a line now and then.
    """
    if is_typed or (output == STANDARD and sys.stdout.isatty()):
        yield lambda done: None
        return
    total = text.total()
    with show_progress() if has_bar else nullcontext(ProgressLines(time.monotonic)) as progress:
        yield lambda done: progress(text.unit, done, total)


def _engine_and_devices(result: TranslatedBlock, devices: Sequence[str]) -> str:
    """The engine, its precision and its devices, for --stats."""
    if len(devices) == 1:
        return f"{result.engine} in {result.precision} on {result.device}"
    names = list(dict.fromkeys(devices)) if devices[0].startswith("cuda:") else [result.device]
    return f"{len(devices)} workers of {result.engine} in {result.precision} on {', '.join(names)}"


def _job_record(
    probe: TranslatedBlock,
    job: TranslationJob,
    *,
    inputs: Mapping[str, Path | None],
    output: Path,
    form: str,
    column: str | None,
) -> dict[str, Any] | None:
    """All that the translations depend on, so that an interrupted command is only continued by itself.

    None if an input or the output is a stream, which nothing can continue.
    """
    if is_stream(output) or not all(file is None or file.is_file() for file in inputs.values()):
        return None
    from nmt_cli.artifacts.manifest import MANIFEST

    return {
        "engine": probe.engine,
        "precision": probe.precision,
        **{f"model {number}": file_identity(path / MANIFEST) for number, path in enumerate(job.models, 1)},
        **{name: value for name, value in probe.settings.items() if name != "batch_tokens"},
        "format": form,
        "column": column,
        **{name: value for name, value in job.options.items() if name not in inputs},
        **{name: None if file is None else file_identity(file) for name, file in inputs.items()},
    }
