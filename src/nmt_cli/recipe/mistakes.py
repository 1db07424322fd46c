"""The mistake in a value of a YAML file, in words that say what to write instead."""

from __future__ import annotations

import re
import shlex
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from nmt_cli.errors import nearest_word
from nmt_cli.recipe.counterparts import NEXT_LINE, Answer, counterpart_of

KeyPath = tuple[str | int, ...]

_PLACEHOLDER = "VALUE"
_MIN_ABBREVIATION_LETTERS = 4  # of an abbreviation, so that it says which word

_BOUND_WORDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
_SIDE_ABBREVIATIONS = {"src": "source", "tgt": "target", "trg": "target"}
_YAML_WORDS = {"null": None, "true": True, "false": False}

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
    "dict_type": "a section of keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
}


def mistake_to_show(problem: ValidationError) -> Any:
    """The error to show: an unknown key if there is one, because a misspelt key is also a missing one.

    If a key takes a number or certain words and the value is text, the error about the words is shown.
    """
    errors = problem.errors()
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    wrong_words = [
        error for error in errors if error["type"] == "literal_error" and error["loc"][:-1] == errors[0]["loc"][:-1]
    ]
    if unknown:
        return unknown[0]
    if wrong_words and isinstance(errors[0]["input"], str):
        return wrong_words[0]
    return errors[0]


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


def describe(error: Any, path: KeyPath) -> str:
    """One line: the key, its value, and what is allowed there."""
    name = dotted(path)
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {name!r}"
        case "missing":
            return f"the key {name!r} is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "union_tag_invalid":
            return f"{name}: there is no {error['ctx']['tag']!r}; allowed: {error['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return f"{name} does not say which one: {error['ctx']['discriminator']} is missing"
        case "string_pattern_mismatch":
            return f"{name} is {as_written(error['input'])}, but should match {error['ctx']['pattern']}"
        case kind:
            allowed = _SHOULD_BE.get(kind, error["msg"].removeprefix("Input should be "))
            return f"{name} is {as_written(error['input'])}, but should be {allowed}"


def suggest(error: Any, path: KeyPath, *, schema: type[BaseModel], values: Any, as_flags: bool) -> str | None:
    """The text to write instead, such as the nearest allowed word, or the value in its right form; None if unknown.

    `as_flags` answers a --set with another.
    """
    match error["type"]:
        case "extra_forbidden":
            return _suggest_other_key(path, error["input"], schema=schema, values=values, as_flags=as_flags)
        case "literal_error" | "union_tag_invalid":
            return _suggest_choice(error, str(path[-1]))
        case "union_tag_not_found":
            key = error["ctx"]["discriminator"].strip("'")
            sections = sections_at(schema, path, values=values)
            choices = [choice for section in sections for choice in get_args(section.model_fields[key].annotation)]
            return "write " + " or ".join(f"{key}: {choice}" for choice in choices) + " in it"
        case "value_error":
            fix = str(error["ctx"]["error"].fix)
            return _pairs_as_flags(fix, path, schema=schema) if as_flags else fix
        case "missing":
            return _suggest_missing_key(path, schema=schema, values=values, as_flags=as_flags)
        case "string_type" if isinstance(error["input"], int | float) and not isinstance(error["input"], bool):
            return f'write "{error["input"]}", in quotes'
        case "string_pattern_mismatch":
            return "write letters, digits and . _ - only"
        case "int_type" | "float_type":
            number = _as_number(error["input"], whole=error["type"] == "int_type")
            return None if number is None else f"write {number}"
        case "bool_type":
            return "write true or false, without quotes"
        case "model_type" | "model_attributes_type":
            variant = _suggest_variant(error["input"], path, schema=schema, values=values, as_flags=as_flags)
            return variant or f"allowed in it: {', '.join(fields_at(schema, path, values=values))}"
        case _:
            return None


def _suggest_other_key(path: KeyPath, value: Any, *, schema: type[BaseModel], values: Any, as_flags: bool) -> str:
    """The key to write for an unknown one: a key of ours, or our counterpart of another toolkit's."""
    warmup: Any = values
    for part in ("training", "schedule", "warmup_updates"):
        warmup = _value_under(warmup, part)
    answer = answer_in(schema, str(path[-1]), value, warmup_updates=warmup if isinstance(warmup, int) else None)
    allowed = fields_at(schema, path[:-1], values=values)
    return suggest_key(path, allowed, schema=schema, answer=answer, as_flags=as_flags)


def _suggest_choice(error: Any, key: str) -> str | None:
    """The nearest of the words that a key allows, or all of them."""
    allowed = re.findall(r"'([^']*)'", error["ctx"].get("expected", error["ctx"].get("expected_tags", "")))
    got = re.sub(rf"[-_]?{key}$", "", str(error["ctx"].get("tag", error["input"])))  # pre_norm for pre
    if near := _nearest_choice(got, allowed):
        return f"did you mean {near}?"
    return f"write {' or '.join(allowed)}" if allowed else None


