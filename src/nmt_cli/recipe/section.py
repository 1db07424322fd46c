"""Sections of documents in YAML: their base class, ranges of numbers, errors of validators, and the keys in them.

A key has a path, such as ("training", "optimizer", "beta1").
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
KeyPath = tuple[str | int, ...]


def as_name(text: str, *, default: str) -> str:
    """A `Name` like the text; the default if nothing of it can stand in a name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-") or default


_UNIONS = (Union, types.UnionType, Annotated)
_CONTAINERS = (*_UNIONS, list, tuple, dict)


class Section(BaseModel):
    """A part of a recipe, or of a record in a file: frozen, with unknown keys refused and no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class SettingError(ValueError):
    """The error of a validator: the problem, the fix, and the settings at fault by their whole keys.

    `settings` is empty if the value that is validated is at fault as a whole.
    """

    def __init__(self, problem: str, fix: str, *, settings: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.fix = fix
        self.settings = settings


def dotted_key(path: KeyPath) -> str:
    """A path as users write it: `training.optimizer.beta2`."""
    return ".".join(map(str, path))


def flatten(values: dict[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The leaves of nested mappings by their paths, in order."""
    leaves: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            leaves.update(flatten(value, (*above, key)))
        else:
            leaves[(*above, key)] = value
    return leaves


def key_paths(schema: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all keys of a schema, each once; keys inside lists and mappings have no path."""
    for key, field in schema.model_fields.items():
        yield (*above, key)
        sections = _sections_in(field.annotation, inside=_UNIONS)
        yield from dict.fromkeys(path for section in sections for path in key_paths(section, (*above, key)))


def keys_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[str]:
    """The keys that a schema allows in the section at `path` of the document `values`, in the order of the schema."""
    keys = [key for section in sections_at(schema, path, values=values) for key in section.model_fields]
    return list(dict.fromkeys(keys))


def sections_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[type[BaseModel]]:
    """The schema's sections that may stand at `path`; in a union, the ones whose `Literal` keys agree with `values`."""
    sections: list[type[BaseModel]] = [schema]
    for part in path:
        values = _value_at(values, part)
        # A list or a mapping has no field for an index or for a key of the user: its sections stay.
        if fields := [field for section in sections if (field := section.model_fields.get(str(part)))]:
            sections = [section for field in fields for section in _sections_in(field.annotation, inside=_CONTAINERS)]
        sections = [section for section in sections if _literals_agree(section, values)] or sections
    return sections


def _value_at(values: Any, part: str | int) -> Any:
    """The value under a key of a mapping, or at an index of a list; None if there is none."""
    if isinstance(values, Mapping):
        return values.get(part)
    return values[part] if isinstance(values, list) and isinstance(part, int) and part < len(values) else None


def _literals_agree(section: type[BaseModel], values: Any) -> bool:
    if not isinstance(values, Mapping):
        return False
    given = {key: field.annotation for key, field in section.model_fields.items() if key in values}
    return all(values[key] in get_args(kind) for key, kind in given.items() if get_origin(kind) is Literal)


def _sections_in(annotation: Any, *, inside: tuple[Any, ...]) -> Iterator[type[BaseModel]]:
    """The sections in the type of a field: the type itself, or its parts if it is one of the types `inside`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in inside:
        for part in get_args(annotation):
            yield from _sections_in(part, inside=inside)
