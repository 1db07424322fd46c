"""Preparation: clean, train the tokenizers, encode, report; an interrupted one continues after its finished stages."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nmt_cli
from nmt_cli.dataset.manifest import (
    MANIFEST,
    InputRecord,
    Languages,
    Manifest,
    SplitCounts,
    TokenizerRecord,
    Tokenizers,
)
from nmt_cli.dataset.store import SIDES, open_prepared, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.files import new_directory, sha256
from nmt_cli.preparing.corpora import Corpus, LocatedCorpus
from nmt_cli.preparing.encoding import Written, write_tokens, written_splits
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.reporting.page import render_page
from nmt_cli.preparing.reporting.report import REPORT, REPORT_PAGE, build_report, read_report
from nmt_cli.preparing.shards import finished_shards
from nmt_cli.preparing.sources.fetching import fetch
from nmt_cli.preparing.sources.inputs import declared_key, find_inputs, fingerprint, reading_key, remote_inputs
from nmt_cli.preparing.text import CleanText, write_clean_text
from nmt_cli.preparing.vocabulary import copy_vocabulary, given_vocabulary, tokenizer_counts, write_tokenizers
from nmt_cli.preparing.work import WorkFolder, discard_work, is_finished, open_work_folder, place, work_path
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_STAGES = ("cleaned", "tokenizer", "encoded")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The outcome: where the data is, its report, and whether it was there already."""

    directory: Path
    report: dict[str, Any]
    was_finished: bool


def prepare(located: LocatedCorpus, *, output: Path, overwrite: bool, num_workers: int, progress: Progress) -> Prepared:
    """Make the prepared data of a corpus at `output`, or find it made.

    Raises DataError for sources that cannot be used, an output that holds something else, or a full disk; what is
    finished by then stays in `output.partial`, and the same call continues after it.
    """
    if output.is_symlink():
        output = output.resolve()  # a folder takes its place by renaming, which would put it where the link is
    key = _declared(located, find_inputs(located))
    if is_finished(output, located.corpus, key=key, overwrite=overwrite):
        discard_work(output)
        return Prepared(output, read_report(output), was_finished=True)
    with open_work_folder(output) as work:
        _run_stages(located, work, output, key=key, num_workers=num_workers, progress=progress)
        work.discard_stages()
    return Prepared(output, read_report(output), was_finished=False)


def plan(located: LocatedCorpus, *, output: Path, overwrite: bool) -> Iterator[str]:
    """Lines that say what would be read, written, and done; DataError where a local input is missing."""
    inputs = find_inputs(located)
    for record in inputs:
        yield f"input:  {record.split}: {record.name}, {record.bytes:,} bytes"
    for split, description in remote_inputs(located):
        yield f"input:  {split}: {description}"
    yield f"output: {output}"
    if is_finished(output, located.corpus, key=_declared(located, inputs), overwrite=overwrite):
        yield "to do:  nothing, it is prepared already"
        return
    begun = f"; {work_path(output)} was begun before" if work_path(output).exists() else ""
    yield f"to do:  {', '.join(_STAGES)}, report{begun}"


def _declared(located: LocatedCorpus, inputs: list[InputRecord]) -> str:
    """The fingerprint of the prepared data that a corpus file asks for, which the manifest keeps."""
    declared = declared_key(located, inputs)
    return fingerprint({"text": declared, "tokenizer": _tokenizer_settings(located)})


def _tokenizer_settings(located: LocatedCorpus) -> dict[str, Any]:
    """What the vocabulary follows from: how it is trained, or the files that it is taken from."""
    given = given_vocabulary(located)
    return located.corpus.tokenizer.model_dump() if given is None else {file.name: sha256(file) for file in given}


