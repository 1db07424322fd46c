"""The translations that `nmt decode` writes: their formats, and files that an interrupted command continues."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, assert_never

from nmt_cli.cli.decode.input import STANDARD
from nmt_cli.errors import DataError, UsageError
from nmt_cli.files import lock_path, reading_errors, sha256, write_file, writing_error

if TYPE_CHECKING:
    from nmt_cli.decoding.translation import Translation

logger = logging.getLogger(__name__)

FormatName = Literal["text", "tsv", "jsonl"]
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz")


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format and the details that it shows of each translation; UsageError if the format has no room for them."""

    name: FormatName
    nbest: int
    word_scores: bool
    alignments: bool
    has_terms: bool = False

    def __post_init__(self) -> None:
        details = {"--nbest": self.nbest > 1, "--word-scores": self.word_scores, "--alignments": self.alignments}
        for flag, is_given in details.items():
            if is_given and self.name == "text":
                message = f"--format text has nothing but the translation, so no room for {flag}"
                if flag == "--nbest":
                    message = f"--format text has one translation per line, not {self.nbest}"
                raise UsageError(message, where=flag, hint="add --format tsv or --format jsonl")

    def render(self, translations: Sequence[Translation], *, first_line: int) -> str:
        """The translations of consecutive lines, each row with its line end."""
        rows: list[str] = []
        for number, best in enumerate(translations, first_line):
            match self.name:
                case "text":
                    rows.append(best.text)
                case "tsv":
                    for rank, translation in enumerate((best, *best.alternatives), 1):
                        rows.append("\t".join([str(number), str(rank), *self._columns(translation)]))
                case "jsonl":
                    alternatives = [self._fields(alternative) for alternative in best.alternatives]
                    fields = {"line": number, **self._fields(best), "alternatives": alternatives}
                    rows.append(json.dumps(fields, ensure_ascii=False))
                case other:
                    assert_never(other)
        return "".join(row + "\n" for row in rows)

    def _columns(self, translation: Translation) -> list[str]:
        columns = [f"{translation.score:.6f}", f"{translation.log_prob:.6f}", translation.text.replace("\t", " ")]
        columns += [" ".join(f"{value:.6f}" for value in translation.word_log_probs)] if self.word_scores else []
        return columns + ([_pharaoh(translation)] if self.alignments else [])

    def _fields(self, translation: Translation) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "text": translation.text,
            "score": round(translation.score, 6),
            "log_prob": round(translation.log_prob, 6),
        }
        if translation.utility is not None:
            fields["utility"] = round(translation.utility, 6)
        if self.word_scores:
            fields["word_log_probs"] = [round(value, 6) for value in translation.word_log_probs]
        if self.alignments:
            fields["alignment"] = _pharaoh(translation)
        if self.has_terms:
            fields["unmet_terms"] = list(translation.unmet_terms)
        return fields


def check_output(output: Path, *, inputs: Sequence[Path], overwrite: bool) -> None:
    """Raise UsageError if the output exists already, is one of the inputs, or is named as a compressed file."""
    if output.suffix in _COMPRESSED:
        message = f"nmt decode writes plain text, and {output} is the name of a compressed file"
        raise UsageError(message, where="--output", hint=f"-o {shlex.quote(str(output.with_suffix('')))}")
    if os.path.isdir(output):
        raise UsageError(f"{output} is a directory, not a file", where="--output", hint=f"-o {output / 'FILE'}")
    for file in inputs:
        if os.path.isfile(output) and os.path.isfile(file) and output.samefile(file):
            hint = "give another file with -o"
            raise UsageError(f"{file} is both input and output", where="--output", hint=hint)
    if os.path.isfile(output) and not overwrite:  # a device may be written
        hint = "add --overwrite, or give another file with -o"
        raise UsageError(f"{output} exists already", where=str(output), hint=hint)


def is_stream(output: Path) -> bool:
    """Whether the output is stdout, a pipe or a device."""
    return output == STANDARD or (os.path.exists(output) and not os.path.isfile(output))


