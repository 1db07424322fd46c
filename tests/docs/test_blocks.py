"""Every fenced block of README.md and docs/ works: commands run, and print the output that is shown.

How a block is run, and what its marks mean, is in pages.py; in programs.py, what makes it quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nmt_cli.preparing.corpus_loading import load_corpus
from nmt_cli.recipe.loading import load_recipe
from tests.docs.conftest import Workshop
from tests.docs.pages import BEGINNINGS, MARKS, NEEDS, Block, Page, guides

PAGES = guides()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs(page: Page, workshop: Workshop, tmp_path: Path) -> None:
    workshop.begin(tmp_path, page.begins)
    for block in page.blocks():
        if "file" in block.marks:
            (tmp_path / block.marks["file"]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.marks["file"]).write_text(block.text, encoding="utf-8")
        match block.language:
            case "bash" if "file" in block.marks:
                _run(f"bash -n {block.marks['file']}", block, workshop, tmp_path)
            case "bash":
                _run(block.text, block, workshop, tmp_path)
            case "console":
                for command, expected in _session(block):
                    output = _run(command, block, workshop, tmp_path, shown=expected)
                    assert _shows(expected, output, block), f"{block.where}\n$ {command}\n{output}"
            case "python":
                (tmp_path / "block.py").write_text(block.text, encoding="utf-8")
                _run("python block.py", block, workshop, tmp_path)
            case "yaml":
                _read_yaml(tmp_path / block.marks["file"])
            case _:
                assert block.language == "text", f"{block.where}: a block of {block.language!r} is not understood"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_marks_are_known(page: Page) -> None:
    assert page.begins in BEGINNINGS
    for block in page.blocks():
        assert block.marks.keys() <= MARKS, block.where
        assert block.marks.get("needs", "network") in NEEDS, block.where
        assert block.language != "yaml" or "file" in block.marks, f"{block.where}: a file of which name?"


def _run(script: str, block: Block, workshop: Workshop, folder: Path, *, shown: str = "") -> str:
    """Run a block's command; its output. An error that is shown is expected, and so is an exit code that is marked."""
    result = workshop.run(script, folder=folder, is_dry="needs" in block.marks)
    if "exits" in block.marks:
        is_well = result.returncode == int(block.marks["exits"])
    else:
        is_well = (result.returncode == 0) != shown.startswith("error:")
    assert is_well, f"{block.where} ends with {result.returncode}\n{script}\n{result.stdout}"
    return result.stdout


def _session(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown after it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(number for number, line in enumerate(lines, 1) if not line.endswith("\\"))
        yield "\n".join(lines[:end]), "\n".join(lines[end:])


def _shows(expected: str, output: str, block: Block) -> bool:
    """Whether `output` is as shown, up to `...`, spacing, and what may differ. No shown output fits all."""
    if not expected:
        return True
    any_figure, any_line = (block.marks.get(mark) == "differ" for mark in ("figures", "words"))
    if any_figure or any_line:
        output = re.sub(r"^warning: .*\n", "", output, flags=re.MULTILINE)  # a model of six updates writes empty lines
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        elif any_line:
            pattern += r".*\n"
        else:
            pattern += r" *" + r" +".join(_word(word, any_figure=any_figure) for word in line.split()) + r" *\n"
    return re.fullmatch(pattern, re.sub(r"[ \t]+", " ", output.removesuffix("\n") + "\n")) is not None


def _word(word: str, *, any_figure: bool) -> str:
    figure = r"\d[\d.,:e+-]*"
    parts = re.split(rf"(\.\.\.|{figure})" if any_figure else r"(\.\.\.)", word)
    found = (".*" if part == "..." else f"-?{figure}" for part in parts[1::2])
    return re.escape(parts[0]) + "".join(
        any_one + re.escape(rest) for any_one, rest in zip(found, parts[2::2], strict=True)
    )


def _read_yaml(file: Path) -> None:
    """A recipe, a corpus file, or something else that is at least YAML."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    if "languages" in values:
        load_corpus(str(file), overrides=[])
    elif "extends" in values or "model" in values:
        load_recipe(file)
