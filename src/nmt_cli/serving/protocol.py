"""uvicorn's HTTP/1.1 protocol with what it leaves open: slow and too many connections, refusals as JSON."""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import termios
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_BYTES = 1 << 16
# Of what has arrived, read at a time: a body in chunks of one byte is parsed for a tenth of a second in one go.
_READ_BYTES = 1 << 13
# Of an answer, that somebody must read within the patience if so many are unread.
_LEAST_READ_BYTES = 1 << 16


def protocol_for(*, max_connections: int, patience_seconds: float) -> type[H11Protocol]:
    """The protocol of a server that takes so many connections at once, and has so much patience with a client.

    So long it waits for a request's head, for the rest of one that is answered already, and for somebody to read 64 KB
    of an answer, or all that is left of it.
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
        transport.max_size = _READ_BYTES
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
        elif before is not None and self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            # uvicorn's own timer ended with what came: the head of a further request, or the rest of an answered one.
            if not self.conn.trailing_data[0]:
                self._end_patience()
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            elif self._patience is None:
                self._patience = self.loop.call_later(self.patience_seconds, self._give_up)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._patience is None and self._is_answered_early and not self.transport.is_closing():
            # What comes now is thrown away, and might never end.
            self._patience = self.loop.call_later(self.patience_seconds, self._give_up)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader(self._num_unread())

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that the server takes")

    def _await_reader(self, unread: int) -> None:
        """Give a client up that reads next to nothing of so many bytes: it would hold its place for ever."""

        def look() -> None:
            left = self._num_unread()
            if unread - left >= _LEAST_READ_BYTES:
                self._await_reader(left)
            else:
                self.transport.abort()

        self._unread = self.loop.call_later(self.patience_seconds, look)

    def _num_unread(self) -> int:
        """Bytes that the client has not got: those in the system's buffer too, which empties long before ours does."""
        unsent = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unsent)
        return self.transport.get_write_buffer_size() + int.from_bytes(unsent, sys.byteorder)

    @property
    def _is_answered_early(self) -> bool:
        """Whether the answer was there before all of the request was; not that of one before a pipelined one."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _give_up(self) -> None:
        self._patience = None
        if self._is_answered_early:
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
