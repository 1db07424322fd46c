"""What travels from the readers through the cleaning rules: some thousand pairs at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

CHUNK_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pairs in order; bytes that are not UTF-8 are surrogate escapes, `malformed` holds broken records by index."""

    src: list[str]
    tgt: list[str]
    first_line: int
    origin: str
    malformed: dict[int, str] = field(default_factory=dict)

    def where(self, index: int) -> str:
        """File and line of a pair."""
        return f"{self.origin}:{self.first_line + index}"
