"""Writes the generated parts of README.md and docs/: `python docs/generate.py`. A test compares them with the code.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, and comes from the function of that name in PARTS.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from typer.core import TyperCommand
from typer.models import OptionInfo

from nmt_cli import errors
from nmt_cli.cli import app
from nmt_cli.cli.reproduce import Expected
from nmt_cli.cli.reproduce import experiments as paper_figures
from nmt_cli.console import size_text
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.preparing.corpus_loading import load_corpus
from nmt_cli.recipe.loading import load_recipe, packaged_names
from nmt_cli.recipe.schema import Recipe

ROOT = Path(__file__).resolve().parents[1]
# Signals and pipes end the process in ways that belong to no family of errors.
OTHER_ENDINGS = {
    0: "all went well",
    1: "a bug in nmt, with its traceback: please report it",
    errors.EXIT_PREEMPTED: "SIGTERM stopped the training: the same command, without --restart, continues",
    errors.EXIT_INTERRUPTED: "Ctrl-C; the same command, without --restart, continues a training",
    errors.EXIT_CLOSED_PIPE: "stdout was closed early, for example by `head`; nothing is printed",
}

# Options of typer itself.
_COMPLETION = [
    ("`--install-completion`", "", "Install completion for the current shell."),
    ("`--show-completion`", "", "Show completion for the current shell, to copy it or customize the installation."),
]
_FEW_KEYS = 3  # of a section, which has no heading of its own
_ON_OTHER_PAGES = {"cleaning": "[Clean data](../how-to/clean-data.md#the-rules) has its keys, with defaults and rules."}
_KEY_HEADER = ("key", "type", "default", "meaning")
_MEASURED_SECTIONS = {
    "layer-complexity": "Table 1",
    "attention-functions": "3.2.1",
    "position-lengths": "3.5",
    "table3-small": "Table 3",
}  # of the paper, by subject of results
_PART = re.compile(r"(?<=<!-- begin )(?P<name>[a-z-]+)( -->\n).*?(?=<!-- end (?P=name) -->)", re.DOTALL)


def pages() -> list[Path]:
    """README.md and every page under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(text: str) -> str:
    """The text of a page with its generated parts as the code has them now."""
    return _PART.sub(lambda found: f"{found['name']}{found[2]}{PARTS[found['name']]()}", text)


def recipe() -> str:
    """Every key of a recipe."""
    return "\n".join(_sections(Recipe, level=2))


def corpus() -> str:
    """Every key of a corpus file."""
    return "\n".join(_sections(Corpus, level=2))


def commands() -> str:
    """Every command with its arguments and options."""
    return "\n".join(line for name, command in _commands().items() for line in _command(name, command))


def exit_codes() -> str:
    """The meaning of each exit code, from the classes of errors."""
    families = {
        family.exit_code: f"{_first_sentence(family)} (`{family.__name__}`)"
        for family in errors.NmtError.__subclasses__()
    }
    meanings = {**families, **OTHER_ENDINGS}
    rows = [(str(code), meanings[code]) for code in sorted(meanings)]
    return "\n".join([*_table(("code", "meaning"), rows), ""])


def recipes() -> str:
    """The recipes that travel with the package."""
    names = [name for name in packaged_names(kind="recipe") if "/" not in name]
    rows = [(f"`{name}`", _cell(load_recipe(name).description)) for name in names]
    return "\n".join([*_table(("recipe", "what it is"), rows), ""])


def corpora() -> str:
    """The corpora that travel with the package."""
    rows = []
    for name in packaged_names(kind="corpus"):
        loaded = load_corpus(name, overrides=[]).corpus
        has_download = any(source.describe() for split in loaded.splits for source in loaded.sources(split))
        download = "none" if not has_download else size_text(loaded.bytes) if loaded.bytes else "unknown"
        pairs = f"{loaded.pairs.train:,}" if loaded.pairs and loaded.pairs.train else ""
        rows.append(
            (f"`{name}`", str(loaded.directions), pairs, download, loaded.licence or "", _cell(loaded.description))
        )
    return "\n".join(
        [*_table(("corpus", "languages", "pairs", "size of the download", "licence", "what it is"), rows), ""]
    )


def experiments() -> str:
    """The figures of the paper that `nmt reproduce` compares with, for its four systems."""
    by_recipe = {name: figures for name, figures in paper_figures().items() if "/" not in name}
    found: dict[str, dict[str, Expected]] = {}
    for name, figures in by_recipe.items():
        for expected in figures:
            found.setdefault(expected.figure, {})[name] = expected
    rows = []
    for figure, expected_by_recipe in found.items():
        sources = "; ".join(dict.fromkeys(each.source for each in expected_by_recipe.values()))
        reasons = "; ".join(dict.fromkeys(each.why for each in expected_by_recipe.values()))
        rows.append((figure, *(str(expected_by_recipe.get(name, "")) for name in by_recipe), sources, reasons))
    names = (f"`{name if '-' in name else f'{name}-en-de'}`" for name in by_recipe)
    return "\n".join([*_table(("figure", *names, "source", "why this tolerance"), rows), ""])