def answer_in(schema: type[BaseModel], key: str, value: Any, *, warmup_updates: int | None) -> Answer | None:
    """The answer to the key of another toolkit, or None; without its value if the schema refuses the value."""
    counterpart = counterpart_of(key, getattr(schema, "other_toolkits", ()))
    if counterpart is None:
        return None
    answer = counterpart.answer(value, warmup_updates=warmup_updates)
    refused = next(filter(None, (refusal(setting, schema) for setting in answer.settings)), None)
    if refused is None:
        return answer
    return replace(counterpart.answer(None, warmup_updates=warmup_updates), note=refused)


def refusal(setting: str, schema: type[BaseModel]) -> str | None:
    """The mistake in `key=value` by itself, whatever the other settings are; None if it is right, or N is its value."""
    name, _, text = setting.partition("=")
    *above, key = name.split(".")
    refused: list[str] = []
    for section in sections_at(schema, tuple(above), values={}):
        if key in section.model_fields:
            try:
                section.model_validate({key: _as_value(text)})
            except ValidationError as problem:
                errors = [error for error in problem.errors() if error["loc"][0] == key]
            else:
                errors = []
            if not errors:
                return None
            inner = document_path(errors[0]["loc"], {key: _as_value(text)})
            refused.append(describe(errors[0], (*above, *inner)))
    if not refused or re.search(r"\b(?:N|RATE)\b", text):
        return None
    beginning, should_be, _ = refused[0].partition("should be ")
    return beginning + should_be + " or ".join(dict.fromkeys(words.partition("should be ")[2] for words in refused))


def range_of(path: KeyPath, *, schema: type[BaseModel], values: Any) -> str | None:
    """The numbers and words that may stand at `path`, as a hint; None if no number may."""
    for section in sections_at(schema, path[:-1], values=values):
        field = section.model_json_schema()["properties"].get(path[-1], {})
        choices = field.get("anyOf", [field])
        number = next((choice for choice in choices if choice.get("type") in ("integer", "number")), None)
        if number is not None:
            kind = "a whole number" if number["type"] == "integer" else "a number"
            bounds = [f"{words} {number[bound]:g}" for bound, words in _BOUND_WORDS.items() if bound in number]
            others = [str(choice.get("const", choice["type"])) for choice in choices if choice is not number]
            return f"write {' or '.join([' '.join([kind, ' and '.join(bounds)]).rstrip(), *others])}"
    return None


def fields_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[str]:
    """The keys that a schema allows in the section at `path` of the document `values`, in the order of the schema."""
    return list(
        dict.fromkeys(key for section in sections_at(schema, path, values=values) for key in section.model_fields)
    )


def sections_at(schema: type[BaseModel], path: KeyPath, *, values: Any) -> list[type[BaseModel]]:
    """The schema's sections that may stand at `path`; in a union, those whose `Literal` keys agree with the values."""
    sections: list[type[BaseModel]] = [schema]
    for part in path:
        values = _value_under(values, part)
        fields = [section.model_fields[str(part)] for section in sections if str(part) in section.model_fields]
        # An index, or a key that the user chose, keeps the sections of its list or mapping.
        if fields:
            sections = [section for field in fields for section in _models_in(field.annotation)]
        sections = [section for section in sections if _literals_agree(section, values)] or sections
    return sections


def dotted(path: KeyPath) -> str:
    """A path as users write it: `training.optimizer.beta2`."""
    return ".".join(map(str, path))


def suggest_key(
    path: KeyPath, allowed: Sequence[str], *, schema: type[BaseModel], answer: Answer | None, as_flags: bool
) -> str:
    """The place of the key elsewhere in the schema, else the `answer`, the nearest key here, or all keys here."""
    elsewhere = [place for place in key_paths(schema) if place[-1] == path[-1] and place != path]
    side = _SIDE_ABBREVIATIONS.get(str(path[-1]))
    if side is not None and side in allowed:
        return f"did you mean {dotted((*path[:-1], side))}?"
    if answer is not None and (not elsewhere or (answer.settings and not elsewhere[1:])):
        return answer.as_flags() if as_flags else answer.as_yaml(dotted(path[:-1]))
    near = nearest_word(str(path[-1]), allowed)
    if found := elsewhere or ([(*path[:-1], near)] if near else []):
        return "did you mean " + " or ".join(map(dotted, found)) + "?"
    return f"allowed here: {', '.join(allowed)}"


