"""Laying one document over another: sections merge, all else replaces, and origins follow the values."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.recipe.documents import Document, dump_values, merge, parse_document
from nmt_cli.recipe.loading import flatten


def parent(text: str) -> Document:
    return parse_document(text, source="parent.yaml")


def child(text: str) -> Document:
    return parse_document(text, source="child.yaml")


def test_sections_merge_and_values_replace() -> None:
    merged = merge(parent("a: {x: 1, y: [1, 2], z: {p: 1}}\nb: 1"), child("a: {y: [3], z: {q: 2}}\nc: 4"))
    assert merged.values == {"a": {"x": 1, "y": [3], "z": {"p": 1, "q": 2}}, "b": 1, "c": 4}


def test_a_section_of_the_same_name_merges() -> None:
    merged = merge(parent("o: {name: adam, beta1: 0.9, beta2: 0.98}"), child("o: {name: adam, beta2: 0.997}"))
    assert merged.values == {"o": {"name": "adam", "beta1": 0.9, "beta2": 0.997}}


def test_a_section_without_a_name_changes_the_one_it_finds() -> None:
    merged = merge(parent("o: {name: adam, beta1: 0.9}"), child("o: {beta1: 0.8}"))
    assert merged.values == {"o": {"name": "adam", "beta1": 0.8}}


def test_a_section_of_another_name_replaces() -> None:
    merged = merge(parent("t: {o: {name: adam, beta1: 0.9}, n: 1}"), child("t: {o: {name: adamw}}"))
    assert merged.values == {"t": {"o": {"name": "adamw"}, "n": 1}}


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


def test_a_shorter_list_leaves_no_origins_of_the_longer() -> None:
    merged = merge(parent("a: [1, 2, 3]"), child("a: [4]"))
    assert set(merged.origins) == {(), ("a",), ("a", 0)}


def test_a_value_may_become_a_section_and_a_section_a_value() -> None:
    merged = merge(parent("a: 1\nb: {c: 2}"), child("a: {c: 2}\nb: null"))
    assert merged.values == {"a": {"c": 2}, "b": None}
    assert ("b", "c") not in merged.origins


# A key stands for a section in all three or for a value in all three, as in recipes that are valid: merging is
# associative only then.
_LEAVES = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3) | st.lists(st.integers(0, 3)))
_SECTIONS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    _LEAVES,
    lambda inner: st.builds(dict.__or__, _LEAVES, st.dictionaries(st.sampled_from("abc"), inner)),
    max_leaves=6,
)


def document(values: dict[str, Any], source: str) -> Document:
    return parse_document(dump_values(values), source=source)


@settings(deadline=None, max_examples=50)
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
