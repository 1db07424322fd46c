from __future__ import annotations

import errno
import hashlib
import http.client
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from nmt_cli.cache import cache_folder
from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.preparing import download
from nmt_cli.preparing.download import cached_file, download_file
from tests.preparing.corpus_files import refusal, silent
from tests.preparing.file_server import FileServer, serve_files
from tests.waiting import wait_until

CONTENT = Random(1).randbytes(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "_PAUSES", (0.0, 0.0))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.tgz").write_bytes(CONTENT)
    with serve_files(tmp_path / "web") as server:
        yield server


def fetch(
    server: FileServer,
    name: str = "a.tgz",
    *,
    size: int | None = None,
    sha256: str | None = None,
    progress: Progress = silent,
    newer_than: float = 0.0,
) -> Path:
    url = f"{server.address}/{name}"
    return download_file(url, size=size, sha256=sha256, progress=progress, newer_than=newer_than)


def cached(server: FileServer) -> Path:
    return cached_file(f"{server.address}/a.tgz")


def break_off(server: FileServer) -> DataError:
    """The error of a download that breaks off after 1,000,000 bytes, and whose server then refuses to go on."""
    server.cuts = [1_000_000]

    def stop(stage: str, done: int, total: int | None) -> None:
        server.statuses = [503] * 9

    error = refusal(lambda: fetch(server, sha256=DIGEST, progress=stop))
    server.statuses = []
    return error


def test_a_file_is_downloaded_once_and_its_facts_are_told(
    server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="nmt_cli")
    seen: list[tuple[str, int, int | None]] = []
    file = fetch(server, progress=lambda *event: seen.append(event))
    assert file == cached(server)
    assert file.is_relative_to(tmp_path / "cache" / "downloads")
    assert file.read_bytes() == CONTENT
    assert f"downloaded a.tgz: 3,000,000 bytes, SHA-256 {DIGEST}" in caplog.messages
    assert seen[-1] == ("downloading a.tgz", len(CONTENT), len(CONTENT))
    assert fetch(server, size=len(CONTENT), sha256=DIGEST) == file
    assert len(server.requests) == 1
    assert sorted(path.name for path in file.parent.iterdir() if not path.name.endswith(".lock")) == ["a.tgz"]


def test_a_download_that_breaks_off_goes_on_where_it_was(server: FileServer) -> None:
    server.cuts = [1_000_000, 500_000]
    assert fetch(server, sha256=DIGEST).read_bytes() == CONTENT
    assert [asked for _, _, asked in server.requests] == [None, "bytes=1000000-", "bytes=1500000-"]


def test_what_has_come_stays_for_the_next_command_if_a_hash_checks_the_whole(server: FileServer) -> None:
    error = break_off(server)
    assert error.message == f"cannot download {server.address}/a.tgz: the server answers 503 Service Unavailable"
    assert fetch(server, sha256=DIGEST).read_bytes() == CONTENT
    assert server.requests[-1][2] == "bytes=1000000-"
    cached(server).unlink()
    break_off(server)
    (server.folder / "a.tgz").write_bytes(CONTENT[::-1])
    assert fetch(server).read_bytes() == CONTENT[::-1]
    assert server.requests[-1][2] is None


