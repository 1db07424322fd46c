"""uvicorn's HTTP/1.1 protocol on httptools, with limits for slow, greedy and broken clients.

docs/design/serving.md compares it with other servers.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import termios
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_MAX_HEAD_BYTES = 1 << 16
# At most this much is read at a time, so that other connections get their turn.
_READ_BYTES = 1 << 13
# While an answer waits to be read, a client must read this much within the patience.
_MIN_READ_BYTES = 1 << 16
# A socket that takes both kinds of addresses writes an IPv4 address like this.
_IPV4_IN_IPV6 = "::ffff:"
_NO_REQUEST = "this is not a valid HTTP request"
# A server that ends waits this long for requests that are on their way.
_LINGER_SECONDS = 1.0


@dataclass(slots=True)
class ServerConnections:
    """The state that all connections of a server share.

    The server waits `patience_seconds` for the head of a request, and for the rest of a request that is already
    answered. In the same time a client must read 64 KB of an answer, or all that is left of the answer. `on_refusal` is
    called with the status and the reason of each connection that the protocol itself refuses.
    """

    max_connections: int
    patience_seconds: float
    on_refusal: Callable[[int, str], None]
    # The connections on which the server waits for the client, the longest wait first.
    waiting: dict[_PatientProtocol, None] = field(default_factory=dict)
    # True while the server ends: each answer then closes its connection.
    is_ending: bool = False

    @property
    def protocol(self) -> Any:
        """A function that makes the protocol of a new connection, for uvicorn."""
        return partial(_PatientProtocol, shared=self)


class _PatientProtocol(HttpToolsProtocol):
    """One connection."""

    _patience_timer: asyncio.TimerHandle | None = None
    _reading_timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _is_in_body = False
    _closes_after_body = False
    _is_broken = False
    _is_upgrade = False
    _last_data = b""
    _head_bytes = 0

    def __init__(self, *, shared: ServerConnections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._shared = shared

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is None:  # a Unix socket: the client is on this machine
            self.client = ("127.0.0.1", 0)
        elif self.client[0].startswith(_IPV4_IN_IPV6):
            self.client = (self.client[0].removeprefix(_IPV4_IN_IPV6), self.client[1])
        self.flow = _PipelineFlow(transport, self.pipeline)
        transport.max_size = _READ_BYTES
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` is called for every unread byte
        self._shared.waiting[self] = None
        self._start_patience()
        if self._shared.is_ending:
            self.shutdown()
        if len(self.connections) > self._shared.max_connections:
            # The longest wait ends, so a client that opens connections and sends nothing keeps nobody out.
            longest_waiting = next(iter(self._shared.waiting))
            longest_waiting._refuse(503, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.waiting.pop(self, None)
        self._stop_patience()
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        super().connection_lost(exc)
        if self.cycle is not None:
            self.cycle.transport = self.transport  # its writer refers to this connection, a cycle of references

    def data_received(self, data: bytes) -> None:
        if self._is_broken:
            return
        self._head_bytes += len(data)
        self._last_data = data
        super().data_received(data)
        if self.transport.is_closing() or self._is_broken:
            return
        if self._is_in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_request()
        elif not self._is_answered:
            self._stop_patience()
        elif self._is_in_head or self._is_in_body:
            self._start_patience()
        elif self.cycle is not None:
            self._stop_patience()
            # uvicorn ended its own timer when the data came.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # not a trailer after a chunked body: nobody reads trailers, and nothing limits them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        names = [name for name, _ in self.headers]
        is_1_0 = self.parser.get_http_version() == "1.0"
        has_valid_host = names.count(b"host") == 1 or (is_1_0 and b"host" not in names)
        if not has_valid_host or (is_1_0 and b"transfer-encoding" in names):
            raise ValueError  # httptools turns it into an error of the parser
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError
            self._is_upgrade = True  # the parser stops, and calls `_unsupported_upgrade_warning`
            return
        self._is_in_head, self._is_in_body, self._head_bytes = False, True, 0
        super().on_headers_complete()
        if self.parser.get_method() != b"HEAD":  # its answer has no body
            self.cycle.transport = _AnswerWriter(self.cycle, close=self._close_after_body)
        if self._shared.is_ending:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._is_in_body, self._head_bytes = False, 0
        super().on_message_complete()
        self._update_waiting()
        if self._closes_after_body:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_waiting()
        if self._is_in_body and self._is_answered and not self.transport.is_closing():
            self._start_patience()  # the rest of the request is thrown away, and might never end

    def shutdown(self) -> None:
        """Close the connection after the answer in work, or after a moment for a request that is on its way."""
        if self._is_answered:
            self.loop.call_later(_LINGER_SECONDS, self._end_if_idle)
        else:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self._num_unread())

    def resume_writing(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse_request()

    def _unsupported_upgrade_warning(self) -> None:
        """Read the request again without its offer of another protocol.

        Java's HttpClient offers h2c by default, and the parser would leave out the body of such a request.
        """
        upgrade = sys.exc_info()[1]
        assert isinstance(upgrade, HttpParserUpgrade)
        self._is_upgrade = False
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        rest = self._last_data[upgrade.args[0] :]
        self.parser = HttpRequestParser(self)
        self.data_received(b"\r\n".join([*head, b"", rest]))

    @property
    def _is_answered(self) -> bool:
        """Whether no answer to a request that has begun is outstanding."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _may_write_refusal(self) -> bool:
        """Whether no answer has begun, and no earlier request waits for its answer."""
        return self._is_answered or not (self.cycle.response_started or self.pipeline)

    def _update_waiting(self) -> None:
        """Move this connection to the end of `waiting`, or remove it if the server does not wait for its client."""
        self._shared.waiting.pop(self, None)
        if (self._is_answered or self._is_in_body) and not self.transport.is_closing():
            self._shared.waiting[self] = None

    def _close_after_body(self) -> None:
        """Close the connection once the whole request is here: a client that still sends would not see the answer."""
        self._closes_after_body = self._is_in_body and not self.pipeline  # else the body is of a later request
        if not self._closes_after_body:
            self.transport.close()

    def _end_if_idle(self) -> None:
        if self._is_answered and not self._is_in_head:
            self.transport.close()

    def _watch_reader(self, num_unread: int) -> None:
        """Close the connection if the client hardly reads: it would hold its place forever."""

        def abort_if_stalled() -> None:
            num_still_unread = self._num_unread()
            if num_unread - num_still_unread >= _MIN_READ_BYTES:
                self._watch_reader(num_still_unread)
            else:
                self.transport.abort()

        self._reading_timer = self.loop.call_later(self._shared.patience_seconds, abort_if_stalled)

    def _num_unread(self) -> int:
        """Bytes that the client has not received: those in our buffer and those in the system's buffer."""
        unsent = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unsent)
        return self.transport.get_write_buffer_size() + int.from_bytes(unsent, sys.byteorder)

    def _start_patience(self) -> None:
        if self._patience_timer is None:
            self._patience_timer = self.loop.call_later(self._shared.patience_seconds, self._give_up)

    def _stop_patience(self) -> None:
        if self._patience_timer is not None:
            self._patience_timer.cancel()
            self._patience_timer = None

    def _give_up(self) -> None:
        self._patience_timer = None
        if self._is_in_body:
            self.transport.close()
        elif not self.transport.is_closing():
            self._refuse(408, f"no request within {self._shared.patience_seconds:g} s")

    def _refuse_request(self) -> None:
        """Answer 400 to a request that cannot be read; requests before it are answered first."""
        self._is_broken = True
        if self._is_answered or (self._is_in_body and self._may_write_refusal):
            self._refuse(400, _NO_REQUEST)
            return
        self._shared.on_refusal(400, _NO_REQUEST)
        if self._is_in_body and not self.pipeline:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, message: str) -> None:
        """Close the connection, with an answer if the client cannot take it for the answer to another request."""
        self._stop_patience()
        self._shared.waiting.pop(self, None)
        self._shared.on_refusal(status, message)
        is_idle = self.cycle is not None and self._is_answered and not self._is_in_head
        if not self._may_write_refusal or (status == 503 and is_idle):
            self.transport.close()
            return
        body = json.dumps({"error": message, "message": message})
        head = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(["retry-after: 1"] if status == 503 else []),
        ]
        self.transport.write("\r\n".join([*head, "", body]).encode())
        self.transport.close()


class _PipelineFlow(FlowControl):
    """Stops reading while requests wait for the answers to earlier requests."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class _AnswerWriter(asyncio.Transport):
    """The transport of one answer; it sends the head together with the beginning of the body, which saves a packet."""

    def __init__(self, cycle: RequestResponseCycle, *, close: Callable[[], None]) -> None:
        super().__init__()
        self._close = close
        # Dropped once the head is written: a cycle of references would leave each answer to the garbage collector.
        self._cycle: RequestResponseCycle | None = cycle
        self._transport = cycle.transport
        self._head = b""

    def write(self, data: Any) -> None:
        # "100 Continue" may come before the answer begins.
        if self._cycle is not None and self._cycle.response_started:
            self._head, self._cycle = data, None
        elif self._head:
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
