"""`nmt reproduce`: a system of the paper from its corpus to its BLEU, each figure beside the paper's.

It runs the other commands as processes. recipes/paper.json has the figures of Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

import json
import logging
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmt_cli.cli.arguments import DebugOption, QuietOption
from nmt_cli.cli.printing import print_table
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DataError, ScoreError, UsageError
from nmt_cli.files import read_json, write_file

if TYPE_CHECKING:
    from nmt_cli.recipe.schema import Recipe

_Split = Literal["valid", "test"]

_HEADER = ("figure", "paper", "here", "verdict")
_TESTS: dict[str, tuple[_Split, str]] = {"newstest2013": ("valid", "model"), "newstest2014": ("test", "averaged")}
_DECIDES = "newstest2014 paper BLEU"
_METRICS = {"paper-BLEU": "paper BLEU", "BLEU": "sacreBLEU"}
_OF_THE_DATA = {"name", "description", "corpus"}  # keys that nmt train changes where the data is another corpus
_DAMAGED_HINT = "remove the file, and give the same command once more"

logger = logging.getLogger(__name__)


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help="base-en-de, big-en-de, base-en-fr, big-en-fr, or a row such as table3/b-dk16."
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe; repeatable.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Prepared data, taken as it is; else data/CORPUS.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of the run; else as nmt train has it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; run nothing.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Reproduce a system of the paper: prepare, train, average, decode, score.

    Example: nmt reproduce base-en-de --dry-run
    """
    chosen = _plan(experiment, settings=settings or [], data=data, run=output)
    steps = _steps(chosen)
    if data is not None and not dry_run:
        _check_data(chosen)
    for number, step in enumerate(steps, start=1):
        if dry_run:
            typer.echo(step.command_line)
        elif step.is_done():
            logger.info("[%d/%d] done: %s", number, len(steps), step.command_line)
        else:
            logger.info("[%d/%d] %s", number, len(steps), step.command_line)
            _run(step)
    if not dry_run:
        _judge(chosen)


@dataclass(frozen=True, slots=True)
class Expected:
    """A figure of the paper, or the range between two printed figures, with its tolerance.

    `source` is its place in the paper, and `why` the reason for the tolerance. Without a tolerance it judges nothing.
    """

    figure: str
    low: float
    high: float
    tolerance: float | None
    source: str
    why: str

    def __str__(self) -> str:
        """The figure and its tolerance, as a table shows them."""
        text = f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"
        return f"{text} ± {self.tolerance:,}" if self.tolerance else text

    def verdict(self, measured: float) -> str:
        """How a measured figure compares, in words."""
        if self.tolerance is None:
            return "for context"
        if measured < self.low - self.tolerance:
            return f"below by {_number(self.low - measured)}"
        if measured > self.high + self.tolerance:
            return f"above by {_number(measured - self.high)}"
        return "as expected"


def experiments() -> dict[str, list[Expected]]:
    """The figures of the paper by the recipe of the system."""
    from nmt_cli.recipe.loading import packaged_folder

    found: dict[str, list[Expected]] = {}
    for row in json.loads((packaged_folder() / "paper.json").read_text(encoding="utf-8")):
        for recipe, value in row.pop("expected").items():
            low, high = value if isinstance(value, list) else (value, value)
            found.setdefault(recipe, []).append(Expected(low=low, high=high, **row))
    return found


@dataclass(frozen=True, slots=True)
class _Plan:
    """The recipe with the user's settings, the folders, and the expected figures. Data of --data is not prepared."""

    recipe_name: str
    recipe: Recipe
    settings: Sequence[str]
    is_data_named: bool
    data: Path
    run: Path
    expected: Sequence[Expected]

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target of the recipe's corpus."""
        from nmt_cli.preparing.corpus_loading import load_corpus

        languages = load_corpus(str(self.recipe.corpus), overrides=()).corpus.directions.pairs[0]
        return languages.source, languages.target

    @property
    def tests(self) -> dict[str, tuple[_Split, str]]:
        """The test sets that the paper has figures for, each with its split and with the model that translates it."""
        figures = {expected.figure for expected in self.expected}
        return {name: test for name, test in _TESTS.items() if f"{name} paper BLEU" in figures}

    def file(self, name: str) -> Path:
        """A file among the translations and scores."""
        return self.run / "reproduction" / name