def test_an_address_without_a_hash_is_fetched_again_when_its_copy_is_too_old(
    server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    file = fetch(server)
    (server.folder / "a.tgz").write_bytes(CONTENT[::-1])
    assert fetch(server).read_bytes() == CONTENT
    later = file.stat().st_mtime + 1
    assert fetch(server, sha256=DIGEST, newer_than=later).read_bytes() == CONTENT
    server.statuses = [404]
    assert fetch(server, newer_than=later).read_bytes() == CONTENT
    assert "the server answers 404 Not Found; its copy in the cache is used" in caplog.text
    assert fetch(server, newer_than=later).read_bytes() == CONTENT[::-1]


def test_a_network_that_fails_during_the_response_is_not_taken_for_the_disk(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, problems = http.client.HTTPResponse.read, [OSError(errno.EHOSTUNREACH, "No route to host")]

    def failing(response: http.client.HTTPResponse, amount: int) -> bytes:
        if problems:
            raise problems.pop()
        return real(response, amount)

    monkeypatch.setattr(http.client.HTTPResponse, "read", failing)
    assert fetch(server, sha256=DIGEST).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_an_address_is_quoted_where_it_has_to_be(server: FileServer) -> None:
    refusal(lambda: fetch(server, "größe a%20b.tgz"))
    assert server.requests[-1][1] == "/gr%C3%B6%C3%9Fe%20a%20b.tgz"
    ours, theirs = (cached_file(f"https://host/download.php?file={name}.zip") for name in ("a", "b"))
    assert ours != theirs
    assert ours.name == theirs.name == "download.php"


def test_a_part_that_was_whole_already_is_no_obstacle(server: FileServer) -> None:
    file = cached(server)
    file.parent.mkdir(parents=True)
    file.with_name(".a.tgz.part").write_bytes(CONTENT)
    assert fetch(server, sha256=DIGEST).read_bytes() == CONTENT


def test_errors_that_pass_are_waited_for_and_others_are_not(server: FileServer) -> None:
    server.statuses = [503, 429]
    assert fetch(server).read_bytes() == CONTENT
    cached(server).unlink()
    server.statuses = [416]  # although no part is there
    assert fetch(server).read_bytes() == CONTENT
    server.requests.clear()
    error = refusal(lambda: fetch(server, "b.tgz"))
    assert error.message.endswith("/b.tgz: the server answers 404 Not Found")
    assert error.hint.startswith("check the address, and whether it needs a login; or fetch it by other means and save")
    assert len(server.requests) == 1


def test_no_network_is_said_at_once_with_what_to_do(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSES", (60.0,))
    error = refusal(lambda: download_file("http://127.0.0.1:9/a.tgz", size=None, sha256=None, progress=silent))
    assert "cannot download http://127.0.0.1:9/a.tgz: [Errno 111] Connection refused" in error.message
    assert error.hint == (
        "check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY; or fetch it by "
        f"other means and save it as {cached_file('http://127.0.0.1:9/a.tgz')}"
    )


def test_a_wrong_checksum_is_an_error_and_the_next_command_downloads_again(server: FileServer) -> None:
    wrong = "0" * 64
    error = refusal(lambda: fetch(server, sha256=wrong))
    assert error.message == f"a.tgz is not the file that it should be: its SHA-256 is {DIGEST}, not {wrong}"
    assert error.where == f"{server.address}/a.tgz"
    assert error.hint == "fetch it again; if another version is meant, correct bytes and sha256 in the corpus file"
    error = refusal(lambda: fetch(server, size=7))
    assert error.message == "a.tgz is not the file that it should be: it has 3,000,000 bytes, not 7"
    assert len(server.requests) == 2
    cached(server).write_bytes(CONTENT[::-1])  # as long as it should be
    assert fetch(server, sha256=DIGEST).read_bytes() == CONTENT
    cached(server).write_bytes(CONTENT)  # by hand
    assert fetch(server, sha256=DIGEST) == cached(server)
    assert len(server.requests) == 3


def test_a_disk_that_fills_up_keeps_what_has_come(server: FileServer) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    error = refusal(lambda: fetch(server, sha256=DIGEST, progress=full))
    assert error.message == "cannot write a.tgz: the disk is full"
    assert error.where == str(cached(server))
    assert error.hint.startswith("free some space, then give the same command again, or ")
    assert fetch(server, sha256=DIGEST).read_bytes() == CONTENT
    assert server.requests[-1][2] is not None


# It goes on with the download once its stdin ends.
PROGRAM = """
import sys
from nmt_cli import console
from nmt_cli.preparing.download import download_file
console.configure_logging(quiet=False)
print(download_file(sys.argv[1], size=None, sha256=None, progress=lambda *event: sys.stdin.read()), flush=True)
"""


def test_two_processes_that_want_the_same_file_download_it_once(server: FileServer) -> None:
    command = [sys.executable, "-c", PROGRAM, f"{server.address}/a.tgz"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(command, stdin=subprocess.PIPE, **pipes)
    wait_until(lambda: server.requests, process=first, seconds=300)
    second = subprocess.Popen(command, stdin=subprocess.DEVNULL, **pipes)
    assert second.stderr is not None
    told = second.stderr.readline()
    outputs = [process.communicate(timeout=300)[0] for process in (first, second)]
    assert "waiting for another process that writes a.tgz to the cache" in told
    assert [stdout.strip() for stdout in outputs] == [str(cached(server))] * 2
    assert len(server.requests) == 1


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_CACHE", "/big/nmt")
    assert cache_folder() == Path("/big/nmt")
    monkeypatch.delenv("NMT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/nmt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "nmt"
    assert cached_file("https://user:secret@host:80/a/../b%20c/d.tgz").parts[-4:] == ("host_80", "a", "b c", "d.tgz")


def test_a_user_without_a_home_folder_is_told_to_name_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NMT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    error = refusal(cache_folder)
    assert (error.message, error.hint) == (
        "this user has no home folder for the cache",
        "export NMT_CACHE=FOLDER",
    )


def test_a_cache_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "file"))
    error = refusal(lambda: download_file("http://127.0.0.1:9/a.tgz", size=None, sha256=None, progress=silent))
    assert error.message == "cannot write a.tgz: a file stands where a folder must be"
    assert error.hint == "name a folder on another disk: export NMT_CACHE=FOLDER"
