"""The files of deploy/ as their own programs read them: nginx before two servers, and Kubernetes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.browser import Browser
from tests.cli.test_app import options_of
from tests.registries import pip_install
from tests.serving.servers import Server, Site, save_model, under_load
from tests.serving.test_files import LIBRE, send
from tests.waiting import wait_until

# What Debian's nginx.conf holds around the files of conf.d, with folders that any user may write.
_NGINX = """daemon off; master_process off; pid {0}/pid; error_log {0}/errors; events {{}}
http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;
uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;
{1}}}"""


def written(
    folder: Path,
    repository: Path,
    *,
    port: int,
    servers: Sequence[int],
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """The file for nginx, with these ports and limits; nginx finds it right, without a warning."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx; make programs installs it on Debian, as root")
    text = (repository / "deploy" / "nginx.conf").read_text(encoding="utf-8").replace("# server 127", "server 127")
    for limit, short in limits.items():
        assert text.count(f"{limit};") == 1
        text = text.replace(f"{limit};", f"{limit.split()[0]} {short};")
    for given, own in zip((8080, 8000, 8001), (port, *servers), strict=True):
        text, count = re.subn(rf"(127\.0\.0\.1:|listen ){given}\b", rf"\g<1>{own}", text)
        assert count == 1
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder, text), encoding="utf-8")
    found = subprocess.run(["nginx", "-t", "-c", str(file)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "warn" not in found.stderr.lower()
    return file


@contextmanager
def running(
    folder: Path,
    repository: Path,
    servers: Sequence[Server],
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Site]:
    """nginx before these servers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = written(folder, repository, port=port, servers=[one.port for one in servers], limits=limits)
    process = subprocess.Popen(["nginx", "-c", str(file)])
    site = Site(port)
    try:
        wait_until(lambda: is_ready(site), process=process)
        yield site
    finally:
        process.terminate()
        process.wait(timeout=60)


def is_ready(site: Site) -> bool:
    with suppress(ConnectionRefusedError):
        return site.get("/ready").status == 200
    return False


def test_the_page_behind_nginx_translates_at_a_name_with_a_port(
    browser: Browser, models: dict[str, Path], tmp_path: Path, repository: Path
) -> None:
    server = Server(tmp_path / "log", "-m", models["en-de"], "--allow-host", "nmt.example.org").wait()
    with running(tmp_path, repository, [server, server]) as site:
        browser.open(f"http://nmt.example.org:{site.port}")
        browser.until("$('into').options.length > 0")
        browser.run("$('source').focus()")
        browser.type("the old sea")
        browser.until("document.querySelectorAll('#target .word').length > 0")
        assert browser.console == []
    assert server.stop() == 0


def test_a_client_finds_its_documents_and_glossaries_at_one_of_two_servers(
    servers: dict[str, Server], tmp_path: Path, repository: Path
) -> None:
    with running(tmp_path, repository, [servers["open"], servers["several"]]) as site:
        for _ in range(2):
            sent = send(site, "/translate_file", LIBRE, b"<p>the old sea")
            assert site.get(urlsplit(sent.json["translatedFileUrl"]).path).status == 200
            pair = {"source_lang": "en", "target_lang": "de"}
            made = site.post("/v2/glossaries", pair | {"name": "ships", "entries": "sea\tMeer"}).json
            path = f"/v2/glossaries/{made['glossary_id']}"
            assert [site.get(path).status, site.ask("DELETE", path).status] == [200, 204]


@pytest.mark.slow
def test_nginx_waits_for_a_document_longer_than_for_a_text(server: Server, tmp_path: Path, repository: Path) -> None:
    hurried = {"proxy_read_timeout 60s": "2s"}
    with running(tmp_path, repository, [server, server], hurried) as site, ThreadPoolExecutor(2) as pool:
        workers = server.worker_pids()
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        text = pool.submit(site.post, "/v1/translate", {"text": "the old sea", "source": "en"})
        document = pool.submit(send, site, "/translate_file", LIBRE, b"<p>the old sea")
        time.sleep(4)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        assert (text.result().status, document.result().status) == (504, 200)


@pytest.mark.slow
def test_nginx_loses_no_request_while_one_of_two_servers_has_no_model_and_then_ends(
    tmp_path: Path, repository: Path
) -> None:
    models = [save_model(tmp_path / name / "model", "en", "de") for name in ("one", "two")]
    named = ["--allow-host", "nmt.example.org"]
    servers = [Server(tmp_path / f"{model.parent.name}.log", "-m", model, *named) for model in models]
    first, second = (server.wait() for server in servers)
    translated = 'nmt_requests_total{code="200",endpoint="/v1/translate"}'
    others = 'nmt_requests_total{code="404",endpoint="other"}'
    with running(tmp_path, repository, servers) as site:
        answer = site.post("/v1/translate", {"text": "the old sea"}, Host="nmt.example.org")
        assert answer.json["translations"][0]["text"]
        if second.metric(translated):  # nginx sends all requests of an address to one server
            first, second, models = second, first, models[::-1]
        assert site.get("/v1/models", Host="evil.example").status == 403
        for path in ("/metrics", "/metrics/", "/%6Detrics"):
            assert [site.get(path).status, site.post(path, {}).status] == [404, 404]
            assert first.metric(others) == second.metric(others) == 0  # the proxy itself has answered
        with under_load(site) as load, first.logging_text("next try in"):
            while len(load.answers) < 20:
                time.sleep(0.05)
            (models[0] / "model.safetensors").unlink()
            os.kill(first.worker_pids()[0], signal.SIGKILL)
        assert first.post("/v1/translate", {"text": "the old sea"}).status == 503
        with under_load(site) as later:
            while len(later.answers) < 20:
                time.sleep(0.05)
            assert first.stop() == 0
            while len(later.answers) < 40:
                time.sleep(0.05)
        assert {answer.status for answer in load.answers + later.answers} == {200}
        assert load.refused == later.refused == 0
    assert second.stop() == 0


_HURRIED = {
    "client_header_timeout 15s": "1s",
    "client_body_timeout 30s": "1s",
    "send_timeout 15s": "1s",
    "limit_conn nmt_address 100": "nmt_address 2",
}
_HEAD = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"


def connected(site: Site, sent: bytes, *, address: str = "127.0.0.1") -> socket.socket:
    """A connection from this address, on which a client sends something and then waits."""
    connection = socket.create_connection(("127.0.0.1", site.port), timeout=60, source_address=(address, 0))
    connection.sendall(sent)
    return connection


def all_sent_back(connection: socket.socket) -> bytes:
    """Everything until the proxy ends the connection."""
    received = b""
    with connection, suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


@pytest.mark.slow
def test_nginx_ends_slow_silent_and_greedy_clients_and_answers_the_others(
    server: Server, tmp_path: Path, repository: Path
) -> None:
    with running(tmp_path, repository, [server, server], _HURRIED) as site:
        silent = [connected(site, sent) for sent in (b"", b"GET / HT") for _ in range(50)]
        unread = connected(site, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
        slow = [connected(site, _HEAD + b"\r\nsea", address="127.0.0.2") for _ in range(2)]
        greedy = connected(site, _HEAD + b"\r\n", address="127.0.0.2")
        assert all_sent_back(greedy).startswith(b"HTTP/1.1 503 ")
        assert site.post("/v1/translate", {"text": "the old sea", "source": "en"}).status == 200
        large = connected(site, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 30_000 + b"\r\n\r\n")
        assert all_sent_back(large).startswith(b"HTTP/1.1 400 ")
        for connection in [*silent, *slow]:
            assert all_sent_back(connection)[:12] in (b"", b"HTTP/1.1 408")
        time.sleep(3)  # nobody reads
        assert all_sent_back(unread).count(b"HTTP/1.1 200") < 500
        assert site.get("/health").status == 200


def documents(repository: Path) -> dict[str, Any]:
    """What deploy/kubernetes.yaml describes, by kind."""
    text = (repository / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.slow
def test_kubernetes_finds_its_file_right(repository: Path, tmp_path: Path) -> None:
    pip_install(tmp_path, "kubernetes-validate==1.37.0")  # the schemas of all versions of Kubernetes
    file = repository / "deploy" / "kubernetes.yaml"
    check = [sys.executable, "-m", "kubernetes_validate", "--strict", str(file)]
    found = subprocess.run(
        check, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(" passed ") == len(documents(repository)) == 4


def test_kubernetes_asks_the_server_what_it_answers(repository: Path, server: Server) -> None:
    found = documents(repository)
    pod = found["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server.get(container[probe]["httpGet"]["path"]).status == 200
    told = {note: text for note, text in pod["metadata"]["annotations"].items() if note.startswith("prometheus.io/")}
    assert told["prometheus.io/port"] == str(container["ports"][0]["containerPort"]) == "8000"
    (metric,) = found["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert f"\n{metric['pods']['metric']['name']}{{" in server.get(told["prometheus.io/path"]).body.decode()
    labels = pod["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    options = [word for word in container["args"] if word.startswith("--")]
    assert set(options) <= options_of("serve")
