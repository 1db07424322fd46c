"""Downloads into the cache: continued where they broke off, checked, and not used where they are something else."""

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
from nmt_cli.errors import DataError
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.sources.cache import cache_folder, check_space, held, writing_errors
from nmt_cli.preparing.sources.records import file_hash

logger = logging.getLogger(__name__)

MIRROR_HINT = "or fetch the archives by other means into a folder, and add --set mirror=FOLDER"
_NETWORK_HINT = f"check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY; {MIRROR_HINT}"
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60
# Seconds before each attempt that follows one in which nothing came.
_PAUSES = (1.0, 3.0, 10.0, 30.0)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class Unreachable(DataError):
    """Something on the network that cannot be had now, though it may be elsewhere."""


def download(url: str, *, size: int | None, sha256: str | None, progress: Progress) -> Path:
    """The file behind an address, from the cache or downloaded into it; of this size and SHA-256, where they are given.

    What has come stays when the network breaks off, and the next call continues after it. Raises Unreachable where it
    cannot be downloaded; DataError where it is something else (it is kept under another name) or the disk is full.
    """
    file = cached_file(url)
    with held(file), writing_errors(file):
        if file.exists():
            if _difference(file, size=size, sha256=sha256) is None:
                return file
            logger.warning("%s in the cache is another version; it is now %s", file.name, _set_aside(file))
        _transfer(url, _part(file), file.name, size=size, progress=progress)
        _part(file).replace(file)
        if differs := _difference(file, size=size, sha256=sha256):
            raise DataError(
                f"{file.name} is not the file that it should be: {differs}",
                where=url,
                hint=f"it is kept as {_set_aside(file)}, and not used; the same command downloads it again, "
                "--set mirror=FOLDER takes another copy",
            )
    logger.info("downloaded %s: %s bytes, SHA-256 %s", file.name, f"{file.stat().st_size:,}", file_hash(file))
    return file


def cached_file(url: str) -> Path:
    """Where the download of an address lies, or will lie."""
    parts = urlsplit(url)
    *folders, name = [part for part in unquote(parts.path).split("/") if part not in ("", ".", "..")] or ["index"]
    if parts.query:  # download.php?file=a and download.php?file=b are two files
        folders.append(hashlib.sha256(parts.query.encode()).hexdigest()[:16])
    return cache_folder().joinpath("downloads", parts.netloc.rpartition("@")[2].replace(":", "_"), *folders, name)


