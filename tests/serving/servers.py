"""Random small models of any language pair, and servers of them as processes."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmt_cli.model.layers import DecoderLayer
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.serving.worker_model import AskedSentence, EngineSettings
from nmt_cli.serving.worker_pool import ModelSettings
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.artifacts.builders import save_tiny, spm_bytes, tiny_model, tiny_recipe
from tests.forks import Forked
from tests.waiting import children, wait_until

_READY = re.compile(r"ready: (?:http://[\w.]+:(\d+)|unix:)")
_SECONDS = 300
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=xyz"
MODEL_SETTINGS = ModelSettings(
    engine=EngineSettings("torch", "cpu", "fp32", 1),
    workers=1,
    max_batch_tokens=None,
    max_wait_seconds=0.0,
    max_queued_sentences=9,
    batch_timeout_seconds=9.0,
    split_pieces=128,
)


THREE = Directions(
    pairs=[LanguagePair(source=source, target=target) for source, target in (("en", "de"), ("de", "en"), ("en", "fr"))],
    target_symbols={"de": "<2de>", "en": "<2en>", "fr": "<2fr>"},
)


def asked_sentence(text: str, source: str = "en", target: str = "de") -> AskedSentence:
    return AskedSentence(text, (source, target))


def save_model(
    path: Path,
    source: str,
    target: str,
    *,
    seed: int = 1,
    decoding: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """A model of one direction, as `save_model_of` writes it."""
    return save_model_of(path, f"{source}-{target}", seed=seed, decoding=decoding, overwrite=overwrite)


def save_model_of(
    path: Path,
    languages: str | Directions,
    *,
    seed: int = 1,
    decoding: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """A random model directory that translates at most 59 pieces at once; it writes letters and spaces, no bytes.

    It stops loops itself, as the server does with any model.
    """
    recipe = tiny_recipe(
        model={"output_bias": True, "tying": "none"},
        decoding={"beam": 2, "max_extra_tokens": 5, "batch_tokens": 400, "stop_loops": True, **(decoding or {})},
    )
    symbols = dict.fromkeys(languages.target_symbols.values()) if isinstance(languages, Directions) else ()
    spm = path.parent / "shared.spm"
    spm.parent.mkdir(parents=True, exist_ok=True)
    spm.write_bytes(spm_bytes(symbols=tuple(symbols)))
    save_tiny(
        path,
        spm_folder=path.parent,
        recipe=recipe,
        model=_literate(tiny_model(recipe, seed=seed), Tokenizer.load(spm)),
        update=seed,
        overwrite=overwrite,
        languages=languages,
    )
    return path


def _literate(model: Transformer, tokenizer: Tokenizer) -> Transformer:
    """The model, which now writes words, and not the same ones whatever it reads."""
    assert model.output_bias is not None
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    with torch.no_grad():
        model.output_bias[tokenizer.byte_ids] = -20
        model.output_bias[[number for number, piece in enumerate(pieces) if piece[0] == "\u2581" != piece]] = 3
        for layer in model.decoder:
            assert isinstance(layer, DecoderLayer)
            layer.cross_attention.output.weight.mul_(3)
    return model


@dataclass(slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def form_body(fields: Iterable[tuple[str, str]], *, file: tuple[str, bytes] | None = None) -> bytes:
    """A body of the type MULTIPART: fields, and a file by its name and content."""
    parts = [(f'name="{name}"', text.encode()) for name, text in fields]
    if file is not None:
        parts.append((f'name="file"; filename="{file[0]}"', file[1]))
    head = "--xyz\r\nContent-Disposition: form-data; "
    return b"".join(f"{head}{name}\r\n\r\n".encode() + text + b"\r\n" for name, text in parts) + b"--xyz--\r\n"


class Site:
    """Whatever answers HTTP at a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; a body that is no bytes goes as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=body, headers=sent)
            response = connection.getresponse()
            return Answer(response.status, response.read(), dict(response.headers.items()))
        finally:
            connection.close()

    def post(self, path: str, body: object, **headers: str) -> Answer:
        return self.ask("POST", path, body, headers={name.replace("_", "-"): text for name, text in headers.items()})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})

    def metric(self, line: str) -> float:
        """The value of a sample by its name and labels; 0 where there is none yet."""
        found = re.search(rf"^{re.escape(line)} (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


class _WithServer(Forked[bytes]):
    """A process that has imported what answers HTTP."""

    imported = ("fastapi", "nmt_cli.serving.server", "uvicorn")


class Server(Site):
    """A running `nmt serve` with one worker; its port once `wait` has returned, its log in a file."""

    def __init__(self, log: Path, *arguments: str | Path) -> None:
        super().__init__(0)
        self.log_file = log
        # A machine that runs many tests at once may take long to answer.
        options = ["--port", "0", "--device", "cpu", "--threads", "1", "--workers", "1", "--timeout", "200"]
        command = [sys.executable, "-m", "nmt_cli", "serve", *options, *map(str, arguments)]
        with log.open("wb") as stream:
            self.process = _WithServer(command, stdout=subprocess.DEVNULL, stderr=stream)
        self._is_ending = False

    def wait(self) -> Server:
        """Itself, once it is ready."""
        wait_until(lambda: _READY.search(self.log), process=self.process, seconds=_SECONDS, told=lambda: self.log)
        found = _READY.search(self.log)
        self.port = int(found[1] or 0) if found else 0
        return self

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of the log, each of which is JSON."""
        return [json.loads(line) for line in self.log.splitlines()]

    def worker_pids(self) -> list[int]:
        """The processes that hold models."""
        return sorted(children(self.process.pid))

    @contextmanager
    def logging_text(self, text: str) -> Iterator[None]:
        """Wait, at the end of the block, for a text in the log that came since its beginning."""
        before = self.log.count(text)
        yield
        wait_until(lambda: self.log.count(text) > before, seconds=_SECONDS, told=lambda: self.log)

    def end(self) -> None:
        """Tell it to end, as an operator does."""
        if not self._is_ending:
            self.process.send_signal(signal.SIGTERM)
        self._is_ending = True

    def stop(self) -> int:
        """End it; its exit code."""
        self.end()
        try:
            return self.process.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@dataclass
class Load:
    """The answers to clients, and the number of clients that the server refused."""

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0


@contextmanager
def under_load(site: Site, *, clients: int = 4, key: str = "") -> Iterator[Load]:
    """Clients ask one thing after another while the block runs, or until the server refuses them.

    Each request has a connection of its own. A server that ends closes connections on which no request has come.
    """
    load, is_over = Load(), threading.Event()

    def ask() -> None:
        while not is_over.wait(0.02):
            try:
                asked = {"text": f"the old sea stands by a small house {len(load.answers)}", "source": "en"}
                load.answers.append(site.post("/v1/translate", asked, X_API_Key=key))
            except (ConnectionRefusedError, ConnectionResetError):
                load.refused += 1
                return

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask) for _ in range(clients)]
        try:
            yield load
        finally:
            is_over.set()
    for client in asking:
        client.result()
