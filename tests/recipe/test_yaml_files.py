"""Documents are merged key by key, and scalars are read as YAML 1.2 reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.errors import RecipeError
from nmt_cli.recipe.section import KeyPath, flatten
from nmt_cli.recipe.yaml_files import Document, dump_annotated, dump_values, merge, parse_document, parse_setting

# A key stands for a section in all three or for a value in all three, as in recipes that are valid: merging is
# associative only then.
_LEAVES = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3) | st.lists(st.integers(0, 3)))
_SECTIONS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    _LEAVES,
    lambda inner: st.builds(dict.__or__, _LEAVES, st.dictionaries(st.sampled_from("abc"), inner)),
    max_leaves=6,
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["no", "5e-4", "1e3", "0o14", "0x1F", "1_000", "12:30", "~", "", ".inf", "2024-01-31", "=", "<<"])
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner), max_leaves=10
)
_KEYS = st.from_regex(r"k[a-z_0-9]*", fullmatch=True)  # as those of a schema


def parent(text: str) -> Document:
    return parse_document(text, source="parent.yaml")


def child(text: str) -> Document:
    return parse_document(text, source="child.yaml")


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        ("a: {x: 1, y: [1, 2], z: {p: 1}}", "a: {y: [3], z: {q: 2}}", "a: {x: 1, y: [3], z: {p: 1, q: 2}}"),
        ("b: 1", "c: 4", "{b: 1, c: 4}"),
        ("a: 1\nb: {c: 2}", "a: {c: 2}\nb: null", "{a: {c: 2}, b: null}"),
        # Sections of one name merge, also if the new one has none; a section of another name replaces.
        ("o: {name: x, p: 1, q: 2}", "o: {name: x, q: 3}", "o: {name: x, p: 1, q: 3}"),
        ("o: {name: x, p: 1}", "o: {p: 2}", "o: {name: x, p: 2}"),
        ("t: {o: {name: x, p: 1}, n: 1}", "t: {o: {name: z}}", "t: {o: {name: z}, n: 1}"),
    ],
)
def test_sections_merge_and_values_replace(old: str, new: str, merged: str) -> None:
    assert merge(parent(old), child(new)).values == yaml.safe_load(merged)


def test_nothing_is_left_of_the_origins_of_a_replaced_section() -> None:
    merged = merge(parent("t:\n  o: {name: adam, beta1: 0.9}\n  n: 1"), child("t: {o: {name: adamw}}"))
    assert merged.origins[("t", "o", "name")] == "child.yaml:1"
    assert ("t", "o", "beta1") not in merged.origins
    assert merged.origins[("t", "n")] == "parent.yaml:3"


def test_a_section_changed_by_the_child_is_the_child_s() -> None:
    merged = merge(parent("m:\n  x: 1\n  y: 2"), child("# a comment\nm: {y: 3}"))
    assert merged.origin(("m",)) == "child.yaml:2"
    assert merged.origin(("m", "x")) == "parent.yaml:2"
    assert merged.origin(("m", "nowhere")) == "child.yaml:2"


def test_a_shorter_value_leaves_no_origins_of_the_longer() -> None:
    merged = merge(parent("a: [1, 2, 3]\nb: {c: 2}"), child("a: [4]\nb: null"))
    assert set(merged.origins) == {(), ("a",), ("a", 0), ("b",)}


def document(values: dict[str, Any], source: str) -> Document:
    return parse_document(dump_values(values), source=source)


@settings(max_examples=50)
@given(_SECTIONS, _SECTIONS, _SECTIONS)
def test_merging_is_associative_and_keeps_an_origin_for_every_leaf(
    a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]
) -> None:
    first, second, third = document(a, "a"), document(b, "b"), document(c, "c")
    left, right = merge(merge(first, second), third), merge(first, merge(second, third))
    assert left.values == right.values
    leaves = flatten(left.values)
    assert {path: left.origins[path] for path in leaves} == {path: right.origins[path] for path in leaves}
    for path, value in flatten(c).items():
        assert flatten(left.values)[path] == value
        assert left.origins[path].startswith("c:")
    assert merge(first, document({}, "nothing")).values == first.values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-4", 5e-4),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-2.5E+2", -250.0),
        (".inf", math.inf),
        ("8", 8),
        ("010", 10),
        ("0o14", 12),
        ("0x1F", 31),
        ("true", True),
        ("null", None),
        ("~", None),
        ("no", "no"),
        ("tRue", "tRue"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-31", "2024-01-31"),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("!!float 8", 8.0),
    ],
)
def test_scalar_is_read_by_the_core_schema(text: str, value: Any) -> None:
    read = parse_setting(text, path=("x",), source="test").values["x"]
    assert read == value
    assert type(read) is type(value)


def test_nan_is_a_number() -> None:
    assert math.isnan(parse_setting(".NaN", path=("x",), source="test").values["x"])


def test_collections_may_be_nested_in_either_style() -> None:
    document = parse_document("a: [1, two, {b: 3}]\nc:\n  d:\n    - null\n    - no\n", source="f.yaml")
    assert document.values == {"a": [1, "two", {"b": 3}], "c": {"d": [None, "no"]}}
    assert document.origins[("a", 2, "b")] == "f.yaml:1"
    assert document.origins[("c", "d", 1)] == "f.yaml:5"


def test_an_alias_stands_for_the_value_it_names() -> None:
    assert parse_document("a: &x {b: 1}\nc: *x", source="f.yaml").values == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3", 3, "the key 'a' is given twice"),
        ("a:\n\tb: 1", 2, "found character '\\t'"),
        ("a: [1, 2", 1, "expected ',' or ']'"),
        ("a: *nothing", 1, "found undefined alias 'nothing'"),
        ("[a]: 1", 1, "a key must be plain text"),
        ("a: !!int eight", 1, "'eight' does not fit its tag !!int"),
        ("a: !!binary YQ==", 1, "is not supported"),
        ("a: !mine {b: 1}", 1, "the YAML tag '!mine' is not supported"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_document(text, source="f.yaml")
    assert message in caught.value.message
    # Where the end of the text is what is wrong, PyYAML may name the line after the last.
    assert caught.value.where in (f"f.yaml:{line}", f"f.yaml:{line + 1}" if "end" in message or "'," in message else "")
    assert caught.value.hint


def test_characters_that_yaml_forbids_are_refused() -> None:
    with pytest.raises(RecipeError, match="this is not YAML: unacceptable character #x0007"):
        parse_document("a: 1\nb: \x07", source="f.yaml")


def test_a_yaml_bomb_is_refused() -> None:
    lists = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9 if n else ['ha'] * 9)}]" for n in range(9))
    for bomb in (lists, "a: " + "[" * 20_000):
        with pytest.raises(RecipeError, match="there are more than 100,000 values"):
            parse_document(bomb, source="f.yaml")


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "8"])
def test_a_document_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="a mapping of keys to values is expected") as caught:
        parse_document(text, source="f.yaml")
    assert caught.value.hint == "write key: value lines"


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert parse_document("# nothing yet\n", source="f.yaml").values == {}


@settings(max_examples=50)  # PyYAML is slow
@given(st.dictionaries(st.text(min_size=1), _VALUES))
def test_what_is_written_reads_back_equal_here_and_by_yaml_1_1(values: dict[str, Any]) -> None:
    text = dump_values(values)
    read = parse_document(text, source="f.yaml").values
    assert read == values
    assert repr(read) == repr(values), "equal, but of other types"
    assert repr(yaml.safe_load(text)) == repr(values)


def leaves(values: dict[str, Any], path: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


@settings(max_examples=50)
@given(
    st.dictionaries(_KEYS, st.recursive(_SCALARS, lambda inner: st.dictionaries(_KEYS, inner), max_leaves=10)),
    st.text(),
)
def test_notes_change_nothing_of_what_is_written(values: dict[str, Any], note: str) -> None:
    text = dump_annotated(values, dict.fromkeys(leaves(values), note))
    read = parse_document(text, source="f.yaml").values
    assert repr(read) == repr(values)
    assert repr(yaml.safe_load(text) or {}) == repr(values)


def test_a_note_stands_behind_its_value_and_in_one_column() -> None:
    values = {"a": 1, "b": {"c": "x\ny", "d": [1, 2]}, "long": "x" * 60}
    notes: dict[KeyPath, str] = {("a",): "here", ("b", "c"): "--set b.c=x\ny\x07", ("long",): "there"}
    assert dump_annotated(values, notes) == (
        f"a: 1{' ' * 46}  # here\n"
        f'b:\n  c: "x\\ny"{" " * 39}  # --set b.c=x y?\n'
        "  d:\n  - 1\n  - 2\n"
        f"long: {'x' * 60}  # there\n"
    )
