"""Downloads into the cache: resumed after an interruption, checked, and recorded."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import nmt_cli
from nmt_cli.cache import OTHER_CACHE_HINT, cache_folder, cache_lock, file_hash, mismatch, writing_errors
from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.files import FREE_SPACE_HINT, bytes_in

logger = logging.getLogger(__name__)

_NETWORK_HINT = "check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY"
# Hints for answers of a server; every other answer takes "check the address".
_LOGIN_HINT = "check the address: it may need a login"
_HINTS = {401: _LOGIN_HINT, 403: _LOGIN_HINT, 407: _NETWORK_HINT, 511: _NETWORK_HINT}
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60
# Seconds to wait after each attempt without any bytes.
_PAUSES = (1.0, 3.0, 10.0, 30.0)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class Unreachable(DataError):
    """Something on the network that cannot be reached now."""


def download_file(url: str, *, size: int | None, sha256: str | None, progress: Progress) -> Path:
    """The file behind an address, from the cache or downloaded, with this size and SHA-256 if they are given.

    An interrupted download is kept, and the next call resumes it. Raises Unreachable if the file cannot be downloaded.
    Raises DataError if it is another file (kept under another name), or if the disk is full.
    """
    file = cached_file(url)
    with cache_lock(file), writing_errors(file):
        if file.exists():
            if mismatch(file, expected_size=size, expected_sha256=sha256) is None:
                return file
            logger.warning("%s in the cache is another version; it is now %s", file.name, _keep_mismatch(file))
        part = partial_file(file)
        _download_with_retries(url, part, file.name, size=size, progress=progress)
        part.replace(file)
        if differs := mismatch(file, expected_size=size, expected_sha256=sha256):
            raise wrong_file_error(file.name, differs, where=url, kept_as=_keep_mismatch(file))
    logger.info("downloaded %s: %s bytes, SHA-256 %s", file.name, f"{file.stat().st_size:,}", file_hash(file))
    return file


def cached_file(url: str) -> Path:
    """The path of a download in the cache, whether or not the file is there."""
    parts = urlsplit(url)
    *folders, name = [part for part in unquote(parts.path).split("/") if part not in ("", ".", "..")] or ["index"]
    if parts.query:  # download.php?file=a and download.php?file=b are two files
        folders.append(hashlib.sha256(parts.query.encode()).hexdigest()[:16])
    return cache_folder().joinpath("downloads", parts.netloc.rpartition("@")[2].replace(":", "_"), *folders, name)


def partial_file(file: Path) -> Path:
    """The path under which a download is kept until it is complete."""
    return file.with_name(f".{file.name}.part")


def wrong_file_error(name: str, differs: str, *, where: str, kept_as: Path) -> DataError:
    """The error for a download that is not the wanted file."""
    hint = f"it is kept as {kept_as}, and not used; the same command downloads it again"
    return DataError(f"{name} is not the file that it should be: {differs}", where=where, hint=hint)


def _download_with_retries(url: str, part: Path, name: str, *, size: int | None, progress: Progress) -> None:
    """Write the rest of a download to `part`; gives up after five attempts in a row without any bytes."""
    failures, has_progressed = 0, False
    while True:
        before = bytes_in(part)
        try:
            if _request_rest(url, part, name, size=size, progress=progress):
                return
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # The part is already complete, or the file on the server became shorter: start again.
                part.unlink(missing_ok=True)
            elif error.code not in _TRANSIENT:
                raise _unreachable_error(url, part, reason, hint=_HINTS.get(error.code, "check the address")) from None
        except urllib.error.URLError as error:
            reason = str(error.reason)
            if not has_progressed and isinstance(error.reason, socket.gaierror | ConnectionRefusedError):
                raise _unreachable_error(url, part, reason) from None  # there is no network: waiting is no use
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        progressed = bytes_in(part) > before
        has_progressed = has_progressed or progressed
        failures = 0 if progressed else failures + 1
        if failures > len(_PAUSES):
            raise _unreachable_error(url, part, reason)
        pause = _PAUSES[max(failures - 1, 0)]
        logger.warning("%s: %s; again in %g s", name, reason, pause)
        time.sleep(pause)


def _request_rest(url: str, part: Path, name: str, *, size: int | None, progress: Progress) -> bool:
    """Request the missing bytes and write them; False if the connection ended before the file did."""
    version = part.with_suffix(".version")
    offset = bytes_in(part)
    if size is not None and offset == size:
        return True
    # Quoted characters stay; spaces and accents, which browsers accept, are quoted.
    quoted = quote(url, safe="%/:=&?~#+!$,;'@()*[]")
    request = urllib.request.Request(quoted, headers={"User-Agent": f"nmt/{nmt_cli.__version__}"})
    part_tag = version.read_text(encoding="utf-8") if offset and version.exists() else ""
    if part_tag:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", part_tag)
    with _network_errors():
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    with response:
        server_tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            offset = 0
        continues_at_offset = response.headers.get("Content-Range", f"bytes {offset}-").startswith(f"bytes {offset}-")
        if offset and (server_tag not in ("", part_tag) or not continues_at_offset):
            part.unlink()  # the server has ignored If-Range, and this is the rest of another version
            raise ConnectionError("the file there has changed")
        length = response.headers.get("Content-Length")
        total = offset + int(length) if length else size
        _check_space(part, name, (total or 0) - offset)
        end = _write_blocks(
            response, part, offset, tag=server_tag, report=lambda done: progress(f"downloading {name}", done, total)
        )
    if total is not None and end < total:
        return False
    version.unlink(missing_ok=True)
    return True


def _check_space(part: Path, name: str, needed: int) -> None:
    """DataError if the disk has less free space than a download needs."""
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        message = f"{name} needs {needed / 1e9:.3f} GB, and {free / 1e9:.3f} GB are free"
        raise DataError(message, where=str(part.with_name(name)), hint=f"{FREE_SPACE_HINT}, or {OTHER_CACHE_HINT}")


def _write_blocks(
    response: http.client.HTTPResponse, part: Path, offset: int, *, tag: str, report: Callable[[int], None]
) -> int:
    """Write a response to `part` from `offset` on; the new size of `part`. The server's tag is kept with a new part."""
    with part.open("r+b" if offset else "wb") as file:
        if not offset:
            version = part.with_suffix(".version")
            version.unlink(missing_ok=True)
            if tag and not tag.startswith("W/"):  # a weak tag does not guarantee every byte
                version.write_text(tag, encoding="utf-8")
        file.seek(offset)
        while True:
            with _network_errors():
                block = response.read(_BLOCK)
            if not block:
                return offset
            file.write(block)
            offset += len(block)
            report(offset)


@contextmanager
def _network_errors() -> Iterator[None]:
    """Turn an OSError that is not of a network type into a ConnectionError; it would look like an error of the disk."""
    try:
        yield
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def _keep_mismatch(file: Path) -> Path:
    """Rename an unwanted file to a name of its own beside `file`; the new path."""
    number = 1
    while (kept := file.with_name(f"{file.name}.mismatch-{number}")).exists():
        number += 1
    return file.rename(kept)


def _unreachable_error(url: str, part: Path, reason: str, *, hint: str = _NETWORK_HINT) -> Unreachable:
    kept = f"; {bytes_in(part):,} bytes are kept, and the same command continues" if part.exists() else ""
    other_means = f"or fetch it by other means and save it as {cached_file(url)}{kept}"
    return Unreachable(f"cannot download {url}: {reason}", where=url, hint=f"{hint}; {other_means}")
