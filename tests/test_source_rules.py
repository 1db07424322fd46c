"""Rules of the source that no linter knows: errors, output, sizes, dead settings, unpickling."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import pytest

from tests.source_modules import Module, Rule, assert_kept, called, dotted_name

EDGES = {
    "serving/app.py",
    "serving/worker_pool.py",
    "processes.py",
    "training/loader.py",
    "training/checkpointer.py",
}
UNPICKLING = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# The modules whose classes describe what users write in YAML.
SCHEMAS = {"recipe/schema.py", "recipe/training.py", "preparing/corpus.py"}


def only_edges_catch_user_errors(modules: Sequence[Module]) -> Iterator[str]:
    """NmtError passes through to `cli/`, to the server, or out of a process or thread into the one that started it.

    Elsewhere a handler may recover from one family, as from a damaged file, or end by raising an error itself.
    """
    for module in modules:
        if module.room == "cli" or module.path in EDGES:
            continue
        for node in ast.walk(module.tree):
            for name in sorted(_caught(node) & {"NmtError", "Exception", "BaseException"}):
                yield module.at(node, f"keeps {name} to itself; only cli/ and {', '.join(sorted(EDGES))} do")


def only_the_command_line_prints_and_exits(modules: Sequence[Module]) -> Iterator[str]:
    """Below `cli/`, results are returned, events are logged, and errors are raised."""
    for module in modules:
        if module.room == "cli":
            continue
        for node in ast.walk(module.tree):
            if called(node) in {"print", "sys.exit", "exit", "quit"}:
                yield module.at(node, f"calls {called(node)}; that is for cli/")
            elif isinstance(node, ast.Raise) and node.exc and "SystemExit" in ast.unparse(node.exc):
                yield module.at(node, "raises SystemExit; that is for cli/")


def every_setting_is_read(modules: Sequence[Module]) -> Iterator[str]:
    """Each field of a schema is read as an attribute, or matched by a `case`; validators do not count."""
    read: set[str] = set()
    for module in modules:
        for node in _outside_validators(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
            elif isinstance(node, ast.MatchClass):
                read.update(node.kwd_attrs)
    for module in modules:
        if module.path in SCHEMAS:
            for section in module.tree.body:
                for field in section.body if isinstance(section, ast.ClassDef) else []:
                    if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) not in read:
                        yield module.at(field, f"nothing reads {ast.unparse(field.target)}")


def nothing_is_unpickled(modules: Sequence[Module]) -> Iterator[str]:
    """Files are data: nothing that reads one can run code from it."""
    for module in modules:
        for node in ast.walk(module.tree):
            for name in _imported(node):
                if name.split(".")[0] in UNPICKLING:
                    yield module.at(node, f"imports {name}, which runs code from files")
                elif name == "torch.load":
                    yield module.at(node, "imports torch.load by its bare name, out of this test's sight")
            if called(node) == "torch.load" and _keyword(node, "weights_only") != "True":
                yield module.at(node, "torch.load without weights_only=True")
            if _keyword(node, "allow_pickle") not in {"", "False"}:
                yield module.at(node, "allow_pickle other than False")


RULES = [
    only_edges_catch_user_errors,
    only_the_command_line_prints_and_exits,
    every_setting_is_read,
    nothing_is_unpickled,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert_kept(rule)


def _outside_validators(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, but for functions that pydantic calls to check a section."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    if not any("_validator" in ast.unparse(decorator) for decorator in decorators):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _outside_validators(child)


def _caught(node: ast.AST) -> set[str]:
    """The bare names of the exceptions that an `except` without a final `raise`, or a `suppress`, keeps to itself."""
    caught: Sequence[ast.expr] = []
    if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[-1], ast.Raise):
        caught = [node.type or ast.Name("BaseException")]
    elif isinstance(node, ast.Call) and called(node).rpartition(".")[2] == "suppress":
        caught = node.args
    return {dotted_name(part).rpartition(".")[2] for expression in caught for part in ast.walk(expression)}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def _keyword(node: ast.AST, name: str) -> str:
    """The source text of a call's keyword argument; empty where there is none."""
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return next((ast.unparse(keyword.value) for keyword in keywords if keyword.arg == name), "")
