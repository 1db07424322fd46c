"""The settings of a server: its models, its limits, and how workers run a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.serving.keys import ApiKeys


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of `nmt serve`."""

    models: Sequence[Path]
    host: str
    port: int
    model_settings: ModelSettings
    limits: RequestLimits
    keys: ApiKeys
    origins: Sequence[str]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How each model is run: its workers, their engine, and the size of batches."""

    engine: EngineSettings
    workers: int
    max_batch_tokens: int | None
    max_wait_seconds: float
    queue: int
    batch_timeout_seconds: float
    split_pieces: int


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a worker runs a model: engine, device and precision as for `nmt decode`, and CPU threads."""

    name: str
    device: str
    precision: str
    threads: int


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request and of all requests together.

    `characters`, `texts` and `sentences` limit one request. `queue` limits the waiting sentences of a model, and
    `requests` limits the requests in work. `timeout_seconds` is the longest time from the last byte of a request to
    its answer; a client may take as long to send a request.
    """

    characters: int
    texts: int
    sentences: int
    queue: int
    requests: int
    timeout_seconds: float
    alternatives: int
    beam: int

    @property
    def body_bytes(self) -> int:
        """The longest body: twelve bytes for each character, as if all were escaped, and 64 KB for the rest."""
        return 12 * self.characters + 65536
