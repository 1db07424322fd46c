"""The stages of a reproduction as a table: prepare, train, average, decode, score."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nmt_cli.artifacts.info import parameters_in_file
from nmt_cli.artifacts.manifest import MANIFEST, RUN_FILE, WEIGHTS
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import open_run
from nmt_cli.dataset import manifest as data_manifest
from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.errors import DataError, ModelError
from nmt_cli.files import read_json, sha256, write_file
from nmt_cli.preparing.corpus import DESCRIPTIVE_KEYS
from nmt_cli.preparing.report import read_report
from nmt_cli.recipe.loading import dump_recipe
from nmt_cli.reproducing.experiments import Expectations, Figure, FigureName, expected_exactly
from nmt_cli.reproducing.needs import Machine, Needs, averaging_needs, decoding_needs, preparation_needs, training_needs
from nmt_cli.reproducing.plan import ReproductionPlan

HeldOutSplit = Literal["valid", "test"]
# What identifies each thing that a stage reads or writes, by role: mostly a SHA-256.
Hashes = Mapping[str, str]

_FIGURE_OF_METRIC: dict[str, FigureName] = {"paper-BLEU": "paper BLEU", "BLEU": "sacreBLEU", "chrF2": "chrF2"}
_SEARCH_OPTIONS = ("beam", "length_penalty", "length_penalty_form", "max_extra_tokens")
_REMOVE_AND_REPEAT = "remove the file, and give the same nmt reproduce command once more"
_REHEARSAL_SOURCE = "the rehearsal's settings"
# In the record of a score, so a score by another variant of the metric is computed again.
_METRIC_VARIANT = "paper-BLEU with quotes:ascii-ref"


class _TestSet(NamedTuple):
    """A test set of WMT 2014, and the figure that counts its pairs."""

    name: str
    num_lines: int
    figure: FigureName


_TEST_SETS: Mapping[HeldOutSplit, _TestSet] = {
    "valid": _TestSet("newstest2013", 3_000, "newstest2013 pairs"),
    "test": _TestSet("newstest2014", 3_003, "newstest2014 pairs"),
}


class Measurement(NamedTuple):
    """A figure as a stage has measured it; a score has a `signature`."""

    name: FigureName
    value: float
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One `nmt` command of a reproduction, and how to see whether it is finished.

    `fixed` are the counts that also hold in a rehearsal. They decide in a full run too if the stage has no published
    figures. `write_inputs` writes the inputs that no earlier stage has written. A stage needs no record if its output
    itself says from which inputs it was made.
    """

    plan: ReproductionPlan
    name: str
    arguments: list[str]
    fixed: Expectations
    input_hashes: Callable[[], Hashes]
    output_hashes: Callable[[], Hashes]
    needs: Callable[[Machine], Needs]
    measure: Callable[[], Iterable[Measurement]]
    stdout: Path | None = None
    write_inputs: Callable[[], None] = lambda: None
    needs_record: bool = True

    @property
    def key(self) -> str:
        """The name without blanks."""
        return self.name.replace(" ", "-")

    @property
    def command_line(self) -> str:
        """The command as one types it."""
        redirection = f" > {shlex.quote(str(self.stdout))}" if self.stdout else ""
        return shlex.join(["nmt", *self.arguments]) + redirection

    @property
    def published(self) -> Expectations:
        """The experiment's figures for this stage; empty if it has none."""
        return self.plan.experiment.expected.get(self.name, {})

    @property
    def judged(self) -> Expectations:
        """The figures that decide on the stage; a rehearsal has only the fixed ones."""
        return self.published if self.plan.limit is None and self.published else self.fixed

    def figure(self, name: FigureName, measured: float, signature: str = "") -> Figure:
        """A measured figure beside the expected one. In a rehearsal, published figures are shown and not judged."""
        expected = self.judged.get(name) or self.published.get(name)
        is_judged = self.plan.limit is None or name in self.judged
        return Figure(name, expected, measured, is_judged=is_judged, signature=signature)

    def figures(self) -> list[Figure]:
        """The figures of the finished stage."""
        return [self.figure(*measured) for measured in self.measure()]

    def seconds(self) -> float | None:
        """The seconds that the last process of the stage took; None if there is no record."""
        return self._read_record().get("seconds")

    def is_finished(self) -> bool:
        """Whether the stage ended well, and nothing that it read or wrote has changed since."""
        try:
            if not self.needs_record:
                return self.output_hashes() == self.input_hashes()
            record = self._read_record()
            return bool(record) and self._current_state().items() <= record.items()
        except (OSError, DataError, ModelError):
            return False

    def write_record(self, *, seconds: float) -> None:
        """Write the record of the stage, which has just ended well."""
        if self.needs_record:
            content = json.dumps(self._current_state() | {"seconds": seconds}, indent=2, ensure_ascii=False) + "\n"
            write_file(self._record_file, content, error=DataError)

    def _current_state(self) -> dict[str, Any]:
        """The command, and the hashes of what it reads and has written."""
        return {"command": self.arguments, "made_from": dict(self.input_hashes()), "made": dict(self.output_hashes())}

    def _read_record(self) -> dict[str, Any]:
        """The record of the finished stage; empty if there is none, and then the stage has to run."""
        try:
            record = json.loads(self._record_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def _record_file(self) -> Path:
        return self.plan.folder / f"{self.key}.json"


def plan_stages(plan: ReproductionPlan) -> list[Stage]:
    """The stages in order; newstest2013 is translated only if the paper has figures for it."""
    stages = [_preparation_stage(plan), _training_stage(plan)]
    if "score newstest2013" in plan.experiment.expected:
        stages += [_decoding_stage(plan, "valid"), _scoring_stage(plan, "valid")]
    return [*stages, _averaging_stage(plan), _decoding_stage(plan, "test"), _scoring_stage(plan, "test")]


def _preparation_stage(plan: ReproductionPlan) -> Stage:
    corpus, published = plan.corpus, plan.experiment.expected["prepare"]
    limit = [] if plan.limit is None else ["--limit", str(plan.limit)]
    output = [] if plan.data == Path("data") / corpus.name else ["-o", str(plan.data)]
    figures = [test_set.figure for test_set in _TEST_SETS.values()]
    fixed = {figure: published[figure] for figure in figures}
    if plan.limit is not None:
        fixed["pairs read"] = expected_exactly(plan.limit, _REHEARSAL_SOURCE)
        if not corpus.tokenizer.comes_from_elsewhere:
            fixed["vocabulary"] = expected_exactly(corpus.tokenizer.vocab_size, _REHEARSAL_SOURCE)

    def measure() -> Iterator[Measurement]:
        manifest = data_manifest.read_manifest(plan.data)
        yield Measurement("pairs read", read_report(plan.data)["cleaning"]["read"])
        yield Measurement("pairs kept", manifest.splits["train"].pairs)
        for split, test_set in _TEST_SETS.items():
            yield Measurement(test_set.figure, manifest.splits[split].pairs)
        yield Measurement("vocabulary", manifest.tokenizers.target.vocab_size)

    return Stage(
        plan=plan,
        name="prepare",
        arguments=["prepare", corpus.name, *limit, *_set_flags(plan.settings.corpus), *output],
        fixed=fixed,
        input_hashes=lambda: {"corpus": _sha256_of_corpus(corpus.model_dump(mode="json"))},
        output_hashes=lambda: {"corpus": _sha256_of_corpus(open_prepared(plan.data).manifest.corpus)},
        needs=partial(preparation_needs, plan),
        measure=measure,
        needs_record=False,
    )


def _training_stage(plan: ReproductionPlan) -> Stage:
    model = plan.run / "model"
    data = [] if plan.data == Path("data") / plan.corpus.name else ["--data", str(plan.data)]
    output = [] if plan.run == Path("runs") / plan.recipe.name else ["-o", str(plan.run)]

    def output_hashes() -> Hashes:
        if open_run(plan.run).record.finished is None:
            raise ModelError("the run is not finished", where=str(plan.run), hint="the same command continues")
        return {"model": _sha256_of_model(model)}

    def stage_needs(machine: Machine) -> Needs:
        run = open_run(plan.run) if (plan.run / RUN_FILE).is_file() else None
        return training_needs(plan, run, machine)

    def measure() -> Iterator[Measurement]:
        history, update_of_model = open_run(plan.run).history(), load_saved_config(model).updates[-1]
        yield Measurement("parameters", parameters_in_file(model / WEIGHTS) or 0)
        yield Measurement("updates", history.last_update)
        yield Measurement("hours", history.trained_seconds / 3600)
        for validation in (point.measured for point in history.validations):
            if validation.update == update_of_model and validation.perplexity is not None:
                yield Measurement("perplexity", validation.perplexity)

    return Stage(
        plan=plan,
        name="train",
        arguments=["train", plan.experiment.recipe, *data, *output, *_set_flags(plan.settings.recipe)],
        fixed={"updates": expected_exactly(plan.recipe.training.updates, _REHEARSAL_SOURCE)},
        input_hashes=lambda: {
            "recipe": _sha256_of_text(dump_recipe(plan.recipe)),
            "data": data_manifest.read_manifest(plan.data).fingerprint,
        },
        output_hashes=output_hashes,
        needs=stage_needs,
        measure=measure,
    )


def _averaging_stage(plan: ReproductionPlan) -> Stage:
    averaging, averaged = plan.recipe.averaging, plan.run / "averaged"
    _, num_checkpoints = averaging.choice
    settings = json.dumps(averaging.model_dump(mode="json"))
    return Stage(
        plan=plan,
        name="average",
        arguments=["average", str(plan.run)],
        fixed={"checkpoints": expected_exactly(num_checkpoints, _REHEARSAL_SOURCE)},
        # The hash of the last model stands for all checkpoints: another training changes both.
        input_hashes=lambda: {"model": _sha256_of_model(plan.run / "model"), "averaging": _sha256_of_text(settings)},
        output_hashes=lambda: {"model": _sha256_of_model(averaged)},
        needs=lambda machine: averaging_needs(plan),
        measure=lambda: [Measurement("checkpoints", len(load_saved_config(averaged).updates))],
    )


@dataclass(frozen=True, slots=True)
class _HeldOutText:
    """One side of a test set: the file in the prepared data or, in a rehearsal, a copy of its first lines."""

    original: Path
    file: Path
    limit: int | None

    def sha256(self) -> str:
        """The SHA-256 of the lines; the copy need not be written yet."""
        return hashlib.sha256(self._content()).hexdigest()

    def write_copy(self) -> None:
        """Write the copy of a rehearsal."""
        if self.limit is not None:
            write_file(self.file, self._content(), error=DataError)

    def _content(self) -> bytes:
        with self.original.open("rb") as stream:
            return b"".join(islice(stream, self.limit))


def _held_out_text(
    plan: ReproductionPlan, split: HeldOutSplit, *, side: Literal["source", "reference"]
) -> _HeldOutText:
    language = plan.corpus.languages.source if side == "source" else plan.corpus.languages.target
    original, test_set = plan.data / f"{split}.{language}", _TEST_SETS[split]
    if plan.limit is None:
        return _HeldOutText(original, original, limit=None)
    copy = plan.folder / f"{test_set.name}.{side}.{language}"
    return _HeldOutText(original, copy, limit=plan.num_translated(test_set.num_lines))


def _translation_file(plan: ReproductionPlan, split: HeldOutSplit) -> Path:
    return plan.folder / f"{_TEST_SETS[split].name}.{plan.corpus.languages.target}"


def _decoding_stage(plan: ReproductionPlan, split: HeldOutSplit) -> Stage:
    """The stage that translates newstest2013 with the run's model/, or newstest2014 with the average.

    The run's model is the last update's, unless the recipe keeps the best.
    """
    source, translation = _held_out_text(plan, split, side="source"), _translation_file(plan, split)
    num_lines = plan.num_translated(_TEST_SETS[split].num_lines)
    model = plan.run / ("model" if split == "valid" else "averaged")
    arguments = ["decode", "-m", str(model), "-i", str(source.file), "-o", str(translation), "--overwrite"]
    # A model directory keeps the search settings of its training. These options pass the current recipe's settings.
    for name in _SEARCH_OPTIONS:
        arguments += [f"--{name.replace('_', '-')}", str(getattr(plan.recipe.decoding, name))]

    def measure() -> Iterator[Measurement]:
        with translation.open("rb") as stream:
            yield Measurement("lines", sum(1 for _ in stream))

    return Stage(
        plan=plan,
        name=f"decode {_TEST_SETS[split].name}",
        arguments=arguments,
        fixed={"lines": expected_exactly(num_lines, "the lines of the source")},
        input_hashes=lambda: {"model": _sha256_of_model(model), "text": source.sha256()},
        output_hashes=lambda: {"translation": sha256(translation)},
        needs=partial(decoding_needs, plan, lines=num_lines),
        measure=measure,
        write_inputs=source.write_copy,
    )


def _scoring_stage(plan: ReproductionPlan, split: HeldOutSplit) -> Stage:
    reference, translation = _held_out_text(plan, split, side="reference"), _translation_file(plan, split)
    scores_file = plan.folder / f"{_TEST_SETS[split].name}.scores.json"
    texts = [str(reference.file), "-i", str(translation)]
    languages = f"{plan.corpus.languages.source}-{plan.corpus.languages.target}"

    def measure() -> Iterator[Measurement]:
        scores: dict[str, Any] = read_json(scores_file, error=DataError, hint=_REMOVE_AND_REPEAT)["scores"]
        for title, name in _FIGURE_OF_METRIC.items():
            yield Measurement(name, scores[title]["score"], scores[title]["signature"])

    return Stage(
        plan=plan,
        name=f"score {_TEST_SETS[split].name}",
        arguments=["score", *texts, "-l", languages, "-m", "paper-bleu,bleu,chrf", "--json"],
        fixed={},
        input_hashes=lambda: {
            "reference": reference.sha256(),
            "translation": sha256(translation),
            "measure": _METRIC_VARIANT,
        },
        output_hashes=lambda: {"scores": sha256(scores_file)},
        needs=lambda machine: Needs(),
        measure=measure,
        stdout=scores_file,
        write_inputs=reference.write_copy,
    )


def _set_flags(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _sha256_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256_of_corpus(corpus: Mapping[str, Any]) -> str:
    return _sha256_of_text(json.dumps({key: corpus[key] for key in corpus.keys() - DESCRIPTIVE_KEYS}, sort_keys=True))


def _sha256_of_model(directory: Path) -> str:
    """The hash of a model's manifest, which has the hash of every file."""
    return sha256(directory / MANIFEST)
