"""What the connection itself refuses, with a small application behind it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nmt_cli.serving.http_protocol import ServerConnections
from tests.waiting import wait_until


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """`well`, a request's body at /body, its client at /client, the number of its headers after the body at /headers.

    There is a page at /page, and at /much one that no buffer holds. That comes in parts, until it has `ended`.
    The answer at /last is the last of its connection.
    """
    if scope["path"] == "/body":
        await PlainTextResponse(await Request(scope, receive).body())(scope, receive, send)
        return
    if scope["path"] == "/headers":
        await Request(scope, receive).body()
        await PlainTextResponse(f"{len(scope['headers'])} headers")(scope, receive, send)
        return
    if scope["path"] == "/client":
        await PlainTextResponse(scope["client"][0])(scope, receive, send)
        return
    if scope["path"] == "/last":
        await PlainTextResponse("well", headers={"connection": "close"})(scope, receive, send)
        return
    if scope["path"] in ("/", "/page"):
        await PlainTextResponse("well" if scope["path"] == "/" else "x" * 40_000)(scope, receive, send)
        return

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(200 if scope["path"] == "/much" else 1):
            yield b"x" * 1_000_000

    try:
        await StreamingResponse(parts())(scope, receive, send)
    finally:
        ended.set()


ended = threading.Event()
refusals: list[tuple[int, str]] = []


@contextmanager
def served(listener: socket.socket, *, patience_seconds: float = 60.0) -> Iterator[uvicorn.Server]:
    """A server that takes two connections and waits so long for a request's head."""
    connections = ServerConnections(2, patience_seconds, lambda *refusal: refusals.append(refusal))
    config = uvicorn.Config(
        application,
        http=connections.protocol,
        lifespan="off",
        log_config=None,
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server
    server.should_exit = True
    thread.join()


def tcp_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that a page stays in the server's own buffer
    return listener


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server whose patience no test outlasts, however slow the machine."""
    with served(listener := tcp_listener()):
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def impatient() -> Iterator[int]:
    """The port of a server that waits one second."""
    with served(listener := tcp_listener(), patience_seconds=1.0):
        yield listener.getsockname()[1]


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def sent_back(connection: socket.socket, *, end: bytes | None = None) -> bytes:
    """All that comes until the server closes the connection, or until it has sent `end`."""
    received = b""
    while (end is None or not received.endswith(end)) and (chunk := connection.recv(65536)):
        received += chunk
    return received


def answers_to(port: int, *parts: bytes) -> bytes:
    """The answers to parts that come one after another, until the server closes the connection."""
    with connect(port) as connection:
        for number, part in enumerate(parts):
            time.sleep(0.05 if number else 0)
            connection.sendall(part)
        return sent_back(connection)


def test_a_proxy_at_a_unix_socket_tells_clients_apart(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with served(listener):
            client.connect(str(tmp_path / "s"))
            # The client claims the first address, and the proxy has added the second.
            client.sendall(
                LAST_GET.replace(b"/ ", b"/client ", 1).replace(b"Host", b"X-Forwarded-For: 6.6.6.6, 1.2.3.4\r\nHost")
            )
            assert sent_back(client).endswith(b"1.2.3.4")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs a socket of both kinds of addresses")
def test_a_proxy_with_an_ipv4_address_is_known_at_a_socket_of_ipv6_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener, served(listener):
        asked = b"GET /client HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close\r\n\r\n"
        assert answers_to(listener.getsockname()[1], asked).endswith(b"\r\n1.2.3.4")


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_head_that_does_not_come_is_not_waited_for(impatient: int, begun: bytes) -> None:
    assert answers_to(impatient, begun).startswith(b"HTTP/1.1 408")


def test_a_second_head_is_not_waited_for_either(impatient: int) -> None:
    with connect(impatient) as connection:
        connection.sendall(GET)
        sent_back(connection, end=b"well")
        time.sleep(1.3)  # an idle connection may stay
        connection.sendall(b"GET / HT")
        assert sent_back(connection).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo"])
def test_with_one_connection_too_many_the_longest_silent_one_is_refused(
    port: int, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals.clear()
    received, receive = threading.Event(), HttpToolsProtocol.data_received

    def noted(self: HttpToolsProtocol, data: bytes) -> None:
        receive(self, data)
        received.set()

    monkeypatch.setattr(HttpToolsProtocol, "data_received", noted)
    with connect(port) as first, connect(port) as second:
        first.sendall(begun)
        assert not begun or received.wait(60)  # what is not read at the end would reset the connection
        with connect(port) as third:
            for connection in (second, third):
                connection.sendall(LAST_GET)
                assert sent_back(connection).endswith(b"well")
        answer = sent_back(first)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b'{"error": "too many connections"' in answer
    assert refusals == [(503, "too many connections")]


def test_connections_whose_requests_are_answered_stay_and_the_new_one_is_refused(port: int) -> None:
    ended.clear()
    with connect(port) as first, connect(port) as second:
        for connection in (first, second):
            connection.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(10).startswith(b"HTTP/1.1")
        assert answers_to(port).startswith(b"HTTP/1.1 503")
    assert ended.wait(60)


def test_of_idle_connections_the_one_that_is_idle_longest_is_closed_without_a_word(port: int) -> None:
    with connect(port) as first, connect(port) as second:
        for connection in (first, second, first):
            connection.sendall(GET)
            sent_back(connection, end=b"well")
        with connect(port) as third:
            third.sendall(LAST_GET)
            assert sent_back(third).endswith(b"well")
        assert sent_back(second) == b""
        first.sendall(LAST_GET)
        assert sent_back(first).endswith(b"well")


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (b"hello\r\n\r\n", (400, "this is not a valid HTTP request")),
        (GET + b"\0\0\r\n\r\n", (400, "this is not a valid HTTP request")),
        (b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", (400, "this is not a valid HTTP request")),
        (b"GET / HT", (408, "no request within 1 s")),
    ],
)
def test_what_the_connection_refuses_is_told_to_the_server(
    impatient: int, sent: bytes, refusal: tuple[int, str]
) -> None:
    refusals.clear()
    answers_to(impatient, sent)
    assert refusals == [refusal]


def test_a_head_that_is_too_long_is_refused_as_json(port: int) -> None:
    answer = answers_to(port, b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 70_000)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.endswith(b'"message": "this is not a valid HTTP request"}')


@pytest.mark.parametrize(
    "head",
    [
        "POST /body HTTP/1.1|Host: x|Content-Length: 6|Transfer-Encoding: chunked",
        "POST /body HTTP/1.0|Host: x|Transfer-Encoding: chunked",
        "POST /body HTTP/1.1|Host: x|Content-Length: 3, 3",
        "POST /body HTTP/1.1|Host: x|Content-Length: 3|Content-Length: 4",
        "POST /body HTTP/1.1|Host: x|Content-Length: +3",
        "POST /body HTTP/1.1|Host: x|Content-Length: 3_0",
        "POST /body HTTP/1.1|Host: x|Transfer-Encoding: xchunked",
        "POST /body HTTP/1.1|Host: x|Transfer-Encoding: chunked, identity",
        "POST /body HTTP/1.1|Host: x|Transfer-Encoding: chunked|Transfer-Encoding: chunked",
        "GET / HTTP/1.1|Host: x|X : y",
        "GET / HTTP/1.1|Host: x|X: a| folded",
        "GET / HTTP/1.1|Host: x|X: a\0b",
        "GET / HTTP/1.1|X: no host",
        "GET / HTTP/1.1|Host: x|Host: y",
        "GET / HTTP/1.1|Host: x|" + "|".join(["a: b"] * 20_000),
        "GET / HTTP/1.1|Host: x|X-A: " + "a" * 200_000,
        "POST / HTTP/1.1|Host: x|Content-Length: -5",
        "POST / HTTP/1.1|Host: x|Content-Length: " + "9" * 5000,
        "BREW / HTTP/1.1|Host: x",
        "GET /\xff\xfe HTTP/1.1|Host: x",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "hello",
    ],
    ids=lambda head: head[:60],
)
def test_a_head_that_is_wrong_or_ambiguous_ends_the_connection(port: int, head: str) -> None:
    follower = b"0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(port) as connection, suppress(ConnectionError):
        connection.sendall(head.replace("|", "\r\n").encode("latin-1") + b"\r\n\r\n" + follower)
        answers = sent_back(connection)
        assert answers.startswith(b"HTTP/1.1 400 ")
        assert answers.count(b"HTTP/1.1") == 1


def test_lines_that_end_without_a_carriage_return_are_refused(port: int) -> None:
    assert answers_to(port, b"GET / HTTP/1.1\nHost: x\n\n").startswith(b"HTTP/1.1 400 ")


def test_requests_before_nonsense_are_answered(port: int) -> None:
    answers = answers_to(port, GET * 2 + b"\0\0\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1") == 2
    assert answers.endswith(b"well")


def test_an_answer_comes_in_one_piece(port: int) -> None:
    with connect(port) as connection:
        for _ in range(50):
            connection.sendall(GET)
            assert connection.recv(65536).endswith(b"\r\n\r\nwell")


def test_an_answer_without_body_is_sent_before_the_next(port: int) -> None:
    answers = answers_to(port, GET.replace(b"GET", b"HEAD"), GET.replace(b"GET", b"HEAD") + LAST_GET)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.count(b"well") == 1


def test_a_client_that_asks_whether_to_send_its_body_is_told_at_once(port: int) -> None:
    head = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    with connect(port) as connection:
        connection.sendall(head)
        assert sent_back(connection, end=b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"body")
        assert sent_back(connection, end=b"body").startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_breaks_off_in_nonsense_is_refused(port: int) -> None:
    head = b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answers_to(port, head, b"zz\r\n").startswith(b"HTTP/1.1 400 ")


def test_pipelined_requests_are_read_no_faster_than_they_are_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    begin = HttpToolsProtocol.on_headers_complete

    def noted(self: HttpToolsProtocol) -> None:
        begin(self)
        waiting.append(len(self.pipeline))

    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", noted)
    assert answers_to(port, GET * 3000 + LAST_GET).count(b"HTTP/1.1 200 OK") == 3001
    assert max(waiting) <= 8192 // len(GET) + 1


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@pytest.mark.parametrize(
    "request_end",
    [b"Content-Length: 4\r\n\r\nbody", b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"],
    ids=["length", "chunks"],
)
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(
    port: int, upgrade: bytes, request_end: bytes
) -> None:
    head = b"POST /body HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n"
    answers = answers_to(port, head + request_end[:-6], request_end[-6:] + LAST_GET)
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1") == 2
    assert b"\r\n\r\nbodyHTTP/1.1" in answers
    assert answers.endswith(b"well")


def test_an_offer_of_another_protocol_in_http_1_0_needs_no_host(port: int) -> None:
    answer = answers_to(port, b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"well")


def test_trailers_are_no_headers_however_many_come(port: int) -> None:
    head = b"POST /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answers = answers_to(port, head + b"0\r\n" + b"a:b\r\n" * 20_000 + b"\r\n" + LAST_GET)
    assert b"\r\n\r\n2 headersHTTP/1.1" in answers
    assert answers.endswith(b"well")


def test_an_answer_that_nobody_reads_is_given_up(impatient: int) -> None:
    ended.clear()
    with connect(impatient) as connection:
        connection.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ended.wait(60)


def test_the_rest_of_a_request_that_is_answered_may_not_go_on_for_ever(impatient: int) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        sent_back(connection, end=b"well")
        with suppress(ConnectionError):
            for _ in range(500):
                connection.sendall(b"x")
                time.sleep(0.01)
            pytest.fail("five seconds of it were taken")


def test_a_client_that_sends_more_than_is_read_sees_the_answer_before_the_end(port: int) -> None:
    """A connection that is closed while data arrives is reset, and then many clients do not read the answer."""
    with connect(port) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9000000\r\n\r\n")
        answer = sent_back(connection, end=b"well")
        for _ in range(9):
            connection.sendall(b"x" * 1_000_000)
        assert b"connection: close" in answer
        assert sent_back(connection) == b""


def test_the_rest_of_a_request_that_is_answered_may_come_before_the_next(impatient: int) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nre")
        sent_back(connection, end=b"well")
        connection.sendall(b"st")
        time.sleep(1.3)  # longer than a head or a rest would be waited for
        connection.sendall(LAST_GET)
        assert sent_back(connection).endswith(b"well")


@pytest.mark.parametrize("seconds", [0.05, 1.3])
def test_a_pipelined_request_is_not_taken_for_the_rest_of_the_one_before(impatient: int, seconds: float) -> None:
    with connect(impatient) as connection:
        post = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
        connection.sendall(GET + post + b"ab")
        time.sleep(seconds)
        connection.sendall(b"cd")
        sent_back(connection, end=b"abcd")
        time.sleep(1.3)  # an idle connection may stay
        connection.sendall(LAST_GET)
        assert sent_back(connection).endswith(b"well")


def test_a_pipelined_request_is_not_waited_for_after_the_last_answer(port: int) -> None:
    post = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab"
    assert answers_to(port, GET.replace(b"/", b"/last", 1) + post).endswith(b"well")


def test_an_answer_that_is_read_slowly_is_not_given_up(impatient: int) -> None:
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", impatient))
        slow.settimeout(60)
        slow.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received, started = 0, time.monotonic()
        while chunk := slow.recv(8192):
            received += len(chunk)
            time.sleep(0.02)
        assert received > 1_000_000
        assert time.monotonic() - started > 2, "it was not read slowly"


def test_others_get_their_turn_while_much_arrives(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    receive = HttpToolsProtocol.data_received

    def noted(self: HttpToolsProtocol, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", noted)
    with connect(port) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent_back(connection, end=b"well")
        connection.sendall(b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n" + LAST_GET)
        assert sent_back(connection).endswith(b"well")
    assert sum(sizes) > 60_000
    assert max(sizes) <= 8192


def test_answers_that_nobody_reads_do_not_hold_a_connection() -> None:
    with served(listener := tcp_listener(), patience_seconds=1.0) as server, socket.socket() as idle:
        port = listener.getsockname()[1]
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect(("127.0.0.1", port))
        # More than the system's buffers take, and less than the server's.
        idle.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: server.server_state.total_requests == 1)
        wait_until(lambda: not server.server_state.connections)
        with connect(port) as first, connect(port) as second:
            for connection in (first, second):
                connection.sendall(LAST_GET)
                assert sent_back(connection).endswith(b"well")
