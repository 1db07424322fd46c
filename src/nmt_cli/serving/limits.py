"""What the server refuses to do, whoever asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a request and of all requests together.

    `characters` and `texts` are those of one request, `sentences` what its texts are split into; `queue` counts waiting
    sentences of a model, `requests` those in work at once. `timeout_seconds` is the longest from the last byte of a
    request to its answer, and as much is given to a client that sends one.
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
        """The longest body: every character escaped, which takes up to twelve bytes, and some room around."""
        return 12 * self.characters + 65536