def _run_stages(
    located: LocatedCorpus, work: WorkFolder, output: Path, *, key: str, num_workers: int, progress: Progress
) -> None:
    corpus, clock = located.corpus, _Clock()
    fetched = fetch(located, progress=progress)
    clock.stop("fetched")
    text_key = reading_key(located, fetched)
    text = CleanText(
        work.stage_in_pieces(
            "cleaned",
            key=text_key,
            build=lambda to: write_clean_text(corpus, fetched.sources, to, num_workers=num_workers, progress=progress),
            has_pieces=lambda at: bool(finished_shards(at)),
        )
    )
    clock.stop("cleaned")
    tokenizer_key = fingerprint({"text": text_key, "tokenizer": _tokenizer_settings(located)})

    def build_tokenizers(to: Path) -> None:
        if (given := given_vocabulary(located)) is not None:
            copy_vocabulary(given, to)
        else:
            write_tokenizers(corpus, text, to, num_workers=num_workers, progress=progress)

    tokenizers = work.stage("tokenizer", key=tokenizer_key, build=build_tokenizers)
    clock.stop("tokenizer")
    tokens = work.stage_in_pieces(
        "encoded",
        key=fingerprint({"tokenizer": tokenizer_key}),
        build=lambda to: write_tokens(corpus, text, tokenizers, to, num_workers=num_workers, progress=progress),
        has_pieces=lambda at: bool(written_splits(corpus, at)),
    )
    clock.stop("encoded")
    with new_directory(output, error=DataError) as final:
        _write_outcome(final, corpus, fetched.inputs, text, tokenizers, tokens, key=key)
    clock.stop("report")
    logger.info("%s", clock)


class _Clock:
    """How long each stage took, as one line."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._parts: list[str] = []

    def stop(self, stage: str) -> None:
        """Note the time since the stage before."""
        now = time.monotonic()
        self._parts.append(f"{stage} {now - self._since:.1f}")
        self._since = now

    def __str__(self) -> str:
        return f"seconds: {', '.join(self._parts)}"


def _write_outcome(
    directory: Path,
    corpus: Corpus,
    inputs: list[InputRecord],
    text: CleanText,
    tokenizers: Path,
    tokens: Path,
    *,
    key: str,
) -> None:
    """The files of the stages, the manifest, and the report, in a directory of their own."""
    for file in _outcome(corpus, text.directory, tokenizers, tokens):
        place(file, directory / file.name)
    written = written_splits(corpus, tokens)
    manifest = _manifest(directory, corpus, inputs, key=key, written=written)
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    report = build_report(
        open_prepared(directory),
        corpus,
        cleaning=text.counts(),
        tokenizers=tokenizer_counts(tokenizers),
        statistics={split: one.statistics for split, one in written.items()},
    )
    (directory / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / REPORT_PAGE).write_text(render_page(report), encoding="utf-8")


def _outcome(corpus: Corpus, cleaned: Path, tokenizers: Path, tokens: Path) -> list[Path]:
    """The files of the stages that make up the prepared data."""
    codes = (corpus.languages.source, corpus.languages.target)
    return [
        *(tokenizers / f"{side}.spm" for side in SIDES),
        *(
            tokens / f"{split}.{side}.{part}"
            for split in corpus.splits
            for side in SIDES
            for part in ("ids", "offsets")
        ),
        *(cleaned / f"{split}.{code}" for split in corpus.splits if split != "train" for code in codes),
    ]


def _manifest(
    directory: Path, corpus: Corpus, inputs: list[InputRecord], *, key: str, written: Mapping[str, Written]
) -> Manifest:
    """The manifest of the files that lie in a directory."""
    loaded = [Tokenizer.load(directory / f"{side}.spm") for side in SIDES]
    source, target = (TokenizerRecord(vocab_size=one.vocab_size, fingerprint=one.fingerprint) for one in loaded)
    dtype = token_dtype(max(source.vocab_size, target.vocab_size))
    return Manifest(
        nmt_version=nmt_cli.__version__,
        name=corpus.name,
        languages=Languages(source=corpus.languages.source, target=corpus.languages.target),
        shared_vocabulary=source.fingerprint == target.fingerprint,
        tokenizers=Tokenizers(source=source, target=target),
        dtype=dtype,
        splits={
            split: SplitCounts(pairs=one.sentences, **{f"{side}_tokens": one.tokens[side] for side in SIDES})
            for split, one in written.items()
        },
        inputs=inputs,
        fingerprint=key,
        corpus=corpus.model_dump(mode="json"),
        files={path.name: path.stat().st_size for path in sorted(directory.iterdir())},
    )
