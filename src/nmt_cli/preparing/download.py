"""Downloads into the cache: continued after an interruption, and checked by size and SHA-256."""

from __future__ import annotations

import hashlib
import http.client
import logging
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import nmt_cli
from nmt_cli.cache import cache_folder, cache_lock, file_hash, mismatch, writing_errors
from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.files import bytes_in

logger = logging.getLogger(__name__)

_NETWORK_HINT = "check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY"
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60
# Seconds to wait after each attempt without any bytes.
_PAUSES = (1.0, 3.0, 10.0, 30.0)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class _UnreachableError(DataError):
    """A file on the network that cannot be had now."""


def download_file(
    url: str, *, size: int | None, sha256: str | None, progress: Progress, newer_than: float = 0.0
) -> Path:
    """The file behind an address, from the cache or downloaded, with this size and SHA-256 if they are given.

    Without a hash, a cached file that is older than the time `newer_than` is downloaded again. With a hash, which finds
    a mixture of two versions, the next call continues a download that was interrupted. Raises DataError if the file
    cannot be downloaded or is another file, or if the disk is full.
    """
    file = cached_file(url)
    part = file.with_name(f".{file.name}.part")
    with cache_lock(file), writing_errors(file):
        is_wanted = file.exists() and mismatch(file, expected_size=size, expected_sha256=sha256) is None
        if is_wanted and (sha256 is not None or file.stat().st_mtime >= newer_than):
            return file
        if sha256 is None:
            part.unlink(missing_ok=True)
        try:
            _download_with_retries(url, part, file, size=size, progress=progress)
        except _UnreachableError as error:
            if not is_wanted:
                raise
            logger.warning("%s; its copy in the cache is used", error.message)
            return file
        part.replace(file)
    check_file(file, size=size, sha256=sha256, where=url)
    logger.info("downloaded %s: %s bytes, SHA-256 %s", file.name, f"{file.stat().st_size:,}", file_hash(file))
    return file


def cached_file(url: str) -> Path:
    """The path of a download in the cache, whether or not the file is there."""
    parts = urlsplit(url)
    *folders, name = [part for part in unquote(parts.path).split("/") if part not in ("", ".", "..")] or ["index"]
    if parts.query:  # download.php?file=a and download.php?file=b are two files
        folders.append(hashlib.sha256(parts.query.encode()).hexdigest()[:16])
    return cache_folder().joinpath("downloads", parts.netloc.rpartition("@")[2].replace(":", "_"), *folders, name)


def check_file(file: Path, *, size: int | None, sha256: str | None, where: str) -> None:
    """DataError unless a file has this size and SHA-256, as far as they are given."""
    if differs := mismatch(file, expected_size=size, expected_sha256=sha256):
        hint = "fetch it again; if another version is meant, correct bytes and sha256 in the corpus file"
        raise DataError(f"{file.name} is not the file that it should be: {differs}", where=where, hint=hint)


def _download_with_retries(url: str, part: Path, file: Path, *, size: int | None, progress: Progress) -> None:
    """Write the rest of a download to `part`; gives up after five attempts in a row without any bytes."""
    failures = 0
    while True:
        before = bytes_in(part)
        try:
            if _request_rest(url, part, file, size=size, progress=progress):
                return
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # The part is already complete, or the file on the server became shorter: start again.
                part.unlink(missing_ok=True)
            elif error.code not in _TRANSIENT:
                raise _unreachable_error(url, reason, hint="check the address, and whether it needs a login") from None
        except (http.client.HTTPException, OSError) as error:  # of the network: an error of the disk is a DataError
            cause = getattr(error, "reason", error)
            reason = str(cause) or type(cause).__name__
            if not before and isinstance(cause, socket.gaierror | ConnectionRefusedError):
                raise _unreachable_error(url, reason) from None  # there is no network: waiting is no use
        failures = 0 if bytes_in(part) > before else failures + 1
        if failures > len(_PAUSES):
            raise _unreachable_error(url, reason)
        pause = _PAUSES[max(failures - 1, 0)]
        logger.warning("%s: %s; again in %g s", file.name, reason, pause)
        time.sleep(pause)


def _request_rest(url: str, part: Path, file: Path, *, size: int | None, progress: Progress) -> bool:
    """Request the missing bytes and write them; False if the connection ended before the file did."""
    offset = bytes_in(part)
    if size is not None and offset == size:
        return True
    # Quoted characters stay; spaces and accents, which browsers accept, are quoted.
    quoted = quote(url, safe="%/:=&?~#+!$,;'@()*[]")
    request = urllib.request.Request(quoted, headers={"User-Agent": f"nmt/{nmt_cli.__version__}"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            offset = 0
        length = response.headers.get("Content-Length")
        total = offset + int(length) if length else size
        with writing_errors(file):
            opened = part.open("ab" if offset else "wb")
        with opened as written:
            while block := response.read(_BLOCK):
                with writing_errors(file):
                    written.write(block)
                    offset += len(block)
                    progress(f"downloading {file.name}", offset, total)
    return total is None or offset >= total


def _unreachable_error(url: str, reason: str, *, hint: str = _NETWORK_HINT) -> _UnreachableError:
    other_means = f"or fetch it by other means and save it as {cached_file(url)}"
    return _UnreachableError(f"cannot download {url}: {reason}", where=url, hint=f"{hint}; {other_means}")