def key_paths(schema: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all keys of a schema, each once; keys inside lists have no path."""
    for key, field in schema.model_fields.items():
        yield (*above, key)
        sections = _models_in(field.annotation) if get_origin(field.annotation) is not list else ()
        yield from dict.fromkeys(place for section in sections for place in key_paths(section, (*above, key)))


def _suggest_variant(value: Any, path: KeyPath, *, schema: type[BaseModel], values: Any, as_flags: bool) -> str | None:
    """How to write a variant if its name, or nearly its name, stands where its section is to stand."""
    variants = {
        name: section
        for section in sections_at(schema, path, values=values)
        if "name" in section.model_fields
        for name in get_args(section.model_fields["name"].annotation)
    }
    if not variants:
        return None
    name = _nearest_choice(value, list(variants)) if isinstance(value, str) else None
    form, *others = [_variant_form(section, name=known) for known, section in variants.items() if name in (known, None)]
    key, examples = dotted(path), _required_keys(variants[name]).values() if name else ()
    fix = f"--set {key}='{form}'" if as_flags else f"write {path[-1]}: {form}"
    if name and not examples and not as_flags:
        fix += f", or --set {key}.name={name}"
    notes = [f"or {', '.join(others)}"] * bool(others) + [f"{given} is an example" for given in examples]
    return NEXT_LINE.join([fix, *notes])


def _variant_form(section: type[BaseModel], *, name: str) -> str:
    return "{" + ", ".join(f"{key}: {given}" for key, given in {"name": name, **_required_keys(section)}.items()) + "}"


def _required_keys(section: type[BaseModel]) -> dict[str, str]:
    """The keys of a section that have no default, with examples."""
    return {key: _example(field) for key, field in section.model_fields.items() if field.is_required()}


def _suggest_missing_key(path: KeyPath, *, schema: type[BaseModel], values: Any, as_flags: bool) -> str:
    """The line or the flag that adds a missing key, with the schema's example of its value if there is one."""
    fields = [section.model_fields.get(str(path[-1])) for section in sections_at(schema, path[:-1], values=values)]
    example = next((_example(field) for field in fields if field is not None), _PLACEHOLDER)
    note = "" if example == _PLACEHOLDER else f"{NEXT_LINE}{example} is an example"
    return f"add --set {dotted(path)}={example}{note}" if as_flags else f"add {path[-1]}: {example}{note}"


def _example(field: FieldInfo) -> str:
    return str(field.examples[0]) if field.examples else _PLACEHOLDER


def _pairs_as_flags(hint: str, path: KeyPath, *, schema: type[BaseModel]) -> str:
    """A validator's suggestion with each `key: value` of the section at `path`, or around it, as a --set."""
    places = set(key_paths(schema))

    def as_flag(found: re.Match[str]) -> str:
        key = found[1].split(".")
        for place in ((*path, *key), (*path[:-1], *key)):
            if place in places:
                return f"--set {dotted(place)}={shlex.quote(found[2])}"
        return found[0]

    return re.sub(r"(?:write )?\b([\w.]+): (\{[^}]*\}|[^\s,;{}]+)", as_flag, hint)


def _nearest_choice(word: str, allowed: Sequence[str]) -> str | None:
    """The allowed word nearest to `word`, or the only one that `word` abbreviates, as invsqrt does inverse_sqrt."""
    near = nearest_word(word, allowed)
    letters = re.sub("[^a-z0-9]", "", word.lower())
    if near or len(letters) < _MIN_ABBREVIATION_LETTERS:
        return near
    abbreviated = [choice for choice in allowed if re.match(".*".join(letters), choice)]
    return abbreviated[0] if len(abbreviated) == 1 else None


def _as_value(text: str) -> Any:
    """The value of a setting in an answer: a number, a word, or a section of both."""
    if text.startswith("{"):
        parts = (part.partition(": ") for part in text.strip("{}").split(", "))
        return {key: _as_value(value) for key, _, value in parts}
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _as_number(value: Any, *, whole: bool) -> int | float | None:
    """The number meant by a text: 1_000, or 1e5 if a whole number is asked for."""
    if isinstance(value, bool) or not isinstance(value, str | float):
        return None
    try:
        number = float(value.strip()) if isinstance(value, str) else value
    except ValueError:
        return None
    if number.is_integer():
        return int(number)
    return None if whole else number


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


def _value_under(values: Any, part: str | int) -> Any:
    if isinstance(values, Mapping):
        return values.get(part)
    if isinstance(values, list) and isinstance(part, int) and part < len(values):
        return values[part]
    return None


def _literals_agree(section: type[BaseModel], values: Any) -> bool:
    literals = {
        key: get_args(field.annotation)
        for key, field in section.model_fields.items()
        if get_origin(field.annotation) is Literal
    }
    return isinstance(values, Mapping) and all(
        values[key] in allowed for key, allowed in literals.items() if key in values
    )


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated, list, tuple, dict):
        for inner in get_args(annotation):
            yield from _models_in(inner)
