"""What an operator does to a server, and what happens to it: ends, swaps, deaths, wrong starts."""

from __future__ import annotations

import os
import pty
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from nmt_cli import devices
from nmt_cli.api import Translator
from nmt_cli.cli.serve import serve
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.serving import server
from nmt_cli.serving.server import ServerSettings
from tests.serving.servers import Server, save_model, under_load
from tests.serving.test_files import LIBRE, send
from tests.waiting import wait_until


@pytest.fixture
def model(replaceable: Path) -> Path:
    return replaceable


@pytest.fixture
def operated(servers: dict[str, Server]) -> Server:
    return servers["operated"]


def text_of(server: Server) -> str:
    text: str = server.post("/v1/translate", {"text": "the old sea"}).json["translations"][0]["text"]
    return text


def test_a_new_model_is_swapped_in_under_load_and_no_request_fails(operated: Server, model: Path) -> None:
    before = text_of(operated)
    with under_load(operated) as load, operated.logging_text("is loaded in its place"):
        save_model(model, "en", "de", seed=4, overwrite=True)
        operated.process.send_signal(signal.SIGHUP)
    assert ({answer.status for answer in load.answers}, load.refused) == ({200}, 0)
    expected = Translator.from_pretrained(model, device="cpu").translate(["the old sea"])[0].text
    assert text_of(operated) == expected != before
    assert len(operated.worker_pids()) == 1


@pytest.mark.slow
def test_a_server_ends_with_its_terminal(model: Path) -> None:
    server_id, terminal = pty.fork()
    if server_id == 0:
        options = ["--port", "0", "--device", "cpu", "--threads", "1", "--workers", "1"]
        command = [sys.executable, "-P", "-m", "nmt_cli", "serve", "-m", str(model), *options]
        os.execve(sys.executable, command, os.environ | {"COLUMNS": "300"})  # no line is wrapped
    shown = b""
    while b"ready: http" not in shown:
        shown += os.read(terminal, 1024)
    os.kill(server_id, signal.SIGHUP)
    while b"has not changed" not in shown:
        shown += os.read(terminal, 1024)
    os.close(terminal)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(server_id, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ended == (server_id, 0)


def test_a_model_that_has_not_changed_is_not_loaded_again(operated: Server) -> None:
    workers = operated.worker_pids()
    with operated.logging_text(" has not changed"):
        operated.process.send_signal(signal.SIGHUP)
    assert operated.worker_pids() == workers


def test_a_broken_model_is_not_swapped_in(operated: Server, model: Path) -> None:
    before = text_of(operated)
    (model / "model.safetensors").rename(model / "kept")
    with operated.logging_text("the old model stays: "):
        operated.process.send_signal(signal.SIGHUP)
    (model / "kept").rename(model / "model.safetensors")
    assert text_of(operated) == before
    assert operated.get("/ready").status == 200


def test_keys_are_revoked_by_sighup_and_a_wrong_file_changes_nothing(strict: Server, models: dict[str, Path]) -> None:
    file = strict.log_file.with_name("keys")
    keys = file.read_text()
    asked = {"text": "sea"}
    config = models["en-de"] / "config.yaml"
    config.rename(models["en-de"] / "kept")  # so no time goes into a new worker
    try:
        for text, told, status in (
            (keys.replace("alice", "#"), "2 keys are read from ", 403),
            ("nonsense", "the old keys stay: line 1 is not a key", 403),
            (keys, "3 keys are read from ", 200),
        ):
            file.write_text(text)
            with strict.logging_text("the old model stays: "):
                with strict.logging_text(told):
                    strict.process.send_signal(signal.SIGHUP)
                assert strict.post("/v1/translate", asked, X_API_Key="alice-secret-key").status == status
    finally:
        file.write_text(keys)
        (models["en-de"] / "kept").rename(config)


def test_a_dead_worker_is_replaced_and_its_sentences_are_translated(operated: Server) -> None:
    restarts = operated.metric('nmt_worker_restarts_total{model="en-de"}')
    with under_load(operated) as load, operated.logging_text("a new worker serves en-de"):
        time.sleep(0.2)
        (worker,) = operated.worker_pids()
        with operated.logging_text("a worker of en-de is replaced: a worker process was killed (SIGKILL)"):
            os.kill(worker, signal.SIGKILL)
        assert operated.get("/ready").status == 503
    assert ({answer.status for answer in load.answers}, load.refused) == ({200}, 0)
    assert operated.metric('nmt_worker_restarts_total{model="en-de"}') == restarts + 1
    assert operated.get("/ready").status == 200


def test_sigterm_under_load_answers_every_request_that_was_accepted(models: dict[str, Path], tmp_path: Path) -> None:
    # Not a server of other tests: the processes of a test run take tests in any order.
    server = Server(tmp_path / "log", "-m", models["en-de"]).wait()
    (worker,) = server.worker_pids()
    page = "".join(f"<p>the old sea {number}" for number in range(4000)).encode()
    with ThreadPoolExecutor(1) as pool:
        document = pool.submit(send, server, "/translate_file", LIBRE, page)
        wait_until(lambda: server.metric("nmt_requests_in_flight") == 2)  # and this one
        with under_load(server, clients=8) as load:
            while len(load.answers) < 8:
                time.sleep(0.02)
            assert server.stop() == 0
            wait_until(lambda: load.refused == 8)
    # It would take longer than an operator waits.
    assert (document.result().status, "retry-after" in document.result().headers) == (503, True)
    # As many answers have come as the server has taken requests.
    assert server.log.count('"endpoint": "/v1/translate"') == len(load.answers)
    assert {answer.status for answer in load.answers} == {200}
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert server.events[-1]["message"] == "all requests are answered"


def test_a_second_ctrl_c_ends_a_server_whose_worker_hangs(models: dict[str, Path], tmp_path: Path) -> None:
    server = Server(tmp_path / "log", "-m", models["en-de"]).wait()
    (worker,) = server.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.post, "/v1/translate", {"text": "sea"})
        wait_until(lambda: server.metric("nmt_requests_in_flight") == 2)  # and this one
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        server.process.wait(timeout=30)
    assert "ended at once" in server.log
    assert "Traceback" not in server.log
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.parametrize("is_ready", [False, True], ids=["at the start", "after SIGHUP"])
def test_a_server_that_ends_while_workers_start_leaves_nothing(tmp_path: Path, is_ready: bool) -> None:
    model = save_model(tmp_path / "models" / "model", "en", "de")
    server = Server(tmp_path / "log", "-m", model, "--workers", "1" if is_ready else "2")
    if is_ready:
        server.wait()
        save_model(model, "en", "de", seed=4, overwrite=True)
        server.process.send_signal(signal.SIGHUP)
    while len(workers := server.worker_pids()) < 2:
        assert server.process.poll() is None, server.log
    assert server.stop() == 0
    told = "all requests are answered" if is_ready else "ended before the models were loaded"
    assert server.events[-1]["message"] == told
    assert "Traceback" not in server.log
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_systemd_is_told_when_a_quiet_server_is_ready_and_when_it_ends(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0nmt-test-" + tmp_path.name + str(os.getpid()))
        systemd.settimeout(100)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + systemd.getsockname()[1:].decode())
        server = Server(tmp_path / "log", "-m", models["en-de"], "--quiet")
        assert systemd.recv(100) == b"READY=1"
        assert server.wait().get("/health").status == 200
        assert server.stop() == 0
        assert systemd.recv(100) == b"STOPPING=1"
    # Even a quiet server prints its address, because the system has chosen the port.
    assert [event["message"] for event in server.events] == [f"ready: {server.url}"]


