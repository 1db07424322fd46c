"""Paths of keys in documents and schemas, such as ("training", "optimizer", "beta1"), and what stands at them."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

KeyPath = tuple[str | int, ...]


def dotted_key(path: KeyPath) -> str:
    """A path as users write it: `training.optimizer.beta2`."""
    return ".".join(map(str, path))


def flatten(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The leaves of nested mappings by their paths, in order."""
    leaves: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            leaves.update(flatten(value, (*prefix, key)))
        else:
            leaves[(*prefix, key)] = value
    return leaves


def document_path(error: Any, values: Any) -> KeyPath:
    """The path in the document of a pydantic error, without the names of union members that pydantic adds.

    For example, ("optimizer", "adam", "beta1") becomes ("optimizer", "beta1").
    """
    path: list[str | int] = []
    for position, part in enumerate(error["loc"]):
        if isinstance(values, Mapping):
            if part in values:
                values = values[part]
            elif error["type"] != "missing" or position + 1 < len(error["loc"]):
                continue
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def key_paths(schema: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all keys of a schema, each once; keys inside lists and mappings have no path."""
    for key, field in _fields_by_key(schema).items():
        yield (*above, key)
        sections = _sections_in(field.annotation, through_lists=False)
        yield from dict.fromkeys(path for section in sections for path in key_paths(section, (*above, key)))


def fields_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[str]:
    """The keys that a schema allows in the section at `path` of the document `values`, in the order of the schema."""
    keys = [key for section in sections_at(schema, path, values=values) for key in _fields_by_key(section)]
    return list(dict.fromkeys(keys))


def sections_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[type[BaseModel]]:
    """The schema's sections that may stand at `path`; in a union, the ones whose `Literal` keys agree with `values`."""
    sections: list[type[BaseModel]] = [schema]
    for part in path:
        values = value_at(values, part)
        fields = [field for section in sections if (field := _fields_by_key(section).get(str(part)))]
        # An index, or a key that the user chose, keeps the sections of its list or mapping.
        if fields:
            sections = [section for field in fields for section in _sections_in(field.annotation, through_lists=True)]
        sections = [section for section in sections if _literals_agree(section, values)] or sections
    return sections


def value_at(values: Any, part: str | int) -> Any:
    """The value under a key of a mapping, or at an index of a list; None if there is none."""
    if isinstance(values, Mapping):
        return values.get(part)
    if isinstance(values, list) and isinstance(part, int) and part < len(values):
        return values[part]
    return None


def _literals_agree(section: type[BaseModel], values: Any) -> bool:
    if not isinstance(values, Mapping):
        return False
    given = {key: field.annotation for key, field in _fields_by_key(section).items() if key in values}
    return all(values[key] in get_args(kind) for key, kind in given.items() if get_origin(kind) is Literal)


def _fields_by_key(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a section by their keys in a document."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _sections_in(annotation: Any, *, through_lists: bool) -> Iterator[type[BaseModel]]:
    """The sections in the type of a field, for example in a union or, `through_lists`, in a list or a mapping."""
    containers = (Union, types.UnionType, Annotated, *((list, tuple, dict) if through_lists else ()))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in containers:
        for inner in get_args(annotation):
            yield from _sections_in(inner, through_lists=through_lists)