def _plan(experiment: str, *, settings: Sequence[str], data: Path | None, run: Path | None) -> _Plan:
    from nmt_cli.recipe.loading import resolve_recipe
    from nmt_cli.training.runs import named_after_data_and_model

    known, name = experiments(), experiment.removesuffix("-en-de")
    if name not in known:
        hint = "there are base-en-de, big-en-de, base-en-fr, big-en-fr, and each row of Table 3, as table3/b-dk16"
        raise UsageError(f"there is no experiment {experiment!r}", where=experiment, hint=hint)
    resolved = resolve_recipe(name, overrides=settings)
    directory = data or Path("data", str(resolved.recipe.corpus))
    named = named_after_data_and_model(resolved, directory, init_from=None, is_packaged=True)
    return _Plan(
        recipe_name=name,
        recipe=resolved.recipe,
        settings=settings,
        is_data_named=data is not None,
        data=directory,
        run=run or Path("runs", named.recipe.name),
        expected=known[name],
    )


def _check_data(plan: _Plan) -> None:
    """DataError if data that the user names has other languages than the experiment, or no test text to score."""
    from nmt_cli.dataset.data_manifest import read_manifest

    manifest, (source, target) = read_manifest(plan.data), plan.languages
    if str(manifest.languages) != f"{source}-{target}":
        message = f"this data is {manifest.languages.title}, and the experiment is {source} to {target}"
        raise DataError(message, where=str(plan.data), hint="give data of these languages")
    if not {split for split, _ in plan.tests.values()} <= manifest.splits.keys():
        hint = "prepare it again with --test FILE, or leave --data out"
        raise DataError("this data has no test text, and the experiment scores it", where=str(plan.data), hint=hint)


@dataclass(frozen=True, slots=True)
class _Step:
    """An `nmt` command, and whether its result is there already."""

    arguments: Sequence[str]
    is_done: Callable[[], bool]
    stdout: Path | None = None

    @property
    def command_line(self) -> str:
        """The command as one types it."""
        redirection = f" > {shlex.quote(str(self.stdout))}" if self.stdout else ""
        return shlex.join(["nmt", *self.arguments]) + redirection


def _steps(plan: _Plan) -> list[_Step]:
    """The commands in order. Each continues by itself what it has begun."""
    from nmt_cli.artifacts.manifest import MANIFEST
    from nmt_cli.dataset.data_manifest import MANIFEST as DATA_MANIFEST

    data, run, (src, tgt) = str(plan.data), str(plan.run), plan.languages
    settings = [word for setting in plan.settings for word in ("--set", setting)]
    prepare = _Step(["prepare", str(plan.recipe.corpus), "-o", data], lambda: (plan.data / DATA_MANIFEST).is_file())
    train = _Step(["train", plan.recipe_name, "--data", data, "-o", run, *settings], lambda: _is_trained(plan))
    steps = [train] if plan.is_data_named else [prepare, train]
    for test, (split, model) in plan.tests.items():
        manifest = plan.run / model / MANIFEST
        if model == "averaged":
            is_averaged = partial(_is_newer, manifest, than=plan.run / "model" / MANIFEST)
            steps.append(_Step(["average", run], is_averaged))
        source, reference = (f"{plan.data / split}.{side}" for side in (src, tgt))
        hypothesis, scores = plan.file(f"{test}.{tgt}"), plan.file(f"{test}.json")
        decode = ["decode", "-m", str(plan.run / model), "-i", source, "-o", str(hypothesis), "--overwrite"]
        score = ["score", reference, "-i", str(hypothesis), "-l", f"{src}-{tgt}"]
        steps += [
            _Step(decode, partial(_is_newer, hypothesis, than=manifest)),
            _Step([*score, "-m", "paper-bleu,bleu,chrf", "--json"], lambda: False, stdout=scores),
        ]
    return steps


