"""The stages of an experiment in order; here those that prepare, train and average."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256 as digest_of
from pathlib import Path
from typing import Any

from nmt_cli.bundle.config import WEIGHTS, load_config
from nmt_cli.bundle.description import num_parameters
from nmt_cli.bundle.kinds import RUN_FILE
from nmt_cli.bundle.run import Run, open_run
from nmt_cli.dataset.manifest import read_manifest
from nmt_cli.dataset.store import open_prepared
from nmt_cli.errors import DataError, ModelError
from nmt_cli.preparing.reporting.report import read_report
from nmt_cli.recipe.loading import dump_recipe
from nmt_cli.reproducing import needs
from nmt_cli.reproducing.experiments import Expected, FigureName, exactly
from nmt_cli.reproducing.held_out import Decoding, Scoring
from nmt_cli.reproducing.machine import Machine
from nmt_cli.reproducing.needs import Needs
from nmt_cli.reproducing.plan import Plan
from nmt_cli.reproducing.records import Identities, model_identity
from nmt_cli.reproducing.settings import WITHOUT_EFFECT
from nmt_cli.reproducing.stage import Stage
from nmt_cli.reproducing.verdicts import Figure

_HELD_OUT_PAIRS: dict[str, FigureName] = {"valid": "newstest2013 pairs", "test": "newstest2014 pairs"}
_OF_REHEARSAL = "the rehearsal's settings"


def stages_of(plan: Plan) -> list[Stage]:
    """The stages of a reproduction in order; newstest2013 is translated where the paper has figures of it."""
    chain: list[Stage] = [Preparation(plan), Training(plan)]
    if plan.experiment.validation:
        chain += [Decoding(plan, "valid"), Scoring(plan, "valid")]
    return [*chain, Averaging(plan), Decoding(plan, "test"), Scoring(plan, "test")]


class Preparation(Stage):
    """`nmt prepare`: it knows itself what is finished, so that there is no record of it."""

    def __init__(self, plan: Plan) -> None:
        expected, rehearsal = plan.experiment.preparation, plan.rehearsal
        rehearsed: dict[FigureName, Expected] = {name: expected[name] for name in _HELD_OUT_PAIRS.values()}
        if rehearsal is not None:
            rehearsed["pairs read"] = exactly(rehearsal.limit, _OF_REHEARSAL)
            if (tokenizer := plan.corpus.tokenizer).taken_from is None:
                rehearsed["vocabulary"] = exactly(tokenizer.vocab_size, _OF_REHEARSAL)
        super().__init__(plan, name="prepare", expected=expected, rehearsed=rehearsed)

    @property
    def arguments(self) -> list[str]:
        """The corpus by name, of a rehearsal its limit, and the settings."""
        rehearsal = self.plan.rehearsal
        limit = [] if rehearsal is None else ["--limit", str(rehearsal.limit)]
        usual = Path("data") / self.plan.corpus.name
        output = [] if self.plan.data == usual else ["-o", str(self.plan.data)]
        return ["prepare", self.plan.experiment.corpus, *limit, *_set(self.plan.corpus_settings), *output]

    def made_from(self) -> Identities:
        """The corpus as it is to be."""
        return {"corpus": _identity(_binding(self.plan.corpus.model_dump(mode="json")))}

    def made(self) -> Identities:
        """The corpus that the data says it was made from."""
        return {"corpus": _identity(_binding(open_prepared(self.plan.data).manifest.corpus))}

    def is_finished(self) -> bool:
        """True where whole data of this very corpus is there."""
        try:
            return self.made() == self.made_from()
        except (OSError, DataError):
            return False

    def note_end(self, *, seconds: float) -> None:
        """Nothing: the folder of the run, where records lie, is not there yet."""

    def needs(self, machine: Machine) -> Needs:
        """Of all pairs that are read; what a rehearsal or a mirror leaves to download is not known before."""
        corpus, rehearsal = self.plan.corpus, self.plan.rehearsal
        known = int(self.plan.experiment.preparation["pairs read"].low)
        repositories = [source.repository for source in corpus.sources("train") if source.kind == "hub"]
        return needs.of_preparation(
            pairs=known if rehearsal is None else min(rehearsal.limit, known),
            sample_lines=corpus.tokenizer.sample_lines,
            download_bytes=corpus.bytes if repositories and rehearsal is None and corpus.mirror is None else None,
            data=self.plan.data,
            cache=needs.hub_cache(repositories[0]) if repositories else self.plan.data,
            machine=machine,
        )

    def figures(self) -> Iterator[Figure]:
        """Pairs and pieces."""
        manifest = read_manifest(self.plan.data)
        yield self.figure("pairs read", read_report(self.plan.data)["cleaning"]["read"])
        yield self.figure("pairs kept", manifest.splits["train"].pairs)
        for held_out, name in _HELD_OUT_PAIRS.items():
            yield self.figure(name, manifest.splits[held_out].pairs)
        yield self.figure("vocabulary", manifest.tokenizers.target.vocab_size)


class Training(Stage):
    """`nmt train`, which spreads itself over the GPUs that it finds."""

    def __init__(self, plan: Plan) -> None:
        rehearsed: dict[FigureName, Expected] = {"updates": exactly(plan.recipe.training.updates, _OF_REHEARSAL)}
        super().__init__(plan, name="train", expected=plan.experiment.training, rehearsed=rehearsed)

    @property
    def arguments(self) -> list[str]:
        """The recipe by name, the settings, and folders that are not the usual ones."""
        plan = self.plan
        data = [] if plan.data == Path("data") / plan.corpus.name else ["--data", str(plan.data)]
        output = [] if plan.run == Path("runs") / plan.recipe.name else ["-o", str(plan.run)]
        return ["train", plan.experiment.recipe, *data, *output, *_set(plan.recipe_settings)]

    def made_from(self) -> Identities:
        """The recipe and the data."""
        return {"recipe": _identity(dump_recipe(self.plan.recipe)), "data": read_manifest(self.plan.data).fingerprint}

    def made(self) -> Identities:
        """The model of the last update, once the run says that it is finished."""
        if self._run().record.finished is None:
            raise ModelError("the run is not finished", where=str(self.plan.run), hint="the same command goes on")
        return {"model": model_identity(self.plan.run / "model")}

    def needs(self, machine: Machine) -> Needs:
        """Of what is left of the training."""
        has_begun = (self.plan.run / RUN_FILE).is_file()
        return needs.of_training(
            self.plan.recipe,
            vocab_size=self.plan.corpus.tokenizer.vocab_size,
            directory=self.plan.run,
            run=self._run() if has_begun else None,
            machine=machine,
        )

    def figures(self) -> Iterator[Figure]:
        """Parameters, updates, hours, and the perplexity of the last update."""
        model, run = self.plan.run / "model", self._run()
        last = load_config(model).updates[-1]
        yield self.figure("parameters", num_parameters(model / WEIGHTS) or 0)
        yield self.figure("updates", last)
        yield self.figure("hours", needs.training_seconds(run) / 3600)
        for one in run.validations():
            if one.update == last and one.perplexity is not None:
                yield self.figure("perplexity", one.perplexity)

    def _run(self) -> Run:
        return open_run(self.plan.run)


class Averaging(Stage):
    """`nmt average`, by what the recipe says."""

    def __init__(self, plan: Plan) -> None:
        averaging = plan.recipe.averaging
        rehearsed: dict[FigureName, Expected] = {
            "checkpoints": exactly(averaging.last or averaging.best or 0, _OF_REHEARSAL)
        }
        super().__init__(plan, name="average", expected=plan.experiment.averaging, rehearsed=rehearsed)

    @property
    def arguments(self) -> list[str]:
        """The run."""
        return ["average", str(self.plan.run)]

    def made_from(self) -> Identities:
        """The model of the last update, of which the checkpoints before it follow, and which of them are averaged."""
        averaging = json.dumps(self.plan.recipe.averaging.model_dump(mode="json"))
        return {"model": model_identity(self.plan.run / "model"), "averaging": _identity(averaging)}

    def made(self) -> Identities:
        """The averaged model."""
        return {"model": model_identity(self.plan.run / "averaged")}

    def needs(self, machine: Machine) -> Needs:
        """Of a model more."""
        return needs.of_average(num_parameters=self.plan.num_parameters, directory=self.plan.run)

    def figures(self) -> Iterator[Figure]:
        """How many checkpoints were averaged."""
        yield self.figure("checkpoints", len(load_config(self.plan.run / "averaged").updates))


def _set(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _binding(corpus: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in corpus.items() if key not in WITHOUT_EFFECT}, sort_keys=True)


def _identity(text: str) -> str:
    return digest_of(text.encode()).hexdigest()
