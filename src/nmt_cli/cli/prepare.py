"""`nmt prepare`: from a corpus to prepared data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli.console import stderr_console
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.preparing.corpora import LocatedCorpus, Split

logger = logging.getLogger(__name__)

_FORMS = "nmt prepare NAME, or nmt prepare --train PREFIX --valid PREFIX --languages en-de -o DIR"


def prepare(
    corpus: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="A packaged corpus, or a corpus file.", show_default=False),
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Your own training text: PREFIX.en and PREFIX.de.")
    ] = None,
    valid: Annotated[str | None, typer.Option(metavar="PREFIX", help="Your own validation text.")] = None,
    test: Annotated[str | None, typer.Option(metavar="PREFIX", help="Your own test text.")] = None,
    languages: Annotated[
        str | None, typer.Option("--languages", "-l", metavar="SOURCE-TARGET", help="For example en-de.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where to write; else data/NAME.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Pieces of the vocabulary.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only the first so many training pairs.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the corpus file.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads for encoding; else one a CPU.", show_default=False)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Prepare again, and replace prepared data at DIR.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the corpus and the inputs; write nothing.")] = False,
) -> None:
    """Clean a corpus, train its vocabulary, and write the data for nmt train; interrupted, it continues.

    nmt prepare --train data/train --valid data/valid --languages en-de -o data/mine
    """
    from nmt_cli.preparing.pipeline import prepare as prepare_data
    from nmt_cli.preparing.progress import show_progress

    settings = [
        *(overrides or []),
        *([f"tokenizer.vocab_size={vocab_size}"] if vocab_size is not None else []),
        *([f"limit={limit}"] if limit is not None else []),
    ]
    prefixes: dict[Split, str | None] = {"train": train, "valid": valid, "test": test}
    located = _locate(corpus, prefixes, languages=languages, output=output, settings=settings)
    output = output or Path("data") / located.corpus.name
    if output.name in ("", ".."):
        raise UsageError(f"-o {output} is not a folder of its own", where="-o", hint="for example -o data/mine")
    if dry_run:
        _show_plan(located, output, overwrite=overwrite)
        return
    with show_progress() as progress:
        prepared = prepare_data(
            located, output=output, overwrite=overwrite, num_threads=workers or _num_cpus(), progress=progress
        )
    if prepared.was_finished:
        logger.info("%s is already prepared from these inputs and settings", output)
    else:
        _show_summary(prepared.report)
    logger.info("data:   %s (report.md tells more)", output)
    logger.info("next:   nmt train %s --data %s", _recipe_for(located.corpus.name), output)


def _locate(
    corpus: str | None,
    prefixes: dict[Split, str | None],
    *,
    languages: str | None,
    output: Path | None,
    settings: list[str],
) -> LocatedCorpus:
    """The corpus that the arguments name; UsageError where they name none, or two."""
    from nmt_cli.preparing.corpora import corpus_of_prefixes, load_corpus

    given = {split: prefix for split, prefix in prefixes.items() if prefix is not None}
    if corpus is not None:
        if given or languages:
            flag = "--languages" if not given else f"--{next(iter(given))}"
            raise UsageError(f"{flag} does not go with the corpus {corpus}", where=flag, hint=f"one of: {_FORMS}")
        return load_corpus(corpus, overrides=settings)
    needed = {"--train": prefixes["train"], "--valid": prefixes["valid"], "--languages": languages, "-o": output}
    missing = [flag for flag, value in needed.items() if value is None]
    if missing:
        what = "no corpus is given" if len(missing) == len(needed) else f"{' and '.join(missing)} missing"
        raise UsageError(what, hint=_FORMS)
    assert languages is not None
    assert output is not None
    return corpus_of_prefixes(given, languages=languages, name=output.resolve().name, overrides=settings)


def _show_plan(located: LocatedCorpus, output: Path, *, overwrite: bool) -> None:
    """The resolved corpus on stdout; inputs and what would be done on stderr."""
    from nmt_cli.preparing.pipeline import plan
    from nmt_cli.recipe.documents import dump_values

    typer.echo(dump_values(located.corpus.model_dump(mode="json")), nl=False)
    for line in plan(located, output=output, overwrite=overwrite):
        logger.info("%s", line)


def _show_summary(report: dict[str, Any]) -> None:
    from nmt_cli.preparing.summary import size_table, summary_lines

    if logger.isEnabledFor(logging.INFO):
        stderr_console().print(size_table(report))
    for line in summary_lines(report):
        logger.info("%s", line)


def _recipe_for(corpus: str) -> str:
    """A packaged recipe of the corpus's name, or the word that stands for any."""
    from nmt_cli.recipe.loading import packaged_names

    return corpus if corpus in packaged_names(kind="recipe") else "RECIPE"


def _num_cpus() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
