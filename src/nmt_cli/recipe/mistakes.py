"""Settings that a schema refuses: what is wrong, and what to write instead.

`validate` puts an error together from three parts. `error_to_show` chooses one error of pydantic, `describe` gives the
message, and `suggestion` the hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from nmt_cli.errors import RecipeError, nearest_word
from nmt_cli.recipe.foreign_names import answer_to_key
from nmt_cli.recipe.section import KeyPath, SettingError, dotted_key, key_paths, keys_at, sections_at
from nmt_cli.recipe.yaml_files import Document

Model = TypeVar("Model", bound=BaseModel)

_SET = "--set "  # the beginning of the origin of a value that a flag gives
_BOUND_WORDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
_SHOULD_BE = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a section of keys and values",
    "model_attributes_type": "a section of keys and values",
    "list_type": "a list",
}


def validate(document: Document, schema: type[Model], *, source: str, fix: str) -> Model:
    """The document as a `schema`.

    Raises RecipeError with file and line, the value found, the values allowed, and a near match. `fix` is the hint
    if nothing better can be suggested.
    """
    try:
        return schema.model_validate(document.values)
    except ValidationError as validation_error:
        error = error_to_show(validation_error)
        path = _document_path(error, document.values)
        where = _origin_of_error(error, path, document, source=source) or source
        hint = suggestion(error, path, schema, document.values) or fix
        raise RecipeError(describe(error, path), where=where, hint=hint) from None


def error_to_show(validation_error: ValidationError) -> Any:
    """The error to show of several.

    An unknown key goes first, because a misspelt key is also a missing key. If a key takes a number or certain words,
    and the value is text, the error about the words goes first.
    """
    errors = validation_error.errors()
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    wrong_words = [
        error for error in errors if error["type"] == "literal_error" and error["loc"][:-1] == errors[0]["loc"][:-1]
    ]
    if unknown:
        return unknown[0]
    if wrong_words and isinstance(errors[0]["input"], str):
        return wrong_words[0]
    return errors[0]


def first_mistake(validation_error: ValidationError) -> str:
    """The key of the first error, and the reason in pydantic's words."""
    first = validation_error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _document_path(error: Any, values: Any) -> KeyPath:
    """The path in the document of a pydantic error, without the names of union members that pydantic adds.

    For example, ("optimizer", "adam", "beta1") becomes ("optimizer", "beta1").
    """
    path: list[str | int] = []
    for part in error["loc"]:
        is_key = isinstance(values, Mapping) and part in values
        is_index = isinstance(values, list) and isinstance(part, int) and part < len(values)
        if is_key or is_index:
            values = values[part]
            path.append(part)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else tuple(path)


def describe(error: Any, path: KeyPath) -> str:
    """One line: the key, its value, and what is allowed there."""
    name = dotted_key(path)
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {name!r}"
        case "missing":
            return f"the key {name!r} is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "too_short":
            return f"{name} is empty"
        case "union_tag_invalid":
            return f"{name}: there is no {error['ctx']['tag']!r}; allowed: {error['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return f"{name} does not say which one: {error['ctx']['discriminator']} is missing"
        case "string_pattern_mismatch":
            return f"{name} is {as_written(error['input'])}, but should match {error['ctx']['pattern']}"
        case kind:
            allowed = _SHOULD_BE.get(kind, error["msg"].removeprefix("Input should be "))
            return f"{name} is {as_written(error['input'])}, but should be {allowed}"


def as_written(value: Any) -> str:
    """A value as YAML would have it, for a message; text stands in quotes."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Mapping():
            return "a section"
        case list():
            return "a list"
        case _:
            return repr(value)


def suggestion(error: Any, path: KeyPath, schema: type[BaseModel], values: Any) -> str | None:
    """The text to write instead, such as the nearest allowed word or the range of numbers; None if unknown."""
    match error["type"]:
        case "extra_forbidden":
            return _another_key(path, schema, keys_at(schema, path[:-1], values=values))
        case "missing":
            return f"add {path[-1]}: VALUE"
        case "value_error":  # of a validator
            fix: str = error["ctx"]["error"].fix
            return fix
        case "literal_error" | "union_tag_invalid":
            context = error["ctx"]
            words = re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", "")))
            if near := nearest_word(str(context.get("tag", error.get("input"))), words):
                return f"did you mean {near}?"
            return _allowed_range(path, schema, values) or f"write {' or '.join(words)}"
        case "union_tag_not_found" | "model_type" | "model_attributes_type":
            return f"allowed in it: {', '.join(keys_at(schema, path, values=values))}"
        case _:
            return _allowed_range(path, schema, values)


def _another_key(path: KeyPath, schema: type[BaseModel], allowed: list[str]) -> str:
    """The key to write instead of an unknown one: the same key elsewhere, another toolkit's name, the nearest key."""
    *section, key = path
    if path in key_paths(schema):  # of a section that has another name, such as adamw
        sections = [other for other in sections_at(schema, path[:-1], values={}) if key in other.model_fields]
        names = [name for other in sections for name in get_args(other.model_fields["name"].annotation)]
        return f"it belongs to {dotted_key(path[:-1])}.name: {' or '.join(names)}"
    if elsewhere := [other for other in key_paths(schema) if other[-1] == key and other != path]:
        return f"did you mean {' or '.join(map(dotted_key, elsewhere))}?"
    if answer := answer_to_key(str(key)):
        return answer
    if near := nearest_word(str(key), allowed):
        return f"did you mean {dotted_key((*section, near))}?"
    return f"allowed here: {', '.join(allowed)}"


def _allowed_range(path: KeyPath, schema: type[BaseModel], values: Any) -> str | None:
    """The numbers and words that are allowed, as a hint; None if no number is."""
    for section in sections_at(schema, path[:-1], values=values):
        field = section.model_json_schema()["properties"].get(path[-1], {})
        choices = field.get("anyOf", [field])
        number = next((choice for choice in choices if choice.get("type") in ("integer", "number")), None)
        if number is not None:
            kind = "a whole number" if number["type"] == "integer" else "a number"
            bounds = [f"{words} {number[bound]:g}" for bound, words in _BOUND_WORDS.items() if bound in number]
            words = [str(choice.get("const", choice["type"])) for choice in choices if choice is not number]
            others = ["text" if word == "string" else word for word in words]
            bounded = " ".join(filter(None, (kind, " and ".join(bounds))))
            return f"write {' or '.join([bounded, *others])}"
    return None


def _origin_of_error(error: Any, path: KeyPath, document: Document, *, source: str) -> str | None:
    """The file and line, or the flag, of the value at `path`; None if it is a default.

    If several settings are at fault, it is the origin of one of them: a --set, else a line of `source` or of a parent.
    """
    setting_error = error.get("ctx", {}).get("error")
    if not isinstance(setting_error, SettingError) or not setting_error.settings:
        return document.origin(path)
    paths: list[KeyPath] = [tuple(setting.split(".")) for setting in setting_error.settings]
    origins = [document.origins[at_fault] for at_fault in paths if at_fault in document.origins]
    origins.sort(key=lambda origin: (not origin.startswith(_SET), not origin.startswith(f"{source}:")))
    return origins[0] if origins else None
