"""uvicorn's HTTP/1.1 protocol with what it leaves open: slow and too many connections, refusals as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_BYTES = 1 << 16


def protocol_for(*, max_connections: int, patience_seconds: float) -> type[H11Protocol]:
    """The protocol of a server that takes so many connections at once, and has so much patience with a client.

    So long it waits for a request's head, for the rest of one that is answered already, and for somebody to read on
    when a part of an answer is unread.
    """

    class Protocol(_PatientProtocol):
        """With the numbers of this server."""

    Protocol.max_connections, Protocol.patience_seconds = max_connections, patience_seconds
    return Protocol


class _PatientProtocol(H11Protocol):
    """One connection, of a server that has at most so many, and so much patience with each."""

    max_connections: int
    patience_seconds: float
    _patience: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Whatever is unread counts, however little.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections")
            return
        self._patience = self.loop.call_later(self.patience_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_patience()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end_patience()
        elif self._patience is None and self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            # The head of a further request has begun, and uvicorn's own timer ended with it.
            self._patience = self.loop.call_later(self.patience_seconds, self._give_up)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._patience is None and self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            # What comes now is thrown away, and might never end.
            self._patience = self.loop.call_later(self.patience_seconds, self._give_up)

    def pause_writing(self) -> None:
        # A client that does not read would hold its request's place for ever.
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that the server takes")

    def _give_up(self) -> None:
        self._patience = None
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        elif self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._refuse(408, f"no request within {self.patience_seconds:g} s")

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, status: int, message: str) -> None:
        self._end_patience()
        body = json.dumps({"error": message, "message": message}).encode()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
                *([("retry-after", "1")] if status == 503 else []),
            ]
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