def test_a_request_has_an_id_in_its_answer_and_in_its_lines_of_the_log(server: Server) -> None:
    with server.logging_text('"request_id": "trace/7-b", "event": "request"'):
        given = server.post("/v1/translate", {"text": "sea", "source": "en"}, X_Request_ID="trace/7-b")
    assert given.headers["x-request-id"] == "trace/7-b"
    assert [event["endpoint"] for event in server.events if event.get("request_id") == "trace/7-b"] == ["/v1/translate"]
    with server.logging_text('"endpoint": "/v1/models"'):
        made = [server.get("/nothing", X_Request_ID=wrong).headers["x-request-id"] for wrong in ("a b", "x" * 129, "")]
        server.get("/v1/models")  # its line comes last
    assert len(set(made)) == 3
    assert all(len(one) == 16 for one in made)
    assert set(made) < {event.get("request_id") for event in server.events}


def test_a_setting_that_the_worker_refuses_is_an_error_of_the_server(models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="there is no precision called 'int3'"):
        serve(model=[models["en-de"]], device="cpu", precision="int3", workers=1, port=0)


@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_named(models: dict[str, Path], host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot listen at {host}:0: ") as error:
        serve(model=[models["en-de"]], host=host, port=0)
    assert error.value.setting == "host"


def test_a_worker_for_each_cpu_and_one_on_a_gpu(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[ServerSettings] = []
    monkeypatch.setattr(server, "run", found.append)
    monkeypatch.setattr(devices, "num_cpus", lambda: 7)
    monkeypatch.setattr(devices, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(devices, "choose_device", lambda name: torch.device("cuda"))
    serve(model=[models["en-de"], models["de-en"]], device="cpu")
    serve(model=[models["en-de"]], precision="int8")
    serve(model=[models["en-de"]], engine="ctranslate2")
    serve(model=[models["en-de"]])
    serve(model=[models["en-de"]], workers=2)
    operations = [settings.model_settings for settings in found]
    assert [(one.workers, one.engine.threads) for one in operations] == [(3, 1), (4, 1), (4, 1), (1, 6), (2, 3)]


def test_models_that_cannot_be_served(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both translate en-de"):
        serve(model=[models["en-de"], models["en-de"]], port=0)
    with pytest.raises(ModelError):
        serve(model=[tmp_path], port=0)
    config = save_model(tmp_path / "model", "en", "de") / "config.yaml"
    config.unlink()
    config.mkdir()  # as unreadable as a file of another user's
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        serve(model=[config.parent], port=0)


def test_without_the_extra_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "nmt_cli.serving.server", raising=False)
    with pytest.raises(UsageError, match="the package uvicorn is not installed") as error:
        serve(port=0)
    assert error.value.hint == 'pip install "nmt-cli[serve]", or pip install uvicorn'
