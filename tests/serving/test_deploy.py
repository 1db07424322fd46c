"""The files of deploy/ as their own programs read them: nginx and HAProxy before two servers, and Kubernetes."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from tests.browser import Browser
from tests.cli.test_app import options_of
from tests.registries import pip_install
from tests.serving.servers import Server, Site, save_model, under_load
from tests.waiting import wait_until

_FILES = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
_ARGUMENTS = {"nginx": ["-c"], "haproxy": ["-db", "-f"]}
# What Debian's nginx.conf holds around the files of conf.d, with folders that any user may write.
_NGINX = """daemon off; master_process off; pid {0}/pid; error_log {0}/errors; events {{}}
http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;
uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;
{1}}}"""


def written(
    program: str,
    folder: Path,
    repository: Path,
    *,
    port: int,
    servers: Sequence[int],
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """The file for a proxy, with these ports and limits; its program finds it right, without a warning."""
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}; make programs installs nginx on Debian, as root")
    text = (repository / "deploy" / _FILES[program]).read_text(encoding="utf-8").replace("# server 127", "server 127")
    for limit, short in limits.items():
        assert text.count(f"{limit};") == 1
        text = text.replace(f"{limit};", f"{limit.split()[0]} {short};")
    for given, own in zip((8080, 8000, 8001), (port, *servers), strict=True):
        text, count = re.subn(rf"(127\.0\.0\.1:|listen |bind :){given}\b", rf"\g<1>{own}", text)
        assert count == 1
    file = folder / _FILES[program]
    file.write_text(_NGINX.format(folder, text) if program == "nginx" else text, encoding="utf-8")
    check = [program, "-t" if program == "nginx" else "-c", *_ARGUMENTS[program], str(file)]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "warn" not in found.stderr.lower()
    return file


@contextmanager
def running(
    program: str,
    folder: Path,
    repository: Path,
    servers: Sequence[Server],
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Site]:
    """A proxy before these servers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = written(program, folder, repository, port=port, servers=[one.port for one in servers], limits=limits)
    process = subprocess.Popen([program, *_ARGUMENTS[program], str(file)])
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


@pytest.mark.parametrize("program", _FILES)
def test_the_proxys_own_program_finds_its_file_right(program: str, tmp_path: Path, repository: Path) -> None:
    written(program, tmp_path, repository, port=8080, servers=[8000, 8001])


@pytest.mark.parametrize("program", _FILES)
def test_the_page_behind_a_proxy_translates_at_a_name_with_a_port(
    program: str, browser: Browser, models: dict[str, Path], tmp_path: Path, repository: Path
) -> None:
    written(program, tmp_path, repository, port=8080, servers=[8000, 8001])
    server = Server(tmp_path / "log", "-m", models["en-de"], "--allow-host", "nmt.example.org").wait()
    with running(program, tmp_path, repository, [server, server]) as site:
        browser.open(f"http://nmt.example.org:{site.port}")
        browser.until("$('into').options.length > 0")
        browser.run("$('source').focus()")
        browser.type("the old sea")
        browser.until("document.querySelectorAll('#target .word').length > 0")
        assert browser.console == []
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("program", _FILES)
def test_a_proxy_loses_no_request_while_one_of_two_servers_has_no_model_and_then_ends(
    program: str, tmp_path: Path, repository: Path
) -> None:
    written(program, tmp_path, repository, port=8080, servers=[8000, 8001])
    models = [save_model(tmp_path / name / "model", "en", "de") for name in ("one", "two")]
    named = ["--allow-host", "nmt.example.org"]
    servers = [Server(tmp_path / f"{model.parent.name}.log", "-m", model, *named) for model in models]
    first, second = (server.wait() for server in servers)
    translated = 'nmt_requests_total{code="200",endpoint="/v1/translate"}'
    others = 'nmt_requests_total{code="404",endpoint="other"}'
    with running(program, tmp_path, repository, servers) as site:
        answer = site.post("/v1/translate", {"text": "the old sea"}, Host="nmt.example.org")
        assert answer.json["translations"][0]["text"]
        assert site.get("/v1/models", Host="evil.example").status == 403
        for path in ("/metrics", "/metrics/", "/%6Detrics"):
            assert [site.get(path).status, site.post(path, {}).status] == [404, 404]
            assert first.metric(others) == second.metric(others) == 0  # the proxy itself has answered
        with under_load(site) as load, first.says("next try in"):
            while not (first.metric(translated) and second.metric(translated)):
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
    with running("nginx", tmp_path, repository, [server, server], _HURRIED) as site:
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
