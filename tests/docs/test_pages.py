"""Everything that the pages name exists: files, headings, options, keys of recipes, modules, targets of make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import cycle

import pytest

from nmt_cli.cli.app import commands
from nmt_cli.errors import EXIT_CLOSED_PIPE, EXIT_INTERRUPTED, EXIT_PREEMPTED, NmtError
from nmt_cli.preparing.corpus import CleaningConfig, Corpus
from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import sections_at
from tests.docs.pages import ROOT, Page, guides, pages

PAGES = pages()
GUIDES = guides()
COMMANDS = commands()
MISSPELT = {"model.dropuot"}  # to show an error
OF_OTHER_PROGRAMS = {"--rdzv-id", "--nproc-per-node", "--user", "--install-completion", "--show-completion"}


def _options() -> dict[str, set[str]]:
    common = {"--quiet", "-q", "--debug", "--version", "--help", "-h"}
    return {name: common.union(*(parameter.opts for parameter in command.params)) for name, command in COMMANDS.items()}


def _code(page: Page) -> Iterator[str]:
    """Inline code, and the lines of shell blocks with continued lines joined."""
    yield from (token.content for token in page.inline() if token.type == "code_inline")
    for block in page.blocks():
        if block.language in ("bash", "console"):
            yield from block.text.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Page) -> None:
    anchors = {other.path: other.anchors() for other in PAGES}
    for token in page.inline():
        target = str(token.attrs.get("href", "")) if token.type == "link_open" else ""
        if not target or target.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors[path], f"{page.name} links to {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    by_path = {page.path: page for page in PAGES}
    while waiting:
        page = by_path[waiting.pop()]
        reached.add(page.path)
        targets = [str(token.attrs["href"]) for token in page.inline() if token.type == "link_open"]
        linked = {(page.path.parent / target.partition("#")[0]).resolve() for target in targets}
        waiting += [path for path in sorted(linked) if path in by_path and path not in reached]
    assert reached == set(by_path)


def test_sections_that_the_code_names_exist() -> None:
    anchors = {page.name: page.anchors() for page in PAGES}
    files = [file for folder in ("src", "benchmarks", "recipes", "tests") for file in (ROOT / folder).rglob("*")]
    named = [
        (file, name, anchor)
        for file in files
        if file.suffix in (".py", ".sh", ".yaml")
        for name, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", file.read_text(encoding="utf-8"))
    ]
    assert named
    for file, name, anchor in named:
        assert name in anchors, f"{file} names {name}"
        assert not anchor or anchor in anchors[name], f"{file} names {name}#{anchor}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_options_exist(page: Page) -> None:
    options = _options()
    anywhere = set().union(*options.values()) | OF_OTHER_PROGRAMS
    for code in _code(page):
        for command, rest in re.findall(rf"\bnmt(?:_cli)? (?:-\S+ )*({'|'.join(COMMANDS)})\b([^|;&<>`]*)", code):
            used = set(re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", rest))
            assert used <= options[command] or page.name.endswith("other-toolkits.md"), f"{page.name}: {code}"
        if code.startswith("--") and not page.name.endswith("other-toolkits.md"):
            assert set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", code)) <= anywhere, f"{page.name}: {code}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_keys_of_recipes_and_corpus_files_exist(page: Page) -> None:
    sections = "model|training|validation|averaging|decoding|cleaning|tokenizer|languages"
    for code in _code(page):
        for key in re.findall(rf"(?:^|--set )((?:{sections})\.[a-z_0-9.]+)(?=$|[=:\s])", code):
            if key in MISSPELT or key.endswith(".safetensors"):
                continue
            *path, last = key.split(".")
            for_recipe, for_corpus = (sections_at(schema, tuple(path), values={}) for schema in (Recipe, Corpus))
            assert any(last in section.model_fields for section in (*for_recipe, *for_corpus)), f"{page.name}: {key}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_modules_exist(page: Page) -> None:
    for token in page.inline():
        name = token.content
        if token.type == "code_inline" and re.fullmatch(r"[a-z_/]+\.py|src/\S+", name):
            assert any((root / name).exists() for root in (ROOT, ROOT / "src" / "nmt_cli")), f"{page.name}: {name}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_targets_of_make_exist(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for code in _code(page):
        assert set(re.findall(r"^make ([a-z-]+)", code)) <= targets, f"{page.name}: {code}"


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {file.parent.name for file in (ROOT / "src" / "nmt_cli").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"`([a-z]+)/`", text.partition("## What travels")[0]))


def test_the_guide_to_cleaning_has_the_default_of_each_key() -> None:
    text = (ROOT / "docs" / "how-to" / "clean-data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| (`cleaning\..*?) \| (.+?) \|", text, flags=re.MULTILINE)
    shown = {
        key: default.strip("`")
        for keys, defaults in rows
        for key, default in zip(re.findall(r"cleaning\.(\w+)", keys), cycle(defaults.split(", ")), strict=False)
    }
    defaults = {key: json.dumps(field.default) for key, field in CleaningConfig.model_fields.items()}
    assert shown == {key: default.strip('"').removesuffix(".0") for key, default in defaults.items()}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_the_readme_has_an_example_of_each_command() -> None:
    (readme,) = (page for page in PAGES if page.name == "README.md")
    shown = "\n".join(_code(readme))
    assert all(re.search(rf"\bnmt {command}\b", shown) for command in COMMANDS)


def test_the_reference_has_every_exit_code() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| (\d+) \| .*?(?:\(`(\w+)`\) )?\|$", text, flags=re.MULTILINE))
    families = {str(family.exit_code): family.__name__ for family in NmtError.__subclasses__()}
    others = {str(code): "" for code in (0, 1, EXIT_PREEMPTED, EXIT_INTERRUPTED, EXIT_CLOSED_PIPE)}
    assert listed == families | others
