"""Documents in YAML, with file and line of every value: reading, merging, writing.

They follow the core schema of YAML 1.2: `5e-4` is a number and `no` is a string. PyYAML follows YAML 1.1, in which
`5e-4` is a string and `no` is false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from nmt_cli.errors import RecipeError
from nmt_cli.recipe.section import KeyPath

_TAG_PREFIX = "tag:yaml.org,2002:"
# More than any file has. A few hundred bytes of aliases to lists of aliases, in a stranger's model, stand for billions.
_MAX_VALUES, _MAX_DEPTH = 100_000, 64
# Column of the notes. After a longer line, the note follows two spaces later.
_NOTE_COLUMN = 50


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a YAML mapping, and the origin of each path: `file:line`, or a flag."""

    values: dict[str, Any]
    origins: dict[KeyPath, str]

    def origin(self, path: KeyPath) -> str | None:
        """The origin of the value at `path`, or else of the nearest section around it."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path[:-1]
        return None


def read_document(file: Path) -> Document:
    """The mapping in a YAML file; RecipeError with file and line if it cannot be read."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{file.name} is not UTF-8", where=f"{file}:{line}", hint="save it as UTF-8") from None
    return parse_document(text, source=str(file))


def parse_document(text: str, *, source: str) -> Document:
    """The mapping in a YAML text; `source` names it in errors and origins."""
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except RecursionError:
        raise _too_large_error(source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # of a character that YAML forbids there is none
        reason = str(error).splitlines()[0] if mark is None else getattr(error, "problem", "")
        hint = "check indentation (spaces, no tabs), quotes and brackets"
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise RecipeError(f"this is not YAML: {reason}", where=where, hint=hint) from None
    constructor = _Constructor(lambda node: f"{source}:{node.start_mark.line + 1}")
    values = {} if node is None else constructor.value(node)
    if not isinstance(values, dict):
        raise RecipeError("a mapping of keys to values is expected", where=source, hint="write key: value lines")
    return Document(values, constructor.origins)


def parse_setting(text: str, *, path: KeyPath, source: str) -> Document:
    """The document with one YAML value at `path`, as in `--set key=value`; `source` names it in errors and origins."""
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.YAMLError:
        raise RecipeError(f"cannot read the value {text!r}", where=source, hint="quote it as in a YAML file") from None
    sections = {path[:length]: source for length in range(1, len(path) + 1)}
    constructor = _Constructor(lambda _: source, sections)
    value: Any = None if node is None else constructor.value(node, path)
    for part in reversed(path):
        value = {part: value}
    return Document(value, constructor.origins)


def dump_values(values: Mapping[str, Any]) -> str:
    """The values as YAML text that reads back equal here and by the rules of YAML 1.1."""
    return yaml.dump(dict(values), Dumper=_CarefulDumper, sort_keys=False, allow_unicode=True, width=120)


def dump_annotated(values: Mapping[str, Any], notes: Mapping[KeyPath, str]) -> str:
    """Like `dump_values`, with the note on a value as a comment after it; keys are plain words of a schema."""
    lines = [(text, notes.get(path, "")) for path, text in _lines_with_paths(values, ())]
    width = min(_NOTE_COLUMN, max((len(text) for text, note in lines if note), default=0))
    return "".join(f"{text:<{width}}  # {_on_one_line(note)}\n" if note else f"{text}\n" for text, note in lines)


def merge(parent: Document, child: Document) -> Document:
    """`child` laid over `parent`. Mappings merge; every other value is replaced.

    A section with another `name` is replaced too, because it is another variant.
    """
    values = dict(parent.values)
    # The empty path is the section itself: its origin is the child's.
    origins = parent.origins | {path: origin for path, origin in child.origins.items() if path == ()}
    for key, value in child.values.items():
        section = _section_under(child, key)
        if _is_same_variant(values.get(key), value):
            section = merge(_section_under(parent, key), section)
            value = section.values
        values[key] = value
        origins = {path: origin for path, origin in origins.items() if path[:1] != (key,)}
        origins |= {(key, *path): origin for path, origin in section.origins.items()}
    return Document(values, origins)


def _is_same_variant(old: Any, new: Any) -> bool:
    """True if both values are sections, and the new section has no other name."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return False
    return "name" not in new or old.get("name") in (None, new["name"])


def _lines_with_paths(values: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """The lines of nested mappings as YAML, each with the path of what it says."""
    for key, value in values.items():
        inner, indent = (*path, key), "  " * len(path)
        if isinstance(value, Mapping) and value:
            yield inner, f"{indent}{key}:"
            yield from _lines_with_paths(value, inner)
        else:
            text = yaml.dump({key: value}, Dumper=_LineDumper, sort_keys=False, allow_unicode=True, width=math.inf)
            for line in text.splitlines():
                yield inner, f"{indent}{line}"


def _on_one_line(note: str) -> str:
    """A note without characters that end a comment or are not allowed in YAML."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(note.split()))


def _section_under(document: Document, key: str) -> Document:
    """The part of a document under `key`; the origin of the key itself is at the empty path."""
    origins = {path[1:]: origin for path, origin in document.origins.items() if path[:1] == (key,)}
    value = document.values[key]
    return Document(value if isinstance(value, dict) else {}, origins)


@dataclass(frozen=True, slots=True)
class _Constructor:
    """Makes the values of YAML nodes, and notes their `origins`; `locate` says where a node was written."""

    locate: Callable[[yaml.Node], str]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)

    def value(self, node: yaml.Node, path: KeyPath = ()) -> Any:
        """The value of a node."""
        where = self.locate(node)
        self.origins.setdefault(path, where)
        if next(self.counter) >= _MAX_VALUES or len(path) > _MAX_DEPTH:
            raise _too_large_error(where)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, where)
        if node.tag not in (f"{_TAG_PREFIX}map", f"{_TAG_PREFIX}seq"):
            raise RecipeError(f"the YAML tag {node.tag!r} is not supported", where=where, hint="remove the tag")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = self.locate(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeError("a key must be plain text", where=line, hint="write key: value lines")
            key = key_node.value
            if key in values:
                raise RecipeError(f"the key {key!r} is given twice", where=line, hint="remove one of them")
            self.origins[(*path, key)] = line
            values[key] = self.value(value_node, (*path, key))
        return values


def _too_large_error(where: str) -> RecipeError:
    message = f"there are more than {_MAX_VALUES:,} values, all aliases written out, or {_MAX_DEPTH} levels"
    return RecipeError(message, where=where, hint="use fewer aliases (*name)")


def _scalar(node: yaml.ScalarNode, where: str) -> Any:
    text = node.value
    match kind := node.tag.removeprefix(_TAG_PREFIX):
        case "str":
            return text
        case "null" | "bool" | "int" | "float" if not _SCALAR_PATTERNS[kind].match(text):
            raise RecipeError(f"{text!r} does not fit its tag !!{kind}", where=where, hint="remove the tag")
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        case "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case _:
            raise RecipeError(f"the YAML tag {node.tag!r} is not supported", where=where, hint="remove the tag")


class _CoreLoader(yaml.SafeLoader):
    """A loader whose plain scalars follow the core schema of YAML 1.2 (section 10.3.2)."""

    # PyYAML keeps the rules in this attribute of the class: an empty one drops those of YAML 1.1.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class _CarefulDumper(yaml.SafeDumper):
    """A dumper that quotes text which either version of YAML would read as something else."""

    # Characters that need double quotes: YAML 1.1 knows more line breaks than 1.2.
    escaped = re.compile("[\r\x85\u2028\u2029]")

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """A scalar, in double quotes if it has a character that is written as an escape."""
        return self.represent_scalar(f"{_TAG_PREFIX}str", text, style='"' if self.escaped.search(text) else None)


class _LineDumper(_CarefulDumper):
    """A dumper that keeps every text on one line."""

    escaped = re.compile("[\n\r\x85\u2028\u2029]")


_SCALAR_PATTERNS = {
    "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"),
    "float": re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
_CarefulDumper.add_representer(str, _CarefulDumper.represent_text)
for _kind, _pattern in _SCALAR_PATTERNS.items():
    for _class in (_CoreLoader, _CarefulDumper):
        _class.add_implicit_resolver(f"{_TAG_PREFIX}{_kind}", _pattern, None)
