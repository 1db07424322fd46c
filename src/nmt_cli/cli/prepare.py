"""`nmt prepare`: from a corpus to prepared data."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli import devices
from nmt_cli.cli.arguments import DebugOption, QuietOption, complete_packaged, find_models
from nmt_cli.cli.printing import print_whole
from nmt_cli.cli.recipes import MOST_PAIRS_FOR_SMALL, recipe_for, train_command
from nmt_cli.console import show_progress, stderr_console
from nmt_cli.errors import UsageError
from nmt_cli.files import check_names_folder, check_no_mount_point

if TYPE_CHECKING:
    from rich.table import Table

    from nmt_cli.preparing.corpus import LocatedCorpus
    from nmt_cli.preparing.pipeline import PreparationResult
    from nmt_cli.preparing.sources.base import Split

logger = logging.getLogger(__name__)

_USAGE = "nmt prepare NAME, or nmt prepare --train FILE --languages en-de"


def prepare(
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE",
            help="A packaged corpus (demo, ...), or a corpus file.",
            show_default=False,
            autocompletion=complete_packaged("corpus"),
        ),
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|PREFIX",
            help="Your own training text, repeatable: a .tsv, .csv, .tmx, .xliff, .po, .jsonl, .parquet or .zip file, "
            "or PREFIX for PREFIX.en and PREFIX.de.",
        ),
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|PREFIX", help="Your validation text, repeatable; else training pairs set aside."),
    ] = None,
    test: Annotated[list[str] | None, typer.Option(metavar="FILE|PREFIX", help="Your test text, repeatable.")] = None,
    valid_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Training pairs to set aside as validation text, instead of --valid."),
    ] = None,
    test_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Training pairs to set aside as test text.")
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(
            "--languages",
            "-l",
            metavar="SOURCE-TARGET",
            help="For example en-de; for a model of several directions, once for each --train, in order.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE,TARGET",
            help="Two columns or keys of tables, by number or name; else those named en and de.",
        ),
    ] = None,
    alignments: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Word alignments of --train, a line per pair such as 0-0 1-2 (Pharaoh); once for each --train.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder to write; else data/NAME.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Read only the first N training pairs.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the corpus file; repeatable.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes that clean and encode; else one per CPU.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the prepared data at -o.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the whole corpus file and its inputs; write nothing.")
    ] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Clean a corpus, train its vocabulary, and write the data for nmt train.

    Example: nmt prepare --train my.tsv -l en-de
    """
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.hub import HubName
    from nmt_cli.languages import warning_of_code
    from nmt_cli.preparing import pipeline
    from nmt_cli.preparing.vocabulary import Reused
    from nmt_cli.recipe.yaml_files import dump_values

    numbers = {"limit": limit, "valid_size": valid_size, "test_size": test_size}
    all_files: dict[Split, list[str] | None] = {"train": train, "valid": valid, "test": test}
    files = {split: paths for split, paths in all_files.items() if paths}
    settings = [*(overrides or []), *(f"{key}={value}" for key, value in numbers.items() if value)]
    located = _locate(
        corpus,
        files,
        languages=languages,
        columns=columns,
        alignments=alignments or [],
        output=output,
        settings=settings,
    )
    directions = located.corpus.directions
    for warning in filter(None, map(warning_of_code, dict.fromkeys([*directions.sources, *directions.targets]))):
        logger.warning("%s", warning)
    output = output or Path("data") / located.corpus.name
    check_names_folder(output, example="data/mine")
    if overwrite or kind_of(output) != "data":
        check_no_mount_point(output)
    if dry_run:
        typer.echo(dump_values(located.values_here()), nl=False)
    plan = pipeline.Plan(located)
    match plan.vocabulary:
        # A dry run compares the prepared data at `output` with the vocabulary.
        case Reused(place=HubName() as name) if not dry_run or (kind_of(output) == "data" and not overwrite):
            find_models([Path(str(name))])
    if dry_run:
        for line in pipeline.dry_run_lines(plan, output=output, overwrite=overwrite):
            logger.info("%s", line)
        return
    try:
        with show_progress() as progress:
            prepared = pipeline.prepare(
                plan, output=output, overwrite=overwrite, num_workers=workers or devices.num_cpus(), progress=progress
            )
    except KeyboardInterrupt:
        logger.warning("interrupted: the same command continues")
        raise
    _tell_result(prepared, output, model=plan.vocabulary.model)


def _locate(
    corpus: str | None,
    files: Mapping[Split, list[str]],
    *,
    languages: Sequence[str] | None,
    columns: str | None,
    alignments: Sequence[str],
    output: Path | None,
    settings: list[str],
) -> LocatedCorpus:
    """The corpus that the arguments name; UsageError if they name none, or two."""
    from nmt_cli.preparing.corpus_loading import corpus_from_files, load_corpus
    from nmt_cli.preparing.sources.base import without_query
    from nmt_cli.preparing.sources.text import name_without_endings

    if corpus is not None:
        options = {"languages": languages, "columns": columns, "alignments": alignments}
        names = [*files, *(name for name, value in options.items() if value)]
        if names:
            flag = f"--{names[0]}"
            raise UsageError(f"{flag} does not go with the corpus {corpus}", where=flag, hint=f"one of: {_USAGE}")
        return load_corpus(corpus, overrides=settings)
    if not files and not languages:
        raise UsageError("no corpus is given", where="nmt prepare", hint=_USAGE)
    if not languages:
        hint = "add the languages, source first: -l en-de"
        raise UsageError("the languages are missing", where="--languages", hint=hint)
    if "train" not in files:
        raise UsageError("the training text is missing", where="--train", hint="add --train FILE")
    name = output.resolve().name if output is not None else name_without_endings(without_query(files["train"][0]))
    return corpus_from_files(
        files, languages=languages, name=name, overrides=settings, columns=columns, alignments=alignments
    )