def measured_arguments() -> str:
    """The commands of the paper's arguments, with their minutes."""
    rows = []
    for subject, section in _MEASURED_SECTIONS.items():
        result = _newest_result(subject)
        rows.append(
            (section, f"`{result['command']}`", f"{result['minutes']:.0f}", result["commit"], result["hardware"])
        )
    return "\n".join([*_table(("section", "command", "minutes", "commit", "hardware"), rows), ""])


def measured_table(subject: str, name: str) -> str:
    """A table of the newest result in benchmarks/results/SUBJECT.json."""
    return "\n".join([*_newest_result(subject)["tables"][name], ""])


def _newest_result(subject: str) -> dict[str, Any]:
    file = ROOT / "benchmarks" / "results" / f"{subject}.json"
    newest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))[-1]
    return newest


PARTS: Mapping[str, Callable[[], str]] = {
    "recipe": recipe,
    "corpus": corpus,
    "commands": commands,
    "exit-codes": exit_codes,
    "recipes": recipes,
    "corpora": corpora,
    "experiments": experiments,
    "measured-arguments": measured_arguments,
    "layer-complexity": partial(measured_table, "layer-complexity", "complexity"),
    "layer-explanations": partial(measured_table, "layer-complexity", "explanations"),
    "layer-paths": partial(measured_table, "layer-complexity", "paths"),
    "attention-costs": partial(measured_table, "attention-functions", "costs"),
    "attention-saturation": partial(measured_table, "attention-functions", "saturation"),
    "attention-losses": partial(measured_table, "attention-functions", "losses"),
    "position-lengths": partial(measured_table, "position-lengths", "lengths"),
    "sizes-in-small": partial(measured_table, "table3-small", "rows"),
}


def _sections(schema: type[BaseModel], *, level: int) -> Iterator[str]:
    """A heading and a table of keys for the schema and for each section below it, in the order of the schema."""
    definitions = schema.model_json_schema()
    sections = definitions.pop("$defs")
    described: set[str] = set()
    rows = _keys(definitions, prefix="")
    larger: list[tuple[str, Any]] = []
    for key, value in _inner(definitions):
        (*others, name) = _references(value)
        small = [] if others or _tag(sections[name]) else _keys(sections[name], prefix=f"{key}.")
        is_small = 0 < len(small) <= _FEW_KEYS
        if not is_small:
            larger.append((key, value))
            continue
        described.add(name)
        after = next((place for place, row in enumerate(rows, start=1) if row[0] == f"`{key}`"), len(rows))
        rows[after:after] = small
    yield from ["", f"{'#' * level} At the top", "", *_table(_KEY_HEADER, rows)]
    for key, value in larger:
        yield from _section(key, value, sections, described, level=level)


def _section(path: str, value: Any, sections: Mapping[str, Any], described: set[str], *, level: int) -> Iterator[str]:
    """One table of the keys at `path`; each kind of section begins with a row, and keys of all kinds end it.

    Each section is described once.
    """
    found = [name for name in dict.fromkeys(_references(value)) if name not in described]
    described.update(found)
    if not found:
        return
    rows: list[Sequence[str]] = []
    is_list = "array" in json.dumps(value)
    keys = {name: _keys(sections[name], prefix="" if is_list or _tag(sections[name]) else f"{path}.") for name in found}
    shared = [row for row in keys[found[0]] if len(found) > 1 and all(row in others for others in keys.values())]
    for name in found:
        if tag := _tag(sections[name]):
            default = value.get("default")
            is_default = isinstance(default, dict) and tag == f"name: {default['name']}"
            rows.append((f"**{tag}**", "", "the default" if is_default else "", _cell(sections[name]["description"])))
        rows += [row for row in keys[name] if row not in shared]
    rows += [("**every kind**", "", "", "Keys of all of them."), *shared] if shared else []
    about = [] if _tag(sections[found[0]]) else [sections[found[0]]["description"], ""]
    if path in _ON_OTHER_PAGES:
        yield from ["", f"{'#' * level} {path}", "", *about, _ON_OTHER_PAGES[path]]
        return
    yield from ["", f"{'#' * level} {path}", "", *about, *_table(_KEY_HEADER, rows)]
    for name in found:
        for key, inner in _inner(sections[name]):
            yield from _section(f"{path}.{key}", inner, sections, described, level=level + 1)


def _tag(section: Any) -> str:
    """The key and value that mark this kind of section in YAML, such as `kind: tsv`."""
    return next((f"{key}: {one['const']}" for key, one in section["properties"].items() if "const" in one), "")


