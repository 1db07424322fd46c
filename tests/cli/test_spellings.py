"""Options of other toolkits are answered with ours, and what the answers name exists."""

from __future__ import annotations

import re

import pytest
import typer.main

from nmt_cli.cli.app import app
from nmt_cli.cli.spellings import SPELLINGS, check_spellings
from nmt_cli.errors import UsageError
from nmt_cli.preparing.corpora import Corpus
from nmt_cli.recipe.mistakes import KeyPath, sections_at
from nmt_cli.recipe.schema import Recipe

ANSWERS = [(command, hint, spellings) for command, known in SPELLINGS.items() for hint, spellings in known.items()]


def options_of(command: str) -> set[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return {option for parameter in group.commands[command].params for option in parameter.opts}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("decode --lenpen 0.6", "here it is --length-penalty A --length-penalty-form length"),
        ("--quiet decode --beam-size=5", "here it is --beam N"),
        ("decode -beam_size 5", "here it is --beam N"),
        ("decode --remove-bpe", "leave it out: text is raw on both sides, and in order"),
        ("average --inputs a b", "name the run: nmt average RUN"),
        (
            "train base --max-epoch 20",
            "here it is --set training.updates=N; with prepared data --dry-run says how many an epoch has",
        ),
        ("train base --max-update 10", "here it is --set training.updates=N"),
        ("train base --update-freq 8", "here it is --set training.batch_tokens=N, from which accumulation is derived"),
    ],
)
def test_the_answer_names_our_option(arguments: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        check_spellings(arguments.split())
    assert error.value.hint == hint
    assert error.value.where is not None
    assert error.value.message.endswith(f"has no option {error.value.where}")


@pytest.mark.parametrize("arguments", ["", "decode -b 4 -n4 -i x", "train base --set a.b=--lr", "decode -- --lenpen"])
def test_our_own_command_lines_pass(arguments: str) -> None:
    check_spellings(arguments.split())


@pytest.mark.parametrize("command", SPELLINGS)
def test_no_spelling_is_an_option_of_ours_or_has_two_answers(command: str) -> None:
    spellings = [spelling for known in SPELLINGS[command].values() for spelling in known.split()]
    assert len(spellings) == len(set(spellings))
    assert not set(spellings) & options_of(command)


@pytest.mark.parametrize(("command", "hint", "spellings"), ANSWERS)
def test_what_an_answer_names_exists(command: str, hint: str, spellings: str) -> None:
    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", hint)) <= options_of(command)
    schema = Corpus if command == "prepare" else Recipe
    for key in re.findall(r"--set ([a-z0-9_.]+)=", hint):
        path: KeyPath = tuple(key.split("."))
        sections = sections_at(schema, path[:-1], values={})
        assert any(path[-1] in section.model_fields for section in sections), key