def _tell_result(prepared: PreparationResult, output: Path, *, model: str | None) -> None:
    """Log what the data has, what it lacks, and the command that trains on it."""
    from nmt_cli.preparing.report import few_pairs_finding

    report, is_new = prepared.report, not prepared.was_finished
    if is_new and logger.isEnabledFor(logging.INFO):
        print_whole(stderr_console(), _size_table(report))
    for level, line in _summary_lines(report) if is_new else ():
        logger.log(level, "%s", line)
    if not is_new:
        logger.info("%s is already prepared from these inputs and settings", output)
    logger.info("data:   %s (report.html tells more)", output)
    warning = few_pairs_finding(report, prepare=shlex.join(["nmt", *sys.argv[1:]]))
    if warning is not None and is_new:
        logger.warning("%s\n%s", *warning)
    for line in _next_lines(report, output, model=model):
        logger.info("%s", line)


def _size_table(report: dict[str, Any]) -> Table:
    """Pairs and lengths of each split and side."""
    from rich.table import Table

    from nmt_cli.recipe.directions import Directions

    vocabulary = report["vocabulary"]
    sizes = [f"{vocabulary[side]['size']:,}" for side in ("source", "target")]
    pieces = f"{sizes[0]} shared pieces" if vocabulary["shared"] else f"{sizes[0]} and {sizes[1]} pieces"
    title = f"{report['name']}: {Directions.model_validate(report['languages']).title}, {pieces}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold")
    lengths = ("mean\nwords", "mean\npieces", "p99\npieces", "longest\npieces")
    for name in ("", "\npairs", "", *lengths, "pieces\nper word", "byte\npieces"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for part in report.get("directions", [report]):
        for split, sides in part["splits"].items():
            for side, facts in sides.items():
                table.add_row(
                    *((split, f"{part['pairs'][split]:,}") if side == "source" else ("", "")),
                    part["languages"][side],
                    f"{facts['words']['mean']:.1f}",
                    f"{facts['pieces']['mean']:.1f}",
                    f"{facts['pieces']['p99']:,}",
                    f"{facts['pieces']['max']:,}",
                    f"{facts['pieces_per_word']:.2f}",
                    f"{facts['byte_rate']:.2%}",
                )
    return table


def _summary_lines(report: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Lines for the log, each with its level: dropped pairs, overlap, several translations, and two pairs in pieces."""
    from nmt_cli.preparing.cleaning.rules import make_printable
    from nmt_cli.preparing.report import overlap_finding

    cleaning = report["cleaning"]
    dropped = {reason: facts["count"] for reason, facts in cleaning["dropped"].items() if facts["count"]}
    num_dropped = cleaning["read"] - cleaning["kept"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    line = f"dropped {num_dropped:,} of {cleaning['read']:,} training pairs"
    yield logging.INFO, f"{line}: {reasons}" if reasons else line
    for split, facts in report["overlap"].items():
        if facts["sources"] or facts["targets"]:
            setting = report["settings"]["cleaning"]["overlap"]["value"]
            finding, is_much = overlap_finding(split, facts, setting=setting)
            yield logging.WARNING if is_much else logging.INFO, f"overlap: {finding}"
    if (several := report["several_translations"])["sources"]:
        found = f"{several['sources']:,} source texts have {several['pairs']:,} different ones"
        yield logging.INFO, f"several translations: {found}; cleaning.several_translations chooses"
    parts = report.get("directions", [report])
    for part in parts:
        for example in part["examples"][: 2 if len(parts) == 1 else 1]:
            for side in ("source", "target"):
                yield logging.INFO, f"{part['languages'][side]}: {make_printable(' '.join(example[side]['pieces']))}"


def _next_lines(report: dict[str, Any], output: Path, *, model: str | None) -> Iterator[str]:
    """The command that trains on the data, with advice; `model` is the model from which the vocabulary is taken."""
    num_pairs, is_shared = report["unique_pairs"], report["vocabulary"]["shared"]
    recipe = recipe_for(report["name"], num_pairs=num_pairs)
    yield f"next:   {train_command(recipe, output, is_shared=is_shared, init_from=model)}"
    if num_pairs > MOST_PAIRS_FOR_SMALL and not devices.has_gpu_driver():
        yield (
            f"        {recipe} takes a GPU, and none is seen here: on a CPU it takes weeks. To try the data here: "
            f"{train_command('small', output, is_shared=is_shared, init_from=None)}"
        )
