"""Settings that a schema refuses: what is wrong, and what to write instead.

`validate` puts an error together from three parts. `error_to_show` chooses one error of pydantic, `describe` gives the
message, and the `suggestion` of an `InvalidSetting` gives the hint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from nmt_cli.errors import RecipeError, nearest_word
from nmt_cli.recipe.counterparts import NEXT_LINE, Answer, as_flag, counterpart_of
from nmt_cli.recipe.key_paths import KeyPath, document_path, dotted_key, fields_at, flatten, key_paths, sections_at
from nmt_cli.recipe.section import Section, SettingError
from nmt_cli.recipe.yaml_files import Document, parse_value

Model = TypeVar("Model", bound=BaseModel)

_SET = "--set "  # the beginning of the origin of a value that a flag gives
_PLACEHOLDER = "VALUE"
_MIN_ABBREVIATION_LETTERS = 4  # of an abbreviation, so that it says which word
# A setting in the fix of a validator.
_SETTING_IN_FIX = re.compile(r"(?P<write>write )?\b(?P<key>[\w.]+): (?P<value>\[[^\]]*\]|\{[^}]*\}|[^\s,;{}]+)")

_BOUND_WORDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
_SIDE_ABBREVIATIONS = {"src": "source", "tgt": "target", "trg": "target"}

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
        path = document_path(error, document.values)
        where = _origin_of_error(error, path, document, source=source) or source
        invalid = InvalidSetting(error, path, schema, document.values, as_flags=where.startswith(_SET))
        hint = invalid.suggestion or invalid.allowed_range or fix
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


@dataclass(frozen=True, slots=True)
class InvalidSetting:
    """A setting that a schema refuses: the error of pydantic, and the path of the setting in the document `values`.

    `as_flags` is True if a --set gives the setting, so that the suggestion is a --set too.
    """

    error: Any
    path: KeyPath
    schema: type[BaseModel]
    values: Any
    as_flags: bool

    @property
    def suggestion(self) -> str | None:
        """The text to write instead, such as the nearest allowed word or the corrected value; None if unknown."""
        kind, value = self.error["type"], self.error.get("input")
        match kind:
            case "extra_forbidden":
                return self._another_key(value)
            case "missing":
                return self._missing_key()
            case "value_error":  # of a validator
                return self._fix_of(self.error["ctx"]["error"])
            case "literal_error" | "union_tag_invalid":
                return self._allowed_word()
            case "union_tag_not_found":
                return self._names_of_variants()
            case "model_type" | "model_attributes_type":
                allowed = fields_at(self.schema, self.path, values=self.values)
                return self._variant(value) or f"allowed in it: {', '.join(allowed)}"
            case "string_type" if isinstance(value, int | float) and not isinstance(value, bool):
                return f'write "{value}", in quotes'
            case "string_pattern_mismatch":
                is_code = self.error["ctx"]["pattern"].startswith("^[A-Za-z][")  # of a language, and not a name
                words = ("a letter", "letters, digits,") if is_code else ("a letter or a digit", "letters, digits, .")
                return f"begin with {words[0]}, and write {words[1]} _ and - only"
            case "too_short":
                return f"fill {self.path[-1]}, or leave it out if there is none"
            case "int_type" | "float_type":
                number = _number_meant(value, must_be_whole=kind == "int_type")
                return None if number is None else f"write {number}"
            case "bool_type":
                return "write true or false, without quotes"
            case _:
                return None

    @property
    def allowed_range(self) -> str | None:
        """The numbers and words that are allowed, as a hint; None if no number is."""
        for section in sections_at(self.schema, self.path[:-1], values=self.values):
            field = section.model_json_schema()["properties"].get(self.path[-1], {})
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

    def _another_key(self, value: Any) -> str:
        """The key to write instead of an unknown one, of nmt or of another toolkit."""
        warmup = flatten(self.values).get(("training", "schedule", "warmup_updates"))
        warmup_updates = warmup if isinstance(warmup, int) else None
        answer = answer_in(self.schema, str(self.path[-1]), value, warmup_updates=warmup_updates)
        allowed = fields_at(self.schema, self.path[:-1], values=self.values)
        return suggest_key(self.path, allowed, schema=self.schema, answer=answer, as_flags=self.as_flags)

    def _missing_key(self) -> str:
        """The line or the flag that adds the key, with the schema's example of its value if there is one."""
        *above, key = self.path
        sections = sections_at(self.schema, tuple(above), values=self.values)
        fields = [section.model_fields[str(key)] for section in sections if key in section.model_fields]
        example = _example(fields[0]) if fields else _PLACEHOLDER
        note = "" if example == _PLACEHOLDER else f"{NEXT_LINE}{example} is an example"
        return f"add --set {dotted_key(self.path)}={example}{note}" if self.as_flags else f"add {key}: {example}{note}"

    def _fix_of(self, error: SettingError) -> str:
        """The fix of a validator, in which each `key: value` is written as a --set, or for its place in YAML.

        For `model.dropout: 0.1` this is `--set model.dropout=0.1`, or `dropout: 0.1 below model:`.
        """
        paths = set(key_paths(self.schema))

        def in_flag(setting: re.Match[str]) -> str:
            key = setting["key"].split(".")
            for path in ((*self.path, *key), (*self.path[:-1], *key)):
                if path in paths:
                    return as_flag(f"{dotted_key(path)}={setting['value']}")
            return setting[0]

        def in_yaml(setting: re.Match[str]) -> str:
            *above, key = setting["key"].split(".")
            if not above or (*above, key) not in paths:
                return setting[0]
            return f"{setting['write'] or ''}{key}: {setting['value']} below {dotted_key(tuple(above))}:"

        return _SETTING_IN_FIX.sub(in_flag if self.as_flags else in_yaml, error.fix)

    def _allowed_word(self) -> str | None:
        """The nearest of the words that the key allows, or all of them."""
        context, key = self.error["ctx"], str(self.path[-1])
        allowed = re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", "")))
        got = re.sub(rf"[-_]?{key}$", "", str(context.get("tag", self.error["input"])))  # pre_norm for pre
        if near := _nearest_choice(got, allowed):
            return f"did you mean {near}?"
        return self.allowed_range or (f"write {' or '.join(allowed)}" if allowed else None)

    def _names_of_variants(self) -> str:
        """The `name` that the section lacks, for each of its variants."""
        key = self.error["ctx"]["discriminator"].strip("'")
        sections = sections_at(self.schema, self.path, values=self.values)
        names = [name for section in sections for name in get_args(section.model_fields[key].annotation)]
        return "write " + " or ".join(f"{key}: {name}" for name in names) + " in it"

    def _variant(self, value: Any) -> str | None:
        """The section to write instead of `value`; None if the section has no variants.

        It is the variant whose name is nearest to the value. If no name is near, all variants are listed.
        """
        variants = {
            name: section
            for section in sections_at(self.schema, self.path, values=self.values)
            if "name" in section.model_fields
            for name in get_args(section.model_fields["name"].annotation)
        }
        if not variants:
            return None
        nearest = _nearest_choice(value, list(variants)) if isinstance(value, str) else None
        names = list(variants) if nearest is None else [nearest]
        first, *others = [_variant_form(variants[name], name=name) for name in names]
        key = dotted_key(self.path)
        lines = [as_flag(f"{key}={first}") if self.as_flags else f"write {self.path[-1]}: {first}"]
        if others:
            lines.append(f"or {', '.join(others)}")
        elif nearest is not None:
            examples = _required_keys(variants[nearest]).values()
            if not examples and not self.as_flags:
                lines[0] += f", or --set {key}.name={nearest}"
            lines += [f"{example} is an example" for example in examples]
        return NEXT_LINE.join(lines)


