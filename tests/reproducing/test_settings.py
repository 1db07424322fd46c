"""Settings of a reproduction: each to the command that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.preparing.corpora import load_corpus
from nmt_cli.preparing.sources.kinds import ArchiveSource, HubSource
from nmt_cli.reproducing.chain import command_line, run_chain
from nmt_cli.reproducing.experiments import EXPERIMENTS
from nmt_cli.reproducing.plan import Plan, make_plan
from nmt_cli.reproducing.stages import stages_of
from tests.hub import serve
from tests.preparing.corpus_files import invented_pairs
from tests.reproducing.test_needs import GPUS


def planned(*settings: str, limit: int | None = None) -> Plan:
    return make_plan(EXPERIMENTS["base-en-de"], settings=settings, limit=limit, data=None, run=None)


def commands(plan: Plan) -> Sequence[str]:
    return [command_line(stage) for stage in stages_of(plan)]


def test_each_setting_goes_to_the_command_that_it_belongs_to() -> None:
    plan = planned("model.dropout=0.2", "mirror=archives", "cleaning.max_words=80")
    prepare, train, *_ = commands(plan)
    assert prepare == "nmt prepare wmt14-en-de --set mirror=archives --set cleaning.max_words=80"
    assert train == "nmt train base --set model.dropout=0.2"
    assert (plan.corpus.cleaning.max_words, plan.recipe.model.dropout) == (80, 0.2)
    assert plan.settings.changing == ("model.dropout=0.2", "cleaning.max_words=80")


@pytest.mark.parametrize("setting", ["tokenizer.vocab_size=500", "tokenizer={vocab_size: 500}"])
def test_the_users_vocabulary_goes_before_that_of_a_rehearsal(setting: str) -> None:
    plan = planned(setting, limit=2_000)
    assert plan.corpus_settings == (setting,)
    assert plan.corpus.tokenizer.vocab_size == 500
    assert stages_of(plan)[0].expected["vocabulary"].low == 500


def test_a_vocabulary_that_is_taken_from_elsewhere_is_not_judged_by_its_size() -> None:
    plan = planned("tokenizer.taken_from=runs/other", limit=2_000)
    assert plan.corpus_settings == ("tokenizer.taken_from=runs/other",)
    assert "vocabulary" not in stages_of(plan)[0].expected


@pytest.mark.parametrize(
    ("setting", "key", "near"),
    [
        ("miror=x", "miror", "mirror"),
        ("max_words=80", "max_words", "cleaning.max_words"),
        ("model.max_words=80", "model.max_words", "cleaning.max_words"),
        ("cleaning.dropout=0.2", "cleaning.dropout", "model.dropout"),
        ("model={dropuot: 0.2}", "model.dropuot", "model.dropout"),
        ("train.updates=10", "train.updates", "training.updates"),
    ],
)
def test_the_near_match_of_an_unknown_key_may_be_in_either_file(setting: str, key: str, near: str) -> None:
    with pytest.raises(RecipeError) as caught:
        planned(setting)
    assert caught.value.message == f"unknown key {key!r}"
    assert (caught.value.where, caught.value.hint) == (f"--set {setting}", f"did you mean {near}?")


def test_a_wrong_value_of_the_corpus_is_told_by_its_own_file() -> None:
    with pytest.raises(RecipeError, match=r"cleaning\.max_words is 'many', but should be a whole number"):
        planned("cleaning.max_words=many")


def test_what_both_files_have_and_what_is_an_option_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        planned("name=mine")
    assert caught.value.message == "--set name could be that of the recipe or of the corpus"
    assert caught.value.hint == "leave it out; -o names the folder of the run, --data that of the data"
    with pytest.raises(UsageError) as caught:
        planned("limit=200")
    assert caught.value.message == "the limit of a reproduction is an option"
    assert caught.value.hint == "nmt reproduce base-en-de --limit 10000 rehearses it on so many pairs"


def test_without_a_network_the_text_is_prepared_from_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mirror(tmp_path / "archives")
    (tmp_path / "hub").mkdir()
    monkeypatch.chdir(tmp_path)
    plan = planned("mirror=archives", "tokenizer.vocab_size=400", limit=200)
    preparation = stages_of(plan)[0]
    with serve(tmp_path / "hub") as hub:
        hub.is_down = True
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        outcome = run_chain(plan, [preparation], GPUS)
    assert (outcome.stopped_at, hub.requests) == (None, [])
    figures = {figure.name: figure.measured for figure in outcome.figures[0][1]}
    assert (figures["pairs read"], figures["vocabulary"], figures["newstest2014 pairs"]) == (200, 400, 40)
    assert preparation.is_finished()
    assert not stages_of(planned("cleaning.max_words=3", "tokenizer.vocab_size=400", limit=200))[0].is_finished()


def write_mirror(folder: Path) -> None:
    """The unpacked files of all archives of wmt14-en-de, each with some invented pairs."""
    corpus = load_corpus("wmt14-en-de", overrides=()).corpus
    archives = [
        archive
        for split in ("train", "valid", "test")
        for source in corpus.sources(split)
        if isinstance(source, HubSource)
        for archive in source.otherwise or []
        if isinstance(archive, ArchiveSource)
    ]
    for number, archive in enumerate(archives):
        pairs = invented_pairs(40 if archive.markup else 150, seed=number)
        for side, member in enumerate((archive.source, archive.target)):
            lines = [pair[side] for pair in pairs]
            if archive.markup:
                lines = [f'<seg id="{place}">{line}</seg>' for place, line in enumerate(lines, 1)]
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            (folder / member).write_text("\n".join(lines) + "\n", encoding="utf-8")
