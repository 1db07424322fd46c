"""API keys: their owners, and how often each may ask."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from nmt_cli.errors import DataError, NmtError
from nmt_cli.files import reading_errors
from nmt_cli.serving.request_errors import FAILED, TIMEOUT, RequestError, too_large_error

logger = logging.getLogger(__name__)

_FORMAT = "one line per key: NAME KEY REQUESTS_PER_MINUTE, for example: alice 3f9a27c1e0b84d52 60"
_MIN_KEY_CHARACTERS = 8
_RATE = re.compile(r"[0-9]+(\.[0-9]+)?")


class KeyOwner:
    """The owner of a key: a name for the log, a bucket of requests that refills evenly, and characters translated."""

    def __init__(self, name: str, *, per_minute: float) -> None:
        self.name = name
        self.characters = 0
        self._per_minute = per_minute
        self._capacity = max(1.0, per_minute)
        self._requests_left = self._capacity
        self._filled_at = monotonic()

    def spend(self, requests: int) -> None:
        """Take requests out of the bucket; RequestError 429 if it holds too few now, 413 if it never holds enough."""
        now = monotonic()
        self._requests_left = min(self._capacity, self._requests_left + (now - self._filled_at) * self._per_minute / 60)
        self._filled_at = now
        if requests > self._capacity:
            message = f"this counts as {requests:,} requests, and this key has {self._per_minute:g} per minute"
            raise too_large_error(message, hint="send fewer texts at once, or a shorter document")
        if requests > self._requests_left:
            seconds = math.ceil((requests - self._requests_left) * 60 / self._per_minute)
            state = "has used" if requests == 1 else f"has fewer than {requests:,} left of"
            message = f"this key {state} its {self._per_minute:g} requests per minute"
            hint = f"try again in {seconds} s"
            raise RequestError(message, hint=hint, status=429, code="too_many_requests", retry_after_seconds=seconds)
        self._requests_left -= requests

    @contextmanager
    def charged(self, *, requests: int, characters: int) -> Iterator[None]:
        """Spend requests, and count the characters once they are translated.

        A request that is refused gets its requests back, unless a worker has spent time on it.
        """
        self.spend(requests)
        try:
            yield
        except NmtError as error:
            if getattr(error, "code", None) not in (FAILED, TIMEOUT):
                self._requests_left = min(self._capacity, self._requests_left + requests)
            raise
        self.characters += characters

    def take_over(self, other: KeyOwner) -> None:
        """Take over the name and the rate of another owner of the same key."""
        self.name, self._per_minute, self._capacity = other.name, other._per_minute, other._capacity
        self._requests_left = min(self._capacity, self._requests_left)


class ApiKeys:
    """The keys of a file; without one, everybody may ask. DataError names the line of the file that is wrong."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._owners = {} if file is None else _read_owners(file)
        self.anonymous = KeyOwner("anonymous", per_minute=math.inf)

    @property
    def are_required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._owners)

    def read_again(self) -> None:
        """Take the keys that the file has now. DataError if the file cannot be read: the old keys stay."""
        if self._file is None:
            return
        new_owners = _read_owners(self._file)
        for digest in new_owners.keys() & self._owners.keys():
            self._owners[digest].take_over(new_owners[digest])
            new_owners[digest] = self._owners[digest]  # requests in work count for it
        logger.info("%d keys are read from %s", len(new_owners), self._file)
        self._owners = new_owners

    def find(self, key: str) -> KeyOwner | None:
        """The owner of a key. Only digests are compared, so the time of a comparison reveals nothing about a key."""
        return self._owners.get(_digest(key))

    def authenticate(self, key: str | None, headers: Mapping[str, str], *, missing_status: int) -> KeyOwner:
        """The owner of a request's key, given or in its headers; RequestError if it is wrong or missing."""
        key = key or _key_in_headers(headers)
        if not key:
            hint = (
                "send one as Authorization: Bearer KEY, X-API-Key: KEY, Authorization: DeepL-Auth-Key KEY,"
                " LibreTranslate's api_key or DeepL's auth_key"
            )
            raise RequestError("this server needs an API key", hint=hint, status=missing_status, code="missing_key")
        owner = self.find(key)
        if owner is None:
            raise RequestError("Invalid API key", hint="give a key of this server", status=403, code="invalid_key")
        return owner


def _read_owners(path: Path) -> dict[bytes, KeyOwner]:
    """The owners in a file by the digests of their keys: a key on each line; # begins a comment."""
    try:
        with reading_errors(path):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the keys cannot be read: {error}", where=str(path), hint=f"write {_FORMAT}") from None
    owners: dict[bytes, KeyOwner] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if len(words) != 3 or not _RATE.fullmatch(words[2]) or not 0 < float(words[2]) < math.inf:
            raise DataError(f"line {number} is not a key", where=where, hint=f"write {_FORMAT}")
        name, key, rate = words
        if len(key) < _MIN_KEY_CHARACTERS:
            hint = "make one: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
            message = f"the key of {name} has fewer than {_MIN_KEY_CHARACTERS} characters"
            raise DataError(message, where=where, hint=hint)
        if _digest(key) in owners:
            raise DataError(f"the key of {name} is there twice", where=where, hint="a key has one owner")
        owners[_digest(key)] = KeyOwner(name, per_minute=float(rate))
    if not owners:
        raise DataError(f"{path} has no keys", where=str(path), hint=f"write {_FORMAT}, or leave --api-key-file out")
    return owners


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _key_in_headers(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key"):
        return key.strip()
    return headers.get("x-api-key")
