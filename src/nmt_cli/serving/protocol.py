"""uvicorn's HTTP/1.1 protocol with what it leaves open: slow, long-winded and too many clients, refusals as JSON."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def protocol_for(*, max_connections: int, max_head_bytes: int, patience_seconds: float) -> type[HttpToolsProtocol]:
    """The protocol of a server that takes so many connections at once, and has so much patience with a client.

    So long it waits for a request's head, and for somebody to read on when a full buffer of an answer is unread. Of a
    head, and of what comes between the parts of a body or after it, it reads little more than `max_head_bytes`.
    """

    class Protocol(_PatientProtocol):
        """With the numbers of this server."""

    Protocol.max_connections, Protocol.max_head_bytes = max_connections, max_head_bytes
    Protocol.patience_seconds = patience_seconds
    return Protocol


class _PatientProtocol(HttpToolsProtocol):
    """One connection, of a server that has at most so many, and so much patience with each."""

    max_connections: int
    max_head_bytes: int
    patience_seconds: float
    _patience: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _is_in_head = False
    _is_in_body = False
    _idle_bytes = 0  # since the last head or the last part of a body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections")
            return
        self._begin_patience()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_patience()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        self._idle_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._idle_bytes > self.max_head_bytes:
            self._refuse_request()
        elif self.cycle is not before:
            self._end_patience()
        elif self._is_awaiting_head:
            # The head of a further request has begun, and uvicorn's own timer ended with it.
            self._begin_patience()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes after the last part of a body looks like headers, too.
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._is_in_body, self._idle_bytes = False, True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body, self._idle_bytes = False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_awaiting_head and (self._is_in_head or self._is_in_body):
            # A client reads no refusal before it has sent its body, which may go on for ever.
            self._begin_patience()

    def pause_writing(self) -> None:
        # A client that does not read would hold its request's place for ever.
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse_request()

    @property
    def _is_awaiting_head(self) -> bool:
        """Whether all requests that have come are answered."""
        return self.cycle is None or self.cycle.response_complete

    def _begin_patience(self) -> None:
        if self._patience is None and not self.transport.is_closing():
            self._patience = self.loop.call_later(self.patience_seconds, self._give_up)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if self.cycle is None or (self._is_in_head and self.cycle.response_complete):
            self._refuse(408, f"no request within {self.patience_seconds:g} s")
        elif self.cycle.response_complete:
            self.transport.close()

    def _refuse_request(self) -> None:
        self._refuse(400, "this is no HTTP request that the server takes")

    def _refuse(self, status: int, message: str) -> None:
        self._end_patience()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"error": message, "message": message}).encode()
            lines = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
                *(["retry-after: 1"] if status == 503 else []),
            ]
            self.transport.write("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)
        self.transport.close()
