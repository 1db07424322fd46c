"""`nmt decode`: lines of text in, their translations out."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.translator import Translation

logger = logging.getLogger(__name__)

_STANDARD = Path("-")
_FORMATS = ("text", "tsv", "jsonl")
_CHUNK_BYTES = 1 << 16
# Lines that are sorted by length and translated together; none is written before all of them are done.
_BLOCK_LINES = 1000
# A writer that has more lines gives them within this time; who types them does not notice it.
_PATIENCE_SECONDS = 0.01

ModelOption = Annotated[
    Path | None,
    typer.Option("--model", "-m", metavar="DIR", help="Model, or a run for its model; else the newest under runs/."),
]
InputOption = Annotated[
    Path, typer.Option("--input", "-i", metavar="FILE", help="Text to translate, .gz and .zst too; - is stdin.")
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the file that stands at -o.")]
BeamOption = Annotated[
    int | None,
    typer.Option("--beam", "-b", metavar="N", help="Beam width, 1 for greedy search; else the model's own."),
]
NbestOption = Annotated[
    int,
    typer.Option("--nbest", "-n", metavar="N", help="Translations of a line, at most the beam; with tsv or jsonl."),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(metavar="A", help="alpha: more favours longer translations, 0 is off; else the model's own."),
]
LengthPenaltyFormOption = Annotated[
    str | None,
    typer.Option(
        metavar="gnmt|length|none",
        help="Divide by ((5 + n) / 6)^alpha, by n^alpha, or not; else the model's own.",
    ),
]
MaxExtraTokensOption = Annotated[
    int | None, typer.Option(metavar="N", help="Target pieces beyond those of the source; else the model's own.")
]
BatchTokensOption = Annotated[
    int | None, typer.Option(metavar="N", help="Source pieces times beam searched at once; else the model's own.")
]
PrecisionOption = Annotated[
    str, typer.Option(metavar="auto|bf16|fp32", help="Of matrix products; auto: fp32 on a CPU, bf16 on a GPU.")
]
DeviceOption = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: a GPU where there is one.")]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|tsv|jsonl",
        help="text: a line each. tsv: line, rank, score, ln P, text. jsonl: an object each, with alternatives.",
    ),
]
StatsOption = Annotated[bool, typer.Option("--stats", help="Print sentences and tokens a second on stderr.")]


def decode(
    model: ModelOption = None,
    source: InputOption = _STANDARD,
    output: OutputOption = _STANDARD,
    overwrite: OverwriteOption = False,
    beam: BeamOption = None,
    nbest: NbestOption = 1,
    length_penalty: LengthPenaltyOption = None,
    length_penalty_form: LengthPenaltyFormOption = None,
    max_extra_tokens: MaxExtraTokensOption = None,
    batch_tokens: BatchTokensOption = None,
    precision: PrecisionOption = "auto",
    device: DeviceOption = "auto",
    form: FormatOption = "text",
    stats: StatsOption = False,
) -> None:
    """Translate text: n lines in, n lines out, in order; a blank line stays blank.

    Example: nmt decode --beam 4 < input.txt > output.txt
    """
    _check_form(form, nbest=nbest)
    _check_output(output, source=source, overwrite=overwrite)
    from nmt_cli.decoding.translator import Translator

    with _opened_input(source) as blocks:
        translator = Translator.from_pretrained(_model(model), device=device, precision=precision)
        translate = partial(
            translator.translate,
            beam=beam,
            nbest=nbest,
            length_penalty=length_penalty,
            length_penalty_form=length_penalty_form,
            max_extra_tokens=max_extra_tokens,
            batch_tokens=batch_tokens,
        )
        translate([])  # refuses settings that make no sense, before input is waited for
        statistics = Statistics()
        with _opened_output(output) as write:
            for lines in blocks:
                first_line = statistics.sentences + 1
                started = time.perf_counter()
                translations = translate(lines, first_line=first_line)
                statistics.add(translations, seconds=time.perf_counter() - started)
                write(render(translations, form=form, first_line=first_line))
    if stats:
        typer.echo(str(statistics), err=True)


def render(translations: Sequence[Translation], *, form: str, first_line: int) -> str:
    """The translations of consecutive lines in one of the formats, each line of it with its end."""
    rows: list[str] = []
    for number, best in enumerate(translations, first_line):
        if form == "text":
            rows.append(best.text)
        elif form == "tsv":
            rows += [
                f"{number}\t{rank}\t{one.score:.6f}\t{one.log_prob:.6f}\t{one.text.replace(chr(9), ' ')}"
                for rank, one in enumerate((best, *best.alternatives), 1)
            ]
        else:
            alternatives = [_fields(alternative) for alternative in best.alternatives]
            rows.append(json.dumps({"line": number, **_fields(best), "alternatives": alternatives}, ensure_ascii=False))
    return "".join(row + "\n" for row in rows)


@dataclass(slots=True)
class Statistics:
    """What was translated, and in how many seconds, without loading and without waiting for input."""

    sentences: int = 0
    target_tokens: int = 0
    seconds: float = 0.0

    def add(self, translations: Sequence[Translation], *, seconds: float) -> None:
        """Count one block."""
        self.sentences += len(translations)
        self.target_tokens += sum(translation.num_pieces for translation in translations)
        self.seconds += seconds

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.sentences:,} sentences and {self.target_tokens:,} target tokens in {self.seconds:.2f} s: "
            f"{self.sentences / seconds:,.1f} sentences/s, {self.target_tokens / seconds:,.0f} tokens/s"
        )


def _fields(translation: Translation) -> dict[str, str | float]:
    score, log_prob = round(translation.score, 6), round(translation.log_prob, 6)
    return {"text": translation.text, "score": score, "log_prob": log_prob}


def _check_form(form: str, *, nbest: int) -> None:
    if form not in _FORMATS:
        raise UsageError(
            f"there is no format called {form!r}", where="--format", hint=f"take one of: {', '.join(_FORMATS)}"
        )
    if form == "text" and nbest > 1:
        raise UsageError(
            f"--format text has one translation a line, not {nbest}",
            where="--nbest",
            hint="add --format tsv or --format jsonl",
        )


def _check_output(output: Path, *, source: Path, overwrite: bool) -> None:
    if output == _STANDARD or not output.is_file():
        return
    if source != _STANDARD and source.exists() and source.samefile(output):
        raise UsageError(f"{output} is the input as well", where="--output", hint="give another file with -o")
    if not overwrite:
        raise UsageError(
            f"{output} exists already", where=str(output), hint="add --overwrite, or give another file with -o"
        )


def _model(given: Path | None) -> Path:
    """The model directory to use: the one given, that of the run given, or the newest; the last two are named."""
    from nmt_cli.bundle.directory import model_of_run, newest_model
    from nmt_cli.bundle.kinds import kind_of

    if given is not None and kind_of(given) != "run":
        return given
    model = newest_model(Path("runs")) if given is None else model_of_run(given)
    logger.info("model: %s", model)
    return model


@contextmanager
def _opened_input(source: Path) -> Iterator[Iterator[list[str]]]:
    """The lines of a file or of stdin, in blocks."""
    from nmt_cli.decoding.reading import read_blocks
    from nmt_cli.files import open_bytes

    def blocks(read: Callable[[int], bytes], has_more: Callable[[], bool], name: str) -> Iterator[list[str]]:
        chunks: Iterable[bytes] = iter(partial(read, _CHUNK_BYTES), b"")
        return read_blocks(chunks, has_more=has_more, max_lines=_BLOCK_LINES, name=name)

    if source != _STANDARD:
        with open_bytes(source) as stream:
            yield blocks(stream.read, lambda: True, str(source))
        return
    descriptor = sys.stdin.fileno()
    if os.isatty(descriptor):
        logger.info("type a sentence a line; Ctrl-D ends")

    def has_more() -> bool:
        return bool(select.select([descriptor], [], [], _PATIENCE_SECONDS)[0])

    yield blocks(partial(os.read, descriptor), has_more, "stdin")


@contextmanager
def _opened_output(output: Path) -> Iterator[Callable[[str], None]]:
    """A function that writes text to a file or to stdout at once; DataError where that cannot be written.

    The file appears when the block ends well: until then, and after an error, the text is in FILE.partial beside it.
    """
    name = "stdout" if output == _STANDARD else str(output)
    final = output.resolve()
    unfinished = final.with_name(f"{final.name}.partial")
    is_stream = output == _STANDARD or (final.exists() and not final.is_file())  # a device, a pipe
    with _writing(name):
        if output == _STANDARD:
            stream = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
        else:
            final.parent.mkdir(parents=True, exist_ok=True)
            stream = io.FileIO(final if is_stream else unfinished, "w")

    def write(text: str) -> None:
        rest = memoryview(text.encode())
        with _writing(name):
            while rest:
                rest = rest[stream.write(rest) or 0 :]

    with stream:
        try:
            yield write
        except BaseException:
            if not is_stream:
                _keep_what_there_is(unfinished)
            raise
        if not is_stream:
            with _writing(name):
                os.fsync(stream.fileno())
                unfinished.replace(final)


def _keep_what_there_is(unfinished: Path) -> None:
    if unfinished.stat().st_size:
        logger.warning("what was translated until then is in %s", unfinished)
    else:
        unfinished.unlink()


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise DataError(
            f"cannot write the translations: {problem.strerror}",
            where=name,
            hint="free some space, or give another file with -o",
        ) from None