@contextmanager
def open_output(
    output: Path,
    *,
    job: Mapping[str, Any] | None,
    overwrite: bool,
    finish: Callable[[str], bytes] | None,
) -> Iterator[tuple[Callable[[str], None], int]]:
    """A function that writes to the output, and the number of input lines that the output already has.

    DataError if writing fails. The file appears when the block ends well. Until then, and after an error, the text is
    in FILE.partial beside it. The same `job` continues FILE.partial; without a job it cannot be continued. If the
    lines are not the file itself, `finish` makes it of them.
    """
    if is_stream(output):
        to_stdout = output == STANDARD
        if to_stdout and sys.stdout.name == os.devnull:  # as `main` opens it if it was closed
            raise UsageError("there is nowhere to write: stdout is closed", where="stdout", hint="give a file with -o")
        name = "stdout" if to_stdout else str(output)
        with _write_errors(name):
            stream = io.FileIO(sys.stdout.fileno(), "w", closefd=False) if to_stdout else io.FileIO(output, "w")
        with stream:
            rows: list[str] = []
            yield partial(_write_all, stream, name) if finish is None else rows.append, 0
            if finish is not None:
                _write_all(stream, name, finish("".join(rows)))
        return
    final = output.resolve()  # not of a stream: a pipe in /dev/fd resolves to no path
    unfinished = PartialOutput(final)
    with lock_path(unfinished.path, busy="another nmt decode writes this file", error=DataError):
        # Another command may have written it since this one began.
        check_output(final, inputs=[], overwrite=overwrite)
        with _write_errors(str(output)):
            done = unfinished.begin(job, may_replace=overwrite)
            stream = io.FileIO(unfinished.path, "a")
        if done:
            logger.info("%s has %s lines: going on after them", unfinished.path, f"{done:,}")
        with stream:
            try:
                yield partial(_write_all, stream, str(output)), done
                if finish is not None:
                    write_file(final, finish(unfinished.path.read_text(encoding="utf-8")), error=DataError)
                    unfinished.path.unlink()
                    unfinished.forget()
                    return
            except BaseException:
                unfinished.keep_text(may_continue=job is not None)
                raise
            with _write_errors(str(output)):
                os.fsync(stream.fileno())
                unfinished.path.replace(final)
                unfinished.forget()


class PartialOutput:
    """FILE.partial beside the output, and FILE.partial.json, which describes the job.

    A process may be killed at any moment, so only complete lines of FILE.partial count.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.partial")
        self._record = output.with_name(f"{output.name}.partial.json")

    def begin(self, job: Mapping[str, Any] | None, *, may_replace: bool) -> int:
        """The number of input lines that are done; FILE.partial is cut off after the last of them.

        If FILE.partial belongs to another job, or to an unknown one, it is begun anew with `may_replace`; otherwise
        UsageError names what differs.
        """
        old_job = None if job is None else self._recorded_job()
        if job is not None and old_job == job:
            done, size = _complete_lines(self.path, is_tsv=job["format"] == "tsv")
            os.truncate(self.path, size)
            return done
        if self.path.exists() and self.path.stat().st_size > 0 and not may_replace:
            message = f"{self.path} has translations of an earlier command, which this one cannot continue"
            hint = "rename it to keep them, or add --overwrite to begin anew"
            if job is not None and old_job is not None:
                changed = [name for name in sorted({*job, *old_job}) if job.get(name) != old_job.get(name)]
                message = f"{self.path} was begun with another {', '.join(changed)}"
                hint = "repeat the earlier command to continue it, or add --overwrite to begin anew"
            raise UsageError(message, where=str(self.path), hint=hint)
        self.forget()
        self.path.unlink(missing_ok=True)
        if job is not None:
            write_file(self._record, json.dumps(job, indent=2) + "\n", error=DataError)
        return 0

    def keep_text(self, *, may_continue: bool) -> None:
        """After an error, log where the translations are; without any, remove both files."""
        if self.path.stat().st_size:
            how_to_continue = "; the same command continues" if may_continue else ""
            logger.warning("the translations so far are in %s%s", self.path, how_to_continue)
        else:
            self.path.unlink()
            self.forget()

    def forget(self) -> None:
        """Remove the description of the job."""
        self._record.unlink(missing_ok=True)

    def _recorded_job(self) -> Mapping[str, Any] | None:
        """The job in FILE.partial.json; None without that file or FILE.partial."""
        try:
            job = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return job if isinstance(job, dict) and self.path.is_file() else None


def file_identity(path: Path) -> dict[str, Any]:
    """The size and SHA-256 of a file, which take seconds beside hours of translation."""
    with reading_errors(path):
        return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _write_all(stream: io.FileIO, name: str, content: str | bytes) -> None:
    """Write all of the text at once."""
    rest = memoryview(content.encode() if isinstance(content, str) else content)
    with _write_errors(name):
        while rest:
            rest = rest[stream.write(rest) or 0 :]


def _pharaoh(translation: Translation) -> str:
    return " ".join(f"{source}-{target}" for source, target in translation.alignment)


@contextmanager
def _write_errors(name: str) -> Iterator[None]:
    """Raise a failed write as DataError; a closed pipe stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        hint = "give another file with -o"
        raise writing_error(error, Path(name), DataError, elsewhere=hint) or DataError(
            f"cannot write the translations: {error.strerror}", where=name, hint=hint
        ) from None


def _complete_lines(path: Path, *, is_tsv: bool) -> tuple[int, int]:
    """The number of input lines whose rows are complete, and the bytes that these rows take.

    In TSV an input line has a row for each translation, which begins with the line's number.
    """
    number = start_of_line = num_bytes = 0
    with path.open("rb") as stream:
        for row in stream:
            if not row.endswith(b"\n"):
                break
            row_number = int(row.partition(b"\t")[0]) if is_tsv else number + 1
            if row_number != number:
                number, start_of_line = row_number, num_bytes
            num_bytes += len(row)
    if is_tsv:  # further rows of the last line may be missing
        return max(0, number - 1), start_of_line
    return number, num_bytes
