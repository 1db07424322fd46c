"""Messages to workers: the jobs that they do with sentences, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SearchJob:
    """The search of one sentence; sentences with the same search can be searched together.

    The translation begins with `prefix`, and with `alignments` it says which source word each of its words is from.
    """

    beam: int
    nbest: int
    length_penalty: float
    max_extra_tokens: int
    prefix: str
    alignments: bool


@dataclass(frozen=True, slots=True)
class AttentionJob:
    """The attention between a sentence and this translation of it."""

    target: str


@dataclass(frozen=True, slots=True)
class NextWordsJob:
    """At most `number` translations of a sentence that begin with `prefix` and differ in the next word."""

    prefix: str
    number: int
    beam: int


Job = SearchJob | AttentionJob | NextWordsJob
_KINDS: dict[str, type[SearchJob] | type[AttentionJob] | type[NextWordsJob]] = {
    "search": SearchJob,
    "attend": AttentionJob,
    "vary": NextWordsJob,
}


def job_fields(job: Job) -> dict[str, Any]:
    """The job as JSON takes it."""
    return {"kind": next(name for name, kind in _KINDS.items() if isinstance(job, kind)), **asdict(job)}


def job_from_fields(fields: Mapping[str, Any]) -> Job:
    """The job of `job_fields`."""
    values = {name: value for name, value in fields.items() if name != "kind"}
    return _KINDS[fields["kind"]](**values)


def encode_message(message: Mapping[str, Any]) -> bytes:
    """A message as bytes: the length in four bytes, then JSON."""
    content = json.dumps(message).encode()
    return len(content).to_bytes(4, "big") + content
