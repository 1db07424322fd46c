"""Servers that several tests share: all are started at once, since each must import torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt_cli.api import Translator
from tests.serving.servers import THREE, Server, save_model, save_model_of

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

KEYS = """
# who, which key, how often a minute
alice  alice-secret-key  600
bob    bob-secret-key    2   # for a try
carol  carol-secret-key  60000
"""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests: the server's."""
    return "asyncio"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model directories by pair."""
    folder = tmp_path_factory.mktemp("models")
    return {
        f"{source}-{target}": save_model(folder / f"{source}-{target}", source, target, seed=seed)
        for source, target, seed in (("en", "de", 1), ("de", "en", 4))
    }


@pytest.fixture(scope="session")
def replaceable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory of `operated`."""
    return save_model(tmp_path_factory.mktemp("replaceable") / "model", "en", "de", seed=1)


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three directions, whose symbols count: en-de, de-en and en-fr."""
    return save_model_of(tmp_path_factory.mktemp("three") / "model", THREE, seed=10)


@pytest.fixture(scope="session")
def italian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of it-de."""
    return save_model(tmp_path_factory.mktemp("italian") / "model", "it", "de", seed=4)


@pytest.fixture(scope="session")
def servers(
    models: dict[str, Path], replaceable: Path, three: Path, italian: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """`open` with two directions, `strict` with keys and small limits, `operated` with a model that may be replaced.

    `several` has a model of three directions beside a model of one.
    """
    folder = tmp_path_factory.mktemp("servers")
    (folder / "keys").write_text(KEYS, encoding="utf-8")
    small = ["--char-limit", "200", "--batch-limit", "4", "--queue-size", "8", "--max-alternatives", "2"]
    named = ["--api-key-file", str(folder / "keys"), "--cors", "https://example.org"]
    named += ["--cors", "https://*.example.org"]
    servers = {
        "open": Server(folder / "open.log", "-m", models["en-de"], "-m", models["de-en"], "--max-wait-ms", "20"),
        "strict": Server(folder / "strict.log", "-m", models["en-de"], *named, *small),
        "operated": Server(folder / "operated.log", "-m", replaceable),
        "several": Server(folder / "several.log", "-m", three, "-m", italian),
    }
    try:
        yield {name: server.wait() for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.end()
        codes = [server.stop() for server in servers.values()]
    assert codes == [0] * len(servers)
    for server in servers.values():  # no request of any test was a mistake of the server
        assert "Traceback" not in server.log
        assert '"status": 500' not in server.log
        assert all({"time", "level"} < event.keys() for event in server.events)


@pytest.fixture(scope="session")
def server(servers: dict[str, Server]) -> Server:
    """A server of en-de and de-en, open to all, with the limits that are usual."""
    return servers["open"]


@pytest.fixture(scope="session")
def strict(servers: dict[str, Server]) -> Server:
    """A server of en-de with keys and small limits."""
    return servers["strict"]


@pytest.fixture
def hurried_deepl(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepL's client asks whether a document is done every tenth of a second, and not every five seconds."""
    hurried = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(0.1))
    monkeypatch.setattr("deepl.translator.time", hurried)


@pytest.fixture(scope="session")
def translator(models: dict[str, Path]) -> Translator:
    """What `nmt decode` would answer for en-de."""
    return Translator.from_pretrained(models["en-de"], device="cpu")