def _inner(section: Any) -> Iterator[tuple[str, Any]]:
    """The keys of a section that hold sections; keys with the same sections are joined."""
    together: dict[str, tuple[list[str], Any]] = {}
    for key, value in section["properties"].items():
        if _references(value):
            together.setdefault(",".join(_references(value)), ([], value))[0].append(key)
    for keys, value in together.values():
        yield ", ".join(keys), value


def _keys(section: Any, *, prefix: str) -> list[Sequence[str]]:
    """A row for each key of a section that is not itself a section."""
    return [
        (f"`{prefix}{key}`", _type(value), _default(key, value, section), _cell(value.get("description", "")))
        for key, value in section["properties"].items()
        if "const" not in value
        if not _references(value) or "description" in value or "array" in json.dumps(value)
    ]


def _type(value: Any) -> str:
    """The type of a value in the words of the recipe's errors, with its bounds."""
    if "anyOf" in value:
        return " or ".join(_type(choice) for choice in value["anyOf"])
    if "enum" in value or "const" in value:
        return " or ".join(f"`{word}`" for word in value.get("enum", [value.get("const")]))
    if _references(value):
        return "list of sections" if value.get("type") == "array" else "section"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    words |= {"array": "list of texts", "object": "texts by name"}
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    bounds = [f"{sign} {value[key]:g}" for key, sign in signs.items() if key in value]
    word = "`null`" if value["type"] == "null" else words[value["type"]]
    return " ".join([word, ", ".join(bounds)]).strip()


def _default(key: str, value: Any, section: Any) -> str:
    if "shown_default" in value:
        return str(value["shown_default"])
    if key in section.get("required", []):
        return "required"
    default = value["default"]
    if isinstance(default, float):
        return f"`{default!r}`".replace("e-0", "e-")
    return f"`{json.dumps(default)}`" if default != "" else "empty"


def _references(value: Any) -> list[str]:
    """The names of the sections that a value may be, or hold in a list."""
    return re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(value))


def _commands() -> dict[str, Callable[..., None]]:
    return {"": app.options} | {name: _callback(command) for name, command in app.commands().items()}


def _callback(command: TyperCommand) -> Callable[..., None]:
    assert command.callback is not None
    return command.callback


def _command(name: str, command: Callable[..., None]) -> Iterator[str]:
    about, *example = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    signature = inspect.signature(command, eval_str=True)
    parameters = [one for one in signature.parameters.values() if not name or one.name not in ("quiet", "debug")]
    arguments, options, wanted = [], [], []
    for parameter in parameters:
        kind, info = parameter.annotation.__origin__, parameter.annotation.__metadata__[0]
        if isinstance(info, OptionInfo):
            options.append((_option(parameter, kind, info), _option_default(parameter, info), _cell(info.help or "")))
        else:
            arguments.append((f"`{info.metavar}`".replace("|", "\\|"), "", _cell(info.help or "")))
            usage = info.metavar if parameter.default is inspect.Parameter.empty else f"[{info.metavar}]"
            wanted.append(usage + ("..." if "list" in str(kind) else ""))
    options += [] if name else _COMPLETION
    usage = " ".join([f"nmt {name} [OPTIONS]", *wanted]) if name else "nmt [OPTIONS] COMMAND ..."
    shown = " ".join(line for text in example for line in text.splitlines()).removeprefix("Example: ")
    yield from ["", f"## {f'nmt {name}' if name else 'All commands'}", "", about]
    yield from [f"Usage: `{usage}`. Example: `{shown}`", ""]
    if not name:
        links = (f"[{other}](#nmt-{other})" for other in app.commands())
        yield from [f"Commands: {', '.join(links)}. `--quiet` and `--debug` may also stand after the command.", ""]
    yield from _table(("argument or option", "default", "meaning"), [*arguments, *options])


def _option(parameter: inspect.Parameter, kind: Any, info: OptionInfo) -> str:
    # In Annotated, typer takes the first spelling for a default.
    first = [info.default] if isinstance(info.default, str) else []
    spelt = [*first, *(info.param_decls or [])] or [f"--{parameter.name.replace('_', '-')}"]
    words = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
    value = info.metavar or next((word for one, word in words.items() if one.__name__ in str(kind)), "")
    is_flag = kind is bool
    return ", ".join(f"`{one}`" for one in spelt) + ("" if is_flag else f" `{_cell(value)}`")


def _option_default(parameter: inspect.Parameter, info: OptionInfo) -> str:
    if isinstance(info.show_default, str):
        return info.show_default
    if parameter.default is inspect.Parameter.empty:
        return "required"
    return "" if parameter.default in (None, False) else f"`{parameter.default}`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def _first_sentence(what: type) -> str:
    sentence = inspect.cleandoc(what.__doc__ or "").split("\n")[0].removesuffix(".")
    return sentence[0].lower() + sentence[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for page in pages():
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
