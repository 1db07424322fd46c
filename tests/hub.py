"""A hub on this machine that serves data sets and models as the Hugging Face hub does, and can be told to misbehave.

    with serve_wmt14(tmp_path / "hub", train_pairs=pairs, valid_pairs=..., test_pairs=...) as hub:
        subprocess.run([...], env={**os.environ, **hub.environment(tmp_path / "home")})

`hub.environment(home)` points huggingface_hub, datasets and nmt at this hub and at caches below `home`; it has to be
set before they are imported, so in the environment of a process of its own. `hub.requests` are the paths asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.forks import Forked

COMMIT = "b199e406369ec1b7634206d3ded5ba45de2fe696"
_CARD = """\
---
configs:
- config_name: {subset}
  data_files:
  - split: train
    path: {subset}/train-*
  - split: validation
    path: {subset}/validation-*
  - split: test
    path: {subset}/test-*
---
"""

Pairs = Sequence[tuple[str, str]]


class WithDatasets(Forked[str]):
    """A process that has imported the library that reads data sets of the hub."""

    imported = ("datasets",)


class Hub:
    """A running hub: `folder` holds OWNER/NAME/..., and what follows changes how it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = ""
        self.requests: list[str] = []
        self.is_down = False
        """Every request is answered with 503."""
        self.status: dict[str, tuple[int, str]] = {}
        """Status and X-Error-Code for a whole repository: (401, "GatedRepo") and the like."""
        self.cut: dict[str, int] = {}
        """The next download of this path of a repository breaks off after so many bytes."""
        self.seconds_per_block = 0.0
        """How long each 64 KB of a file take."""

    def environment(self, home: Path) -> dict[str, str]:
        """The variables for a process that is to use this hub, with all caches below `home`."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home / "huggingface"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "NMT_CACHE": str(home / "nmt"),
            "SACREBLEU": str(home / "sacrebleu"),
            "no_proxy": "127.0.0.1",
        }


@contextmanager
def serve_wmt14(
    folder: Path,
    *,
    train_pairs: Pairs,
    valid_pairs: Pairs,
    test_pairs: Pairs,
    languages: tuple[str, str] = ("en", "de"),
    shards: int = 3,
) -> Iterator[Hub]:
    """Serve `wmt/wmt14` with the real schema and file layout; pairs are in the order of `languages`."""
    subset = f"{languages[1]}-{languages[0]}"
    repository = folder / "wmt" / "wmt14"
    (repository / subset).mkdir(parents=True)
    (repository / "README.md").write_text(_CARD.format(subset=subset), encoding="utf-8")
    size = math.ceil(len(train_pairs) / shards)
    for number in range(shards):
        part = train_pairs[number * size : (number + 1) * size]
        write_translations(repository / subset / f"train-{number:05}-of-{shards:05}.parquet", part, languages)
    for split, pairs in (("validation", valid_pairs), ("test", test_pairs)):
        write_translations(repository / subset / f"{split}-00000-of-00001.parquet", pairs, languages)
    with serve(folder) as hub:
        yield hub


def write_translations(file: Path, pairs: Pairs, languages: tuple[str, str]) -> None:
    """Write a parquet file with a column `translation`: a struct of the two languages in alphabetic order."""
    import pyarrow
    import pyarrow.parquet

    texts = {code: [pair[side] for pair in pairs] for side, code in enumerate(languages)}
    names = sorted(texts)
    column = pyarrow.StructArray.from_arrays([pyarrow.array(texts[name], pyarrow.string()) for name in names], names)
    table = pyarrow.table({"translation": column})
    features = {"translation": {"languages": names, "_type": "Translation"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), file, row_group_size=1000)


@contextmanager
def serve(folder: Path) -> Iterator[Hub]:
    """Serve the data sets and models in a folder, as OWNER/NAME/FILES."""
    hub = Hub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, posted: dict[str, Any] | None = None) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.is_down:
            self._send(503, b"down")
            return
        asked = re.fullmatch(
            r"(/api)?(?:/datasets|/models)?/([^/]+/[^/]+)(?:/(revision|tree|paths-info|resolve)/([^/]+)(/.*)?)?", path
        )
        repository = self.hub.folder / asked[2] if asked else self.hub.folder / "none"
        if asked is None or not repository.is_dir():
            self._refuse(401 if asked else 404, "RepoNotFound")
        elif asked[2] in self.hub.status:
            self._refuse(*self.hub.status[asked[2]])
        elif asked[4] not in (None, "main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        elif asked[1] is None:
            self._send_file(repository, (asked[5] or "").lstrip("/"))
        elif asked[3] == "tree":
            self._send_json(self._tree(repository, (asked[5] or "").strip("/")))
        elif asked[3] == "paths-info":
            wanted = [repository / one for one in (posted or {}).get("paths", [])]
            self._send_json([_entry(repository, one) for one in wanted if one.exists()])
        else:
            siblings = [_sibling(repository, file) for file in sorted(repository.rglob("*")) if file.is_file()]
            self._send_json({"_id": "1", "id": asked[2], "sha": COMMIT, "private": False, "siblings": siblings})

    def _tree(self, repository: Path, folder: str) -> list[dict[str, Any]]:
        is_recursive = "recursive=true" in self.path.lower()
        found = (repository / folder).rglob("*") if is_recursive else (repository / folder).glob("*")
        return [_entry(repository, path) for path in sorted(found)]

    def _send_file(self, repository: Path, name: str) -> None:
        file = repository / name
        if not file.is_file():
            self._refuse(404, "EntryNotFound")
            return
        content = file.read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        start = int(found[1]) if (found := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        end = len(content)
        if (found := re.match(r"bytes=\d+-(\d+)", self.headers.get("Range", ""))) is not None:
            end = min(end, int(found[1]) + 1)
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{tag}"'}
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self._send(
            206 if "Range" in self.headers else 200,
            content[start:end],
            headers,
            cut=self.hub.cut.pop(name, None) if self.command == "GET" else None,
            seconds_per_block=self.hub.seconds_per_block,
        )

    def _send_json(self, values: Any) -> None:
        self._send(200, json.dumps(values).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "Content-Type": "application/json"})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        cut: int | None = None,
        seconds_per_block: float = 0.0,
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(body[:cut]), 1 << 16):
            self.wfile.write(body[:cut][start : start + (1 << 16)])
            time.sleep(seconds_per_block)
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


def _sibling(repository: Path, file: Path) -> dict[str, Any]:
    facts = _entry(repository, file)
    return {"rfilename": facts["path"], **{key: facts[key] for key in ("size", "lfs") if key in facts}}


def _entry(repository: Path, path: Path) -> dict[str, Any]:
    """What the hub says of a file or folder; data files are in its store for large files, the others are not."""
    name = path.relative_to(repository).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0" * 40}
    content = path.read_bytes()
    facts: dict[str, Any] = {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
    if path.suffix in (".parquet", ".safetensors", ".bin", ".spm"):
        digest = hashlib.sha256(content).hexdigest()
        facts["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 134}
    return facts
