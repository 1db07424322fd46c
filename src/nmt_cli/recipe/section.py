"""Sections of documents in YAML: their base class, ranges of numbers, errors of validators, and paths of keys."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

KeyPath = tuple[str | int, ...]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Section(BaseModel):
    """A part of a recipe: frozen, with unknown keys refused and no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Mistake(ValueError):
    """The error of a validator: the problem, the fix, and the settings at fault by their whole keys.

    The fix has settings as `key: value`, with a key of the section that is validated, or with a whole key. `settings`
    is empty if the value that is validated is at fault as a whole.
    """

    def __init__(self, problem: str, fix: str, *, settings: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.fix = fix
        self.settings = settings


def dotted(path: KeyPath) -> str:
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


def document_path(location: KeyPath, values: Any) -> KeyPath:
    """The path in the document for a pydantic location. Names of union members, which pydantic adds, are left out."""
    path: list[str | int] = []
    for position, part in enumerate(location):
        if isinstance(values, Mapping):
            if part in values:
                values = values[part]
            elif position + 1 < len(location):
                continue
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def key_paths(schema: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all keys of a schema, each once; keys inside lists have no path."""
    for key, field in schema.model_fields.items():
        yield (*above, key)
        sections = _sections_in(field.annotation) if get_origin(field.annotation) is not list else ()
        yield from dict.fromkeys(place for section in sections for place in key_paths(section, (*above, key)))


def fields_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[str]:
    """The keys that a schema allows in the section at `path` of the document `values`, in the order of the schema."""
    keys = [key for section in sections_at(schema, path, values=values) for key in section.model_fields]
    return list(dict.fromkeys(keys))


def sections_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[type[BaseModel]]:
    """The schema's sections that may stand at `path`; in a union, the ones whose `Literal` keys agree with `values`."""
    sections: list[type[BaseModel]] = [schema]
    for part in path:
        values = value_at(values, part)
        fields = [section.model_fields[str(part)] for section in sections if str(part) in section.model_fields]
        # An index, or a key that the user chose, keeps the sections of its list or mapping.
        if fields:
            sections = [section for field in fields for section in _sections_in(field.annotation)]
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
    given = {key: field.annotation for key, field in section.model_fields.items() if key in values}
    return all(values[key] in get_args(kind) for key, kind in given.items() if get_origin(kind) is Literal)


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in the type of a field, for example in a union or a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated, list, tuple, dict):
        for inner in get_args(annotation):
            yield from _sections_in(inner)
