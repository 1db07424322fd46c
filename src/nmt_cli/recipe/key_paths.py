"""Paths of keys in nested values, such as ("training", "optimizer", "beta1")."""

from __future__ import annotations

from typing import Any

KeyPath = tuple[str | int, ...]


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
