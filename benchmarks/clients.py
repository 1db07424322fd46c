"""Clients of a server under load: their connections, and what they saw."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BOUNDARY = "benchmark"
"""Between the fields of a form with a file."""


@dataclass
class Window:
    """What the clients saw: seconds to each answer by status, and how many clients did not wait."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    refused_seconds: list[float] = field(default_factory=list)
    num_vanished: int = 0
    seconds_of_kinds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, status: int, seconds: float) -> None:
        """Count one answer."""
        self.statuses[str(status)] = self.statuses.get(str(status), 0) + 1
        (self.seconds if status == 200 else self.refused_seconds).append(seconds)


class Connection:
    """A kept HTTP connection that asks for one sentence after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """A new one."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def translate(self, line: str) -> tuple[int, str]:
        """Status, and the translation if it is 200."""
        status, content = await self.ask("/v1/translate", {"text": line})
        return status, json.loads(content)["translations"][0]["text"] if status == 200 else ""

    async def ask(self, path: str, fields: Mapping[str, Any] | bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer; the fields go as JSON, bytes as a form, and nothing as GET."""
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        kind = f"multipart/form-data; boundary={BOUNDARY}" if isinstance(fields, bytes) else "application/json"
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: x\r\n"
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        found = re.search(r"content-length: (\d+)", answer)
        assert found is not None
        return int(answer.split(" ", 2)[1]), await self._reader.readexactly(int(found[1]))

    def close(self) -> None:
        """End it."""
        self._writer.close()

    def abort(self) -> None:
        """End it without a word."""
        self._writer.transport.abort()
