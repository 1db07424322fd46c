"""What the connection itself refuses, with a small application behind it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from nmt_cli.serving.protocol import protocol_for


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """`well`; after the body at /late the headers' names; at /much more than any buffer holds, until it has `ended`."""
    if scope["path"] == "/":
        await PlainTextResponse("well")(scope, receive, send)
        return
    if scope["path"] == "/late":
        while (await receive())["more_body"]:
            pass
        await PlainTextResponse(b" ".join(name for name, _ in scope["headers"]))(scope, receive, send)
        return

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 1_000_000

    try:
        await StreamingResponse(parts())(scope, receive, send)
    finally:
        ended.set()


ended = threading.Event()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that takes two connections and waits 0.3 s for a request's head."""
    config = uvicorn.Config(
        application,
        http=protocol_for(max_connections=2, max_head_bytes=4096, patience_seconds=0.3),
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def sent_back(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def is_ended(connection: socket.socket, *, sending: bytes) -> bool:
    """Whether the server hangs up on somebody who sends on and on."""
    try:
        for _ in range(1000):
            connection.sendall(sending)
            time.sleep(0.01)
    except ConnectionError:
        return True
    return False


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_head_that_does_not_come_is_not_waited_for(port: int) -> None:
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "):
        with connect(port) as connection:
            connection.sendall(begun)
            started = time.monotonic()
            assert sent_back(connection).startswith(b"HTTP/1.1 408")
            assert time.monotonic() - started < 5


def test_a_second_head_is_not_waited_for_either(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while not connection.recv(65536).endswith(b"well"):
            pass
        time.sleep(0.4)  # an idle connection may stay
        connection.sendall(b"GET / HT")
        assert sent_back(connection).startswith(b"HTTP/1.1 408")


def test_one_connection_too_many_is_refused(port: int) -> None:
    with connect(port) as first, connect(port) as second:
        time.sleep(0.05)
        with connect(port) as third:
            answer = sent_back(third)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b'{"error": "too many connections"' in answer
        for connection in (first, second):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert sent_back(connection).endswith(b"well")


def test_what_is_no_request_is_refused_as_json(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 8000)
        answer = sent_back(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.endswith(b'"message": "this is no HTTP request that the server takes"}')


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nX-Long: ",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;name=",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ",
    ],
    ids=["path", "header", "extension", "trailer"],
)
def test_what_never_ends_is_not_read_on(port: int, endless: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(endless)
        assert is_ended(connection, sending=b"a" * 65536)


def test_a_body_that_was_refused_does_not_go_on_for_ever(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert is_ended(connection, sending=b"a" * 1000)


def test_a_body_may_come_after_its_answer(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        while not connection.recv(65536).endswith(b"well"):
            pass
        connection.sendall(b"abcGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert sent_back(connection).endswith(b"well")


def test_requests_in_one_go_are_answered_in_turn(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"GET / HT")
        answers = sent_back(connection)
    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.count(b"HTTP/1.1 408") == 1


def test_headers_after_a_body_are_left_out(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(
            b"POST /late HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\nX-Late: y\r\n\r\n"
        )
        assert sent_back(connection).endswith(b"host connection transfer-encoding")


def test_an_answer_that_nobody_reads_is_given_up(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ended.wait(10)