def _is_trained(plan: _Plan) -> bool:
    """Whether the run has come to its end with this recipe; another command, or torchrun, may have trained it."""
    from nmt_cli.artifacts.manifest import RUN_FILE
    from nmt_cli.artifacts.run import open_run

    if not (plan.run / RUN_FILE).is_file():
        return False
    run = open_run(plan.run)
    trained, wanted = (each.model_dump(exclude=_OF_THE_DATA) for each in (run.recipe, plan.recipe))
    return run.record.finished is not None and trained == wanted


def _is_newer(file: Path, *, than: Path) -> bool:
    return file.is_file() and file.stat().st_mtime >= than.stat().st_mtime


def _run(step: _Step) -> None:
    """Run the command to its end; SIGTERM and Ctrl-C are passed on. A command that ends badly ends this one."""
    from nmt_cli.processes import NmtCommands

    quiet = [] if logger.isEnabledFor(logging.INFO) else ["--quiet"]
    pipe = None if step.stdout is None else subprocess.PIPE
    with NmtCommands() as commands:
        process = commands.start([*quiet, *step.arguments], ends_by=signal.SIGTERM, stdout=pipe)
        output, _ = process.communicate()
    if commands.signals:
        logger.info("stopped: the same command continues")
        raise typer.Exit(EXIT_PREEMPTED if commands.signals[0] == signal.SIGTERM else EXIT_INTERRUPTED)
    if code := process.returncode:
        logger.warning("nmt %s ended with %d; once that is mended, the same command continues", step.arguments[0], code)
        raise typer.Exit(code if code > 0 else 128 - code)
    if step.stdout is not None:
        write_file(step.stdout, output, error=DataError)


def _judge(plan: _Plan) -> None:
    """Print each figure beside the paper's; ScoreError if the BLEU of newstest2014 is too low."""
    measured = _measure(plan)
    compared = [(each, measured[each.figure]) for each in plan.expected if each.figure in measured]
    rows = [(each.figure, str(each), _number(here), each.verdict(here)) for each, here in compared]
    print_table(_HEADER, rows, right_aligned=("paper", "here"))
    for figure, paper, here, verdict in rows:
        if figure == _DECIDES and verdict.startswith("below"):
            hint = "look in the table for the first figure that is not as expected: the cause is there or before"
            raise ScoreError(f"{figure} is {here}, but the paper has {paper}", where=str(plan.run), hint=hint)


def _measure(plan: _Plan) -> dict[str, float]:
    """The figures of the data, the run and the scores by their names in paper.json."""
    from nmt_cli.artifacts.info import parameters_in_file
    from nmt_cli.artifacts.manifest import WEIGHTS
    from nmt_cli.artifacts.model_directory import load_saved_config
    from nmt_cli.artifacts.run import open_run
    from nmt_cli.dataset.data_manifest import read_manifest

    manifest, history, model = read_manifest(plan.data), open_run(plan.run).history(), plan.run / "model"
    figures: dict[str, float] = {
        "pairs read": read_json(plan.data / "report.json", error=DataError, hint=_DAMAGED_HINT)["cleaning"]["read"],
        "pairs kept": manifest.splits["train"].pairs,
        "newstest2013 pairs": manifest.splits["valid"].pairs,
        "newstest2014 pairs": manifest.splits["test"].pairs,
        "vocabulary": manifest.tokenizers.target.vocab_size,
        "million parameters": (parameters_in_file(model / WEIGHTS) or 0) / 1e6,
        "updates": history.last_update,
        "hours": history.trained_seconds / 3600,
    }
    update = load_saved_config(model).updates[-1]
    for validation in history.validations:
        if validation.measured.update == update and validation.measured.perplexity is not None:
            figures["perplexity"] = validation.measured.perplexity
    for test, (_, directory) in plan.tests.items():
        if directory == "averaged":
            figures["checkpoints"] = len(load_saved_config(plan.run / directory).updates)
        scores: dict[str, Any] = read_json(plan.file(f"{test}.json"), error=DataError, hint=_DAMAGED_HINT)["scores"]
        figures |= {f"{test} {name}": scores[title]["score"] for title, name in _METRICS.items()}
    return figures


def _number(value: float) -> str:
    return f"{round(value, 2):,}"
