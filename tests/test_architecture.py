"""The layout of the house: which room may import which. The table is this file's; docs/architecture.md tells why."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

import pytest

from tests.source_modules import Module, Rule, assert_kept, dotted_name

# A room is a module or folder directly below nmt_cli. Imports go down, to a room of a lower floor, or stay in the room.
FLOORS = {
    "__main__": 6,
    "cli": 5,
    "api": 4,
    "preparing": 3,
    "training": 3,
    "decoding": 3,
    "scoring": 3,
    "serving": 3,
    "interchange": 3,
    "model": 2,
    "dataset": 2,
    "artifacts": 2,
    "tokenization": 2,
    "documents": 2,
    "recipe": 1,
    "errors": 0,
    "console": 0,
    "files": 0,
    "decompression": 0,
    "cache": 0,
    "hub": 0,
    "devices": 0,
    "memory": 0,
    "processes": 0,
    "languages": 0,
    "testsets": 0,
    "text_encoding": 0,
    "templates": 0,
}
# Imports between rooms of one floor, which follow from what the importing room does.
NEIGHBOURS = {
    "training": {"decoding", "scoring"},  # validation translates and scores
    "scoring": {"decoding"},  # the probability of given translations is computed in batches as a search's are
    "serving": {"decoding"},
    "interchange": {"decoding"},  # an exported model must translate as ours does
    "artifacts": {"model", "tokenization"},  # a loaded model directory is a model and its tokenizers
    "documents": {"tokenization"},  # links between the words of two texts
    "dataset": {"tokenization", "model"},  # prepared data has its tokenizers; batches are packed as for the model
    "console": {"errors"},
    "files": {"errors"},
    "decompression": {"errors", "files"},
    "cache": {"errors", "files"},
    "hub": {"cache", "console", "errors", "files"},  # downloads show their progress, and end in errors
    "devices": {"errors"},
    "memory": {"devices"},  # both ask the kernel
    "processes": {"errors"},
    "languages": {"errors"},
    "testsets": {"errors", "files"},
    "text_encoding": {"decompression", "errors"},
}


def imports_go_down(modules: Sequence[Module]) -> Iterator[str]:
    """Imports anywhere in a file, in functions and under TYPE_CHECKING too, only reach what the tables allow."""
    for module in modules:
        if module.room == "":
            continue  # the package's __init__ names the public API, which it imports when first used
        if module.room not in FLOORS:
            yield module.at(module.tree, f"room {module.room!r} is not in the table of floors")
            continue
        for node, target in _own_imports(module):
            room = target.split(".")[1] if "." in target else ""
            if room == "":
                yield from _takes_only_the_version(module, node)
            elif room not in FLOORS:
                yield module.at(node, f"imports {target}, whose room is not in the table of floors")
            elif not _may_import(module.room, room):
                yield module.at(node, f"{module.room} (floor {FLOORS[module.room]}) imports {target}")


def imports_name_modules(modules: Sequence[Module]) -> Iterator[str]:
    """Nothing is imported from the `__init__` of a room, where import cycles begin."""
    known = {module.name for module in modules}
    packages = {module.name for module in modules if module.path.endswith("__init__.py")} - {"nmt_cli"}
    for module in modules:
        for node, target in _own_imports(module):
            package, _, name = target.rpartition(".")
            if package in packages and target not in known:
                yield module.at(
                    node, f"imports {name} from the __init__ of {package}; import the module that defines it"
                )


def files_form_no_circle(modules: Sequence[Module]) -> Iterator[str]:
    """No file imports itself by way of others, in functions and under TYPE_CHECKING too."""
    files = {module.name: module for module in modules if module.room != ""}
    graph: dict[str, set[str]] = {}
    for name, module in files.items():
        targets = {_file_of(target, files) for _, target in _own_imports(module)}
        graph[name] = {target for target in targets if target is not None and target != name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        path = [name.removeprefix("nmt_cli.") for name in reversed(circle.args[1])]
        first = files[circle.args[1][-1]]
        yield first.at(first.tree, f"is in a circle: {' imports '.join(path)}")


def public_classes_have_names_of_their_own(modules: Sequence[Module]) -> Iterator[str]:
    """Two public classes never share a name, so that a name leads to one file."""
    homes: dict[str, str] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in homes:
                    yield module.at(node, f"{node.name} is also a class of {homes[node.name]}")
                homes[node.name] = module.path


RULES = [
    imports_go_down,
    imports_name_modules,
    files_form_no_circle,
    public_classes_have_names_of_their_own,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert_kept(rule)


def _file_of(target: str, files: Mapping[str, Module]) -> str | None:
    """The file that a dotted name leads to: a module, or the module of a name in it."""
    return target if target in files else next((name for name in [target.rpartition(".")[0]] if name in files), None)


def _may_import(importer: str, imported: str) -> bool:
    is_below = FLOORS[imported] < FLOORS[importer]
    return is_below or imported == importer or imported in NEIGHBOURS.get(importer, set())


def _own_imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of the project's own, as a dotted name; `from nmt_cli import x` is `nmt_cli` where x is no room."""
    package = ["nmt_cli", *PurePosixPath(module.path).parent.parts]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names = [alias.name for alias in node.names]
            targets = [origin if origin == "nmt_cli" and name not in FLOORS else f"{origin}.{name}" for name in names]
        else:
            continue
        yield from ((node, target) for target in targets if target.split(".")[0] == "nmt_cli")


def _takes_only_the_version(module: Module, node: ast.stmt) -> Iterator[str]:
    """The package itself imports the rooms on demand: below them, only its version may be asked for."""
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
    else:
        attributes = [part for part in ast.walk(module.tree) if isinstance(part, ast.Attribute)]
        names = {attribute.attr for attribute in attributes if dotted_name(attribute.value) == "nmt_cli"}
    for name in sorted(names - set(FLOORS) - {"__version__"}):
        yield module.at(node, f"takes {name} from nmt_cli, which is there only for its __version__")
