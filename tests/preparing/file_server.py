"""A web server for files in a folder that knows ranges, and can be told to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FileServer:
    """A running server of the files in `folder`; `requests` are (method, path, Range) in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.requests: list[tuple[str, str, str | None]] = []
        self.cuts: list[int] = []
        """Each download in turn breaks off after so many bytes, while there are any here."""
        self.statuses: list[int] = []
        """Each request in turn is answered with one of these, while there are any."""


@contextmanager
def serve_files(folder: Path) -> Iterator[FileServer]:
    """Serve the files in a folder."""
    server = FileServer(folder)

    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"files": server}))
    server.address = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    files: FileServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.files.requests.append((self.command, self.path, asked))
        file = self.files.folder / self.path.lstrip("/")
        if self.files.statuses:
            self.send_error(self.files.statuses.pop(0))
            return
        if not file.is_file():
            self.send_error(404)
            return
        content = file.read_bytes()
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if asked and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + self.files.cuts.pop(0) if self.files.cuts else len(content)
        self.wfile.write(content[start:end])