def suggest_key(
    path: KeyPath, allowed: Sequence[str], *, schema: type[BaseModel], answer: Answer | None, as_flags: bool
) -> str:
    """The hint for an unknown key: the `answer`, the same key elsewhere, the nearest key, or any key here.

    The same key elsewhere comes before the answer if it is in several places, or if the answer has no settings.
    """
    *section, key = path
    side = _SIDE_ABBREVIATIONS.get(str(key))
    if side is not None and side in allowed:
        return f"did you mean {dotted_key((*section, side))}?"
    elsewhere = [other for other in key_paths(schema) if other[-1] == key and other != path]
    if answer is not None and (not elsewhere or (answer.settings and len(elsewhere) == 1)):
        return answer.as_flags() if as_flags else answer.as_yaml(dotted_key(tuple(section)))
    near = nearest_word(str(key), allowed)
    if suggested := elsewhere or ([(*section, near)] if near else []):
        return "did you mean " + " or ".join(map(dotted_key, suggested)) + "?"
    return f"allowed here: {', '.join(allowed)}"


def answer_in(schema: type[BaseModel], key: str, value: Any, *, warmup_updates: int | None) -> Answer | None:
    """The answer to the key of another toolkit, or None; without its value if the schema refuses the value."""
    counterpart = counterpart_of(key, schema.other_toolkits if issubclass(schema, Section) else ())
    if counterpart is None:
        return None
    answer = counterpart.answer(value, warmup_updates=warmup_updates)
    refused = next(filter(None, (refusal(setting, schema) for setting in answer.settings)), None)
    if refused is None:
        return answer
    return replace(counterpart.answer(None, warmup_updates=warmup_updates), note=refused)


