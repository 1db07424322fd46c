"""The listener at an address or a path, and a server that is asked there."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.serving.listener import Listener
from tests.serving.servers import Server


def listener_at(path: Path) -> Listener:
    return Listener(host="", port=0, uds=path)


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


class Connection(http.client.HTTPConnection):
    """A connection to the Unix socket at `host`."""

    def connect(self) -> None:
        self.sock = connect(Path(self.host))


def test_the_path_takes_connections_once_it_listens_and_goes_with_the_listener(tmp_path: Path) -> None:
    path = tmp_path / "nmt.sock"
    with closing(listener_at(path)) as listener:
        with pytest.raises(ConnectionRefusedError):
            connect(path)
        listener.listen()
        with connect(path) as client:
            accepted, _ = listener.socket.accept()
            accepted.send(b"x")
            assert client.recv(1) == b"x"
            accepted.close()
        assert listener.url == f"unix:{path}"
    assert not path.exists()


def test_the_path_of_a_server_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "nmt.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket()
    with closing(listener_at(path)) as listener:
        listener.listen()
        connect(path).close()


def test_a_second_server_leaves_the_path_to_the_first(tmp_path: Path) -> None:
    path = tmp_path / "nmt.sock"
    with closing(listener_at(path)) as first:
        first.listen()
        with pytest.raises(UsageError, match=f"cannot listen at {path}: Address already in use"):
            listener_at(path)
        connect(path).close()


def test_a_server_that_ends_leaves_the_path_of_another(tmp_path: Path) -> None:
    path = tmp_path / "nmt.sock"
    first = listener_at(path)  # it never listens, as while models are loaded
    with closing(listener_at(path)) as second:
        second.listen()
        first.close()
        connect(path).close()


def test_a_path_where_no_socket_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path, reason in (
        (tmp_path / "file", "Address already in use"),
        (tmp_path / "none" / "nmt.sock", "No such file or directory"),
        (tmp_path / ("x" * 120), "AF_UNIX path too long"),
    ):
        with pytest.raises(UsageError, match=f"cannot listen at {path}: {reason}"):
            listener_at(path)
    assert (tmp_path / "file").read_text() == "kept"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_port_that_is_taken_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(UsageError, match=r"cannot listen at 127\.0\.0\.1:\d+: Address already in use") as error,
    ):
        Listener(host="127.0.0.1", port=other.getsockname()[1], uds=None)
    assert error.value.setting == "port"


def test_a_server_is_asked_at_a_path(models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "nmt.sock"
    server = Server(tmp_path / "log", "-m", models["en-de"], "--uds", path).wait()
    assert f"ready: unix:{path}" in server.log
    with closing(Connection(str(path))) as connection:
        asked = json.dumps({"text": "the old sea"})
        connection.request("POST", "/v1/translate", asked, {"Host": "localhost", "Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["translations"][0]["text"]
    assert server.stop() == 0
    assert not path.exists()
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("host", "is_for_this_machine"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_the_address_for_people_is_one_that_can_be_asked(host: str, is_for_this_machine: bool) -> None:
    with closing(Listener(host=host, port=0, uds=None)) as listener:
        listener.listen()
        address = urlsplit(listener.url)
        assert address.hostname is not None
        assert address.hostname not in ("0.0.0.0", "::")
        assert listener.is_for_this_machine == is_for_this_machine
        socket.create_connection((address.hostname, address.port)).close()


def test_localhost_is_the_address_that_programs_of_ipv4_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, ("::1", 0, 0, 0)), (socket.AF_INET, ("127.0.0.1", 0))]
    answers = [(family, socket.SOCK_STREAM, 6, "", address) for family, address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    with closing(Listener(host="localhost", port=0, uds=None)) as listener:
        assert urlsplit(listener.url).hostname == "127.0.0.1"


def test_a_server_for_all_without_keys_says_so_and_where_it_is(models: dict[str, Path], tmp_path: Path) -> None:
    server = Server(tmp_path / "log", "-m", models["en-de"], "--host", "*").wait()
    (url,) = (event["message"].split()[-1] for event in server.events if "ready:" in event.get("message", ""))
    with urlopen(f"{url}/v1/models") as answer:
        assert answer.status == 200
    assert [event["level"] for event in server.events if "--api-key-file" in event.get("message", "")] == ["warning"]
    assert server.get("/v1/models", Host="evil.example").status == 403
    assert server.stop() == 0