def exists(url: str) -> bool:
    """True where a server has something at an address, False where it has not; Unreachable where it does not answer."""
    try:
        with urllib.request.urlopen(_request(url, method="HEAD"), timeout=_TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError as problem:
        if problem.code < http.HTTPStatus.INTERNAL_SERVER_ERROR:
            return False
        reason = f"the server answers {problem.code} {problem.reason}"
    except (OSError, http.client.HTTPException) as problem:
        reason = str(getattr(problem, "reason", problem)) or type(problem).__name__
    raise Unreachable(f"cannot ask for {url}: {reason}", where=url, hint=_NETWORK_HINT)


def check_file(file: Path, digest: str, *, size: int | None, sha256: str | None) -> None:
    """DataError where a file of the user's, with this SHA-256, does not have the size or the SHA-256 that it should."""
    found = file.stat().st_size
    if size is not None and found != size:
        raise DataError(
            f"{file.name} has {found:,} bytes, and should have {size:,}",
            where=str(file),
            hint="it was cut short or is another file: fetch it again",
        )
    if sha256 not in (None, digest):
        raise DataError(
            f"{file.name} is not the file that it should be: its SHA-256 is {digest}, not {sha256}",
            where=str(file),
            hint="fetch it again; where another version is meant, correct sha256 in the corpus file",
        )


def _difference(file: Path, *, size: int | None, sha256: str | None) -> str | None:
    """In what a file is not the one that is wanted; None where it is."""
    found = file.stat().st_size
    if size not in (None, found):
        return f"it has {found:,} bytes, not {size:,}"
    if sha256 is not None and sha256 != (digest := file_hash(file)):
        return f"its SHA-256 is {digest}, not {sha256}"
    return None


def _transfer(url: str, part: Path, name: str, *, size: int | None, progress: Progress) -> None:
    """Bring the rest of a download into `part`, in as many attempts as bring something, and a few that do not."""
    failures, has_come = 0, False
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _attempt(url, part, name, size=size, progress=progress):
                return
            reason = "the connection broke off"
        except urllib.error.HTTPError as problem:
            reason = f"the server answers {problem.code} {problem.reason}"
            if problem.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # it was all there but for the last step, or the file has become shorter
            elif problem.code not in _TRANSIENT:
                raise _unreachable(url, part, reason) from None
        except urllib.error.URLError as problem:
            reason = str(problem.reason)
            if not has_come and isinstance(problem.reason, socket.gaierror | ConnectionRefusedError):
                raise _unreachable(url, part, reason) from None  # the network is not there: no use in waiting
        except (http.client.HTTPException, ConnectionError, TimeoutError) as problem:
            reason = str(problem) or type(problem).__name__
        came = (part.stat().st_size if part.exists() else 0) > before
        has_come = has_come or came
        failures = 0 if came else failures + 1
        if failures > len(_PAUSES):
            raise _unreachable(url, part, reason)
        pause = _PAUSES[max(failures - 1, 0)]
        logger.warning("%s: %s; again in %g s", name, reason, pause)
        time.sleep(pause)


def _attempt(url: str, part: Path, name: str, *, size: int | None, progress: Progress) -> bool:
    """Ask for what is missing and write it; False where the connection ended before the file did."""
    version = part.with_suffix(".version")
    there = part.stat().st_size if part.exists() else 0
    if size is not None and there == size:
        return True
    request = _request(url, method="GET")
    begun = version.read_text(encoding="utf-8") if there and version.exists() else ""
    if begun:
        request.add_header("Range", f"bytes={there}-")
        request.add_header("If-Range", begun)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        there = there if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        if there and (tag not in ("", begun) or not _goes_on(answer.headers, there)):
            part.unlink()  # the server has passed over If-Range, and this is the rest of another version
            raise ConnectionError("the file there has changed")
        length = answer.headers.get("Content-Length")
        total = there + int(length) if length else size
        check_space(part.with_name(name), needed=(total or 0) - there)
        with part.open("r+b" if there else "wb") as file:
            if not there:
                version.unlink(missing_ok=True)
                if tag and not tag.startswith("W/"):  # a weak one does not vouch for every byte
                    version.write_text(tag, encoding="utf-8")
            file.seek(there)
            while block := _read(answer):
                file.write(block)
                there += len(block)
                progress(f"downloading {name}", there, total)
    if total is not None and there < total:
        return False
    version.unlink(missing_ok=True)
    return True


def _goes_on(headers: http.client.HTTPMessage, there: int) -> bool:
    """True where a partial answer does not say that it begins elsewhere."""
    return headers.get("Content-Range", f"bytes {there}-").startswith(f"bytes {there}-")


def _read(answer: http.client.HTTPResponse) -> bytes:
    """The next block; ConnectionError whatever keeps it from coming: else it would pass for an error of the disk."""
    try:
        return answer.read(_BLOCK)
    except OSError as problem:
        raise ConnectionError(str(problem) or type(problem).__name__) from problem


def _set_aside(file: Path) -> Path:
    """Move what is not wanted to a name of its own beside `file`, and return that."""
    number = 1
    while (aside := file.with_name(f"{file.name}.mismatch-{number}")).exists():
        number += 1
    return file.rename(aside)


def _part(file: Path) -> Path:
    """Where what has come of a file lies until it is whole."""
    return file.with_name(f".{file.name}.part")


def _unreachable(url: str, part: Path, reason: str) -> Unreachable:
    kept = f"; {part.stat().st_size:,} bytes are kept, and the same command continues" if part.exists() else ""
    return Unreachable(f"cannot download {url}: {reason}", where=url, hint=f"{_NETWORK_HINT}{kept}")


def _request(url: str, *, method: str) -> urllib.request.Request:
    # What is quoted already stays; spaces and letters with accents, which browsers take, are quoted.
    quoted = quote(url, safe="%/:=&?~#+!$,;'@()*[]")
    return urllib.request.Request(quoted, method=method, headers={"User-Agent": f"nmt/{nmt_cli.__version__}"})
