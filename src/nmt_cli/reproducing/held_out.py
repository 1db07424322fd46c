"""The stages that translate newstest2013 and newstest2014 and score the translations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from nmt_cli.errors import DataError
from nmt_cli.files import read_json, sha256, write_file
from nmt_cli.reproducing import needs
from nmt_cli.reproducing.experiments import Expected, FigureName, exactly
from nmt_cli.reproducing.machine import Machine
from nmt_cli.reproducing.needs import Needs
from nmt_cli.reproducing.plan import Plan
from nmt_cli.reproducing.records import Identities, model_identity
from nmt_cli.reproducing.stage import Stage
from nmt_cli.reproducing.verdicts import Figure

HeldOut = Literal["valid", "test"]

TEST_SETS: dict[HeldOut, str] = {"valid": "newstest2013", "test": "newstest2014"}
_LINES: dict[HeldOut, int] = {"valid": 3_000, "test": 3_003}
_METRICS = "paper-bleu,bleu,chrf"
_SCORES: dict[str, FigureName] = {"paper-BLEU": "paper BLEU", "BLEU": "sacreBLEU", "chrF2": "chrF2"}
_AGAIN = "remove the file, and give the same nmt reproduce command once more"


class Decoding(Stage):
    """`nmt decode`: newstest2013 by the model of the last update, newstest2014 by the average."""

    def __init__(self, plan: Plan, held_out: HeldOut) -> None:
        lines = _LINES[held_out] if plan.rehearsal is None else min(_LINES[held_out], plan.rehearsal.lines)
        expected: dict[FigureName, Expected] = {"lines": exactly(lines, "as many as are to be translated")}
        super().__init__(plan, name=f"decode {TEST_SETS[held_out]}", expected=expected, rehearsed=expected)
        self.held_out = held_out

    @property
    def arguments(self) -> list[str]:
        """The model, the text, the file of the translation, which replaces one of another model, and the search.

        A model keeps the search of the recipe that it was trained with; this is that of the recipe at hand.
        """
        search, output = self.plan.recipe.decoding, str(translation(self.plan, self.held_out))
        files = ["-m", str(self._model), "-i", str(self._source), "-o", output, "--overwrite"]
        penalty = ["--length-penalty", str(search.length_penalty), "--length-penalty-form", search.length_penalty_form]
        extra = ["--max-extra-tokens", str(search.max_extra_tokens)]
        return ["decode", *files, "--beam", str(search.beam), *penalty, *extra]

    def begin(self) -> None:
        """Write the first lines of the text and its reference, for a rehearsal."""
        plan, languages = self.plan, self.plan.corpus.languages
        if plan.rehearsal is None:
            return
        for language, cut in (
            (languages.source, source_text(plan, self.held_out)),
            (languages.target, reference(plan, self.held_out)),
        ):
            with _whole(plan, self.held_out, language).open("rb") as stream:
                lines = b"".join(islice(stream, plan.rehearsal.lines))
            if not cut.is_file() or cut.read_bytes() != lines:
                write_file(cut, lines, error=DataError)

    def made_from(self) -> Identities:
        """The model and the text."""
        self.begin()
        return {"model": model_identity(self._model), "text": sha256(self._source)}

    def made(self) -> Identities:
        """The translation."""
        return {"translation": sha256(translation(self.plan, self.held_out))}

    def needs(self, machine: Machine) -> Needs:
        """Of a search."""
        lines = self.plan.rehearsal.lines if self.plan.rehearsal else _LINES[self.held_out]
        return needs.of_decoding(
            self.plan.recipe, num_parameters=self.plan.num_parameters, lines=lines, machine=machine
        )

    def figures(self) -> Iterator[Figure]:
        """How many lines were translated."""
        with translation(self.plan, self.held_out).open("rb") as stream:
            yield self.figure("lines", sum(1 for _ in stream))

    @property
    def _model(self) -> Path:
        return self.plan.run / ("model" if self.held_out == "valid" else "averaged")

    @property
    def _source(self) -> Path:
        return source_text(self.plan, self.held_out)


class Scoring(Stage):
    """`nmt score`: the paper's own BLEU, and sacreBLEU's."""

    def __init__(self, plan: Plan, held_out: HeldOut) -> None:
        expected = plan.experiment.test if held_out == "test" else plan.experiment.validation
        super().__init__(plan, name=f"score {TEST_SETS[held_out]}", expected=expected, rehearsed={})
        self.held_out = held_out

    @property
    def arguments(self) -> list[str]:
        """The reference, the translation, and the metrics."""
        texts = [str(reference(self.plan, self.held_out)), "-i", str(translation(self.plan, self.held_out))]
        return ["score", *texts, "-l", self.plan.languages, "-m", _METRICS, "--json"]

    @property
    def stdout(self) -> Path:
        """The scores."""
        return self.plan.folder / f"{TEST_SETS[self.held_out]}.scores.json"

    def made_from(self) -> Identities:
        """The two texts."""
        return {
            "reference": sha256(reference(self.plan, self.held_out)),
            "translation": sha256(translation(self.plan, self.held_out)),
        }

    def made(self) -> Identities:
        """The scores."""
        return {"scores": sha256(self.stdout)}

    def needs(self, machine: Machine) -> Needs:
        """Nothing worth a line."""
        return Needs()

    def figures(self) -> Iterator[Figure]:
        """The scores, with their signatures."""
        scores: dict[str, Any] = read_json(self.stdout, error=DataError, hint=_AGAIN)["scores"]
        for title, name in _SCORES.items():
            yield self.figure(name, scores[title]["score"], detail=scores[title]["signature"])


def source_text(plan: Plan, held_out: HeldOut) -> Path:
    """The text to translate: that of the prepared data, or its first lines."""
    return _text(plan, held_out, plan.corpus.languages.source, kind="source")


def reference(plan: Plan, held_out: HeldOut) -> Path:
    """The reference of the text."""
    return _text(plan, held_out, plan.corpus.languages.target, kind="reference")


def translation(plan: Plan, held_out: HeldOut) -> Path:
    """The translation of the text."""
    return plan.folder / f"{TEST_SETS[held_out]}.{plan.corpus.languages.target}"


def _text(plan: Plan, held_out: HeldOut, language: str, *, kind: str) -> Path:
    if plan.rehearsal is None:
        return _whole(plan, held_out, language)
    return plan.folder / f"{TEST_SETS[held_out]}.{kind}.{language}"


def _whole(plan: Plan, held_out: HeldOut, language: str) -> Path:
    return plan.data / f"{held_out}.{language}"
