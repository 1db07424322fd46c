"""What a worker is asked to do with sentences, and what it answers, as records that travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Engine:
    """How a worker runs a model: what `nmt decode` takes as --engine, --device and --precision, and its threads."""

    name: str
    device: str
    precision: str
    threads: int


@dataclass(frozen=True, slots=True)
class Search:
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
class Attend:
    """The attention between a sentence and this translation of it."""

    target: str


@dataclass(frozen=True, slots=True)
class Vary:
    """At most `number` translations of a sentence that begin with `prefix` and differ in the next word."""

    prefix: str
    number: int
    beam: int


Job = Search | Attend | Vary
_KINDS: dict[str, type[Search] | type[Attend] | type[Vary]] = {"search": Search, "attend": Attend, "vary": Vary}


def job_fields(job: Job) -> dict[str, Any]:
    """The job as JSON takes it."""
    return {"kind": next(name for name, kind in _KINDS.items() if isinstance(job, kind)), **asdict(job)}


def job_of(fields: Mapping[str, Any]) -> Job:
    """The job of `job_fields`."""
    values = {name: value for name, value in fields.items() if name != "kind"}
    return _KINDS[fields["kind"]](**values)


def frame(message: Mapping[str, Any]) -> bytes:
    """A message as bytes: the length in four bytes, then JSON."""
    content = json.dumps(message).encode()
    return len(content).to_bytes(4, "big") + content
