"""The generated parts of the pages are what the code gives now: `python docs/generate.py` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs import generate
from nmt_cli.cli.app import app


@pytest.mark.parametrize("page", generate.pages(), ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert generate.renewed(text) == text, "run python docs/generate.py"


def test_every_part_is_used() -> None:
    used = {name for page in generate.pages() for name in re.findall(r"<!-- begin ([a-z-]+) -->", page.read_text())}
    assert used == generate.PARTS.keys()


@pytest.mark.parametrize("command", ["", "prepare", "train", "average", "decode", "score", "info"])
def test_the_command_reference_has_the_options_of_help(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    heading = f"## nmt {command}" if command else "## All commands"
    section = re.split(r"^(?=## )", generate.commands(), flags=re.MULTILINE)
    (ours,) = (part for part in section if part.startswith(f"{heading}\n"))
    shown = set(re.findall(r"(?<=│ )--[a-z-]+|(?<= )-[a-z](?= )", result.output)) - {"--help", "-h"}
    # Every command has them; the page says so once.
    shown -= {"--quiet", "-q", "--debug"} if command else set()
    assert shown
    assert shown == set(re.findall(r"`(--?[a-z-]+)`", re.sub(r"(?s)```.*?```", "", ours)))