def refusal(setting: str, schema: type[BaseModel]) -> str | None:
    """The message if the schema refuses `key=value`, whatever the other settings are; None if it does not.

    A value of N or RATE is a placeholder, and is not refused.
    """
    name, _, text = setting.partition("=")
    *above, key = name.split(".")
    sections = [section for section in sections_at(schema, tuple(above), values={}) if key in section.model_fields]
    if not sections or re.search(r"\b(?:N|RATE)\b", text):
        return None
    try:
        value = parse_value(text, source=setting)
    except RecipeError as unreadable:
        return unreadable.message
    messages = []
    for section in sections:
        error = _error_of_key(key, value, section)
        if error is None:
            return None
        messages.append(describe(error, (*above, *document_path(error, {key: value}))))
    # The messages of several sections differ in what the value should be.
    beginning, should_be, _ = messages[0].partition("should be ")
    return beginning + should_be + " or ".join(dict.fromkeys(words.partition("should be ")[2] for words in messages))


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


def _error_of_key(key: str, value: Any, section: type[BaseModel]) -> Any:
    """The error of pydantic about one key of a section; None if there is none."""
    try:
        section.model_validate({key: value})
    except ValidationError as validation_error:
        return next((error for error in validation_error.errors() if error["loc"][0] == key), None)
    return None


def _variant_form(section: type[BaseModel], *, name: str) -> str:
    """The variant of this name as a section on one line, with examples for the keys that it requires."""
    keys = {"name": name, **_required_keys(section)}
    return "{" + ", ".join(f"{key}: {text}" for key, text in keys.items()) + "}"


def _required_keys(section: type[BaseModel]) -> dict[str, str]:
    """The keys of a section that have no default, with examples."""
    return {key: _example(field) for key, field in section.model_fields.items() if field.is_required()}


def _example(field: FieldInfo) -> str:
    return str(field.examples[0]) if field.examples else _PLACEHOLDER


def _nearest_choice(word: str, allowed: Sequence[str]) -> str | None:
    """The allowed word nearest to `word`, or the only one that `word` abbreviates, as invsqrt does inverse_sqrt."""
    near = nearest_word(word, allowed)
    letters = re.sub("[^a-z0-9]", "", word.lower())
    if near or len(letters) < _MIN_ABBREVIATION_LETTERS:
        return near
    abbreviated = [choice for choice in allowed if re.match(".*".join(letters), choice)]
    return abbreviated[0] if len(abbreviated) == 1 else None


def _number_meant(value: Any, *, must_be_whole: bool) -> int | float | None:
    """The number meant by a text: 1_000, or 1e5 if a whole number is asked for."""
    if isinstance(value, bool) or not isinstance(value, str | float):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if number.is_integer():
        return int(number)
    return None if must_be_whole or not math.isfinite(number) else number
