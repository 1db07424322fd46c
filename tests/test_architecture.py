"""The layout of the house: which room may import which. The table is this file's; docs/architecture.md tells why."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

import pytest

from tests.source_modules import Module, Rule, assert_kept, called, dotted_name, parse

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
    "recipe": 1,
    "errors": 0,
    "console": 0,
    "files": 0,
    "decompression": 0,
    "cache": 0,
    "hub": 0,
    "hub_names": 0,
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
    "dataset": {"tokenization", "model"},  # prepared data has its tokenizers; batches are packed as for the model
    "console": {"errors"},
    "files": {"errors"},
    "decompression": {"errors", "files"},
    "cache": {"errors", "files"},
    "hub": {"console", "errors"},  # downloads show their progress, and end in errors
    "hub_names": {"cache", "errors", "hub"},  # the page of a name on the hub, and its place in the cache
    "devices": {"errors"},
    "processes": {"errors"},
    "languages": {"errors", "files"},
    "testsets": {"errors", "files"},
    "text_encoding": {"decompression", "errors", "files"},
}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}


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


def computed_imports_stay_at_the_doors(modules: Sequence[Module]) -> Iterator[str]:
    """Imports by a computed name, which no rule here can follow, occur only in the lazy `__init__` and in `cli/app`."""
    for module in modules:
        for node in ast.walk(module.tree):
            is_computed = called(node).rpartition(".")[2] in {"import_module", "__import__"}
            if is_computed and module.path not in {"__init__.py", "cli/app.py"}:
                yield module.at(node, "imports by a computed name")


def names_say_something(modules: Sequence[Module]) -> Iterator[str]:
    """A module or folder is named by a noun of the field."""
    for module in modules:
        for part in PurePosixPath(module.path).parts:
            if part.removesuffix(".py").strip("_") in NAMES_THAT_SAY_NOTHING:
                yield module.at(module.tree, f"{part!r} says nothing about what is in it")


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
    computed_imports_stay_at_the_doors,
    names_say_something,
    public_classes_have_names_of_their_own,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert_kept(rule)


@pytest.mark.parametrize(
    ("rule", "path", "text", "complaint"),
    [
        (imports_go_down, "model/layers.py", "import nmt_cli.training.loss", "imports nmt_cli.training.loss"),
        (imports_go_down, "recipe/loading.py", "def f():\n    from nmt_cli.model import layers", ":2 recipe (floor 1)"),
        (imports_go_down, "scoring/bleu.py", "if TYPE_CHECKING:\n    from nmt_cli.training import loss", "imports"),
        (imports_go_down, "model/layers.py", "from ..cli import app", "imports nmt_cli.cli.app"),
        (imports_go_down, "model/layers.py", "from nmt_cli import Translator", "only for its __version__"),
        (imports_go_down, "extras/new.py", "", "room 'extras' is not in the table"),
        (imports_go_down, "cli/app.py", "import nmt_cli.extras.new", "not in the table"),
        (imports_name_modules, "cli/app.py", "from nmt_cli.decoding import Translator", "import the module"),
        (computed_imports_stay_at_the_doors, "model/layers.py", "importlib.import_module('x')", "computed name"),
        (names_say_something, "model/utils.py", "", "'utils.py' says nothing"),
        (public_classes_have_names_of_their_own, "a.py", "class A: pass\nclass A: pass", "A is also a class of a.py"),
    ],
)
def test_a_broken_rule_is_seen(rule: Rule, path: str, text: str, complaint: str) -> None:
    (violation,) = rule([parse("decoding/__init__.py", ""), parse(path, text)])
    assert violation.startswith(path)
    assert complaint in violation


@pytest.mark.parametrize("indented", ["", "if TYPE_CHECKING:\n    ", "def f():\n    "])
def test_a_circle_of_files_is_seen(indented: str) -> None:
    files = [
        parse("model/layers.py", "from nmt_cli.model.dropout import Dropout"),
        parse("model/dropout.py", "from nmt_cli.model import packing"),
        parse("model/packing.py", f"{indented}from nmt_cli.model.layers import Layer"),
    ]
    (violation,) = files_form_no_circle(files)
    for one, other in (("layers", "dropout"), ("dropout", "packing"), ("packing", "layers")):
        assert f"model.{one} imports model.{other}" in violation or violation.endswith(f"model.{one}")
    assert list(files_form_no_circle(files[:2])) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("training/validation.py", "from nmt_cli.decoding import search\nfrom nmt_cli.scoring import metrics"),
        ("artifacts/model_directory.py", "from nmt_cli.model import layers\nfrom nmt_cli import __version__, files"),
        ("model/layers.py", "from nmt_cli.model import attention\nfrom nmt_cli.errors import NmtError"),
        ("cli/app.py", "import nmt_cli\nnmt_cli.__version__\nimport_module('nmt_cli.cli.train')"),
    ],
)
def test_what_the_rules_allow_passes(path: str, text: str) -> None:
    assert [violation for rule in RULES for violation in rule([parse(path, text)])] == []


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
