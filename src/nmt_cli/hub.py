"""The Hugging Face hub through its own library: downloads with progress, and the errors that they end in.

The library raises errors of a dozen unrelated classes, and wraps some in others.
"""

from __future__ import annotations

import errno
import http.client
import inspect
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, assert_never

from nmt_cli.console import Progress
from nmt_cli.errors import NmtError, first_line

TIMEOUT_SECONDS = 20.0
PROXY_HINT = (
    "behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY; HF_ENDPOINT=https://HOST names a mirror of "
    "the hub"
)
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
# Failures that have the same words for a model and for a data set.
CommonKind = Literal["disk full", "not writable", "gated", "refused", "overloaded"]
FailureKind = CommonKind | Literal["no revision", "no repository", "offline", "unreachable", "other"]


@dataclass(frozen=True, slots=True)
class HubFailure:
    """The kind of a failed request, and its reason in words."""

    kind: FailureKind
    reason: str

    @property
    def may_use_cache(self) -> bool:
        """True unless the hub denied the repository: files in its cache may stand in."""
        return self.kind in ("refused", "overloaded", "offline", "unreachable")


def failure_of(error: Exception) -> HubFailure:
    """The failure that an error of the hub's library, or of a library that uses it, stands for."""
    from huggingface_hub import errors

    causes = list(causes_of(error))
    reason = first_line(error) or type(error).__name__
    if any(getattr(cause, "errno", None) in _FULL_DISK for cause in causes):
        return HubFailure("disk full", "the disk is full")
    for cause in causes:  # a firewall's EACCES names no file
        if isinstance(cause, OSError) and cause.filename and cause.errno in _NOT_WRITABLE:
            return HubFailure("not writable", f"{cause.filename}: {cause.strerror}")
    kinds: tuple[tuple[type[Exception], FailureKind], ...] = (
        (errors.GatedRepoError, "gated"),  # the first, because it is a RepositoryNotFoundError too
        (errors.RevisionNotFoundError, "no revision"),
        (errors.RepositoryNotFoundError, "no repository"),
        (errors.OfflineModeIsEnabled, "offline"),
    )
    for error_type, kind in kinds:
        if any(isinstance(cause, error_type) for cause in causes):
            return HubFailure(kind, "HF_HUB_OFFLINE is set" if kind == "offline" else reason)
    for cause in causes:
        if isinstance(cause, errors.HfHubHTTPError) and cause.response is not None:
            return _failure_of_answer(cause.response.status_code)
    # httpx's errors of connections are no OSError, and the hub's library passes them on.
    is_of_httpx = any(base.__name__ == "TransportError" for cause in causes for base in type(cause).__mro__)
    return HubFailure("unreachable" if isinstance(error, OSError) or is_of_httpx else "other", reason)


def _failure_of_answer(status: int) -> HubFailure:
    """The failure that the status of an answer stands for."""
    is_refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    is_overloaded = status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind: FailureKind = "refused" if is_refused else "overloaded" if is_overloaded else "unreachable"
    return HubFailure(kind, f"the hub answers {status} {http.client.responses.get(status, '')}".rstrip())


def words_of_common_failure(kind: CommonKind, name: str, *, reason: str, page: str) -> tuple[str, str]:
    """The message and the hint for a model or a data set that cannot be downloaded; `page` is its page on the hub."""
    match kind:
        case "disk full":
            hint = "free some space, or move the hub's cache: export HF_HOME=FOLDER; the same command continues"
        case "not writable":
            hint = "move the hub's cache: export HF_HOME=FOLDER"
        case "refused":
            hint = "check the token: export HF_TOKEN=hf_..., or unset it for a public repository"
        case "overloaded":
            hint = "try the same command again in a few minutes: it continues"
        case "gated":
            message = f"{name} is gated: the hub wants to know who takes it"
            return message, f"accept its terms at {page}, then export HF_TOKEN=hf_..."
        case other:
            assert_never(other)
    return f"cannot download {name}: {reason}", hint


@contextmanager
def hub_errors(translate: Callable[[Exception], NmtError]) -> Iterator[None]:
    """Raise `translate(error)` for an error of the hub's library, or of a library that uses it, in the block."""
    try:
        yield
    except NmtError:
        raise
    except Exception as error:  # the libraries' errors have no class in common
        raise translate(error) from error


def endpoint() -> str:
    """The address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def download(repository: str, path: str, *, repo_type: str, revision: str | None, progress: Progress | None) -> Path:
    """A file of a repository, from the hub's own cache or downloaded into it.

    Without `progress`, the library shows its own bars. It raises what the library raises, but an OSError for a failure
    of hf_xet.
    """
    import huggingface_hub

    reporting: dict[str, Any] = {}
    if progress is not None and "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        reporting["tqdm_class"] = _bar_class(Path(path).name, progress)
    try:
        return Path(
            huggingface_hub.hf_hub_download(repository, path, repo_type=repo_type, revision=revision, **reporting)
        )
    except RuntimeError as error:  # the only class that hf_xet has for failures of the network and of the disk
        is_of_network = "connect" in str(error).lower()  # a firewall's refusal also is an EPERM
        for number in _FULL_DISK if is_of_network else (*_FULL_DISK, *_NOT_WRITABLE):
            if f"(os error {number})" in str(error):
                raise OSError(number, os.strerror(number), huggingface_hub.constants.HF_HUB_CACHE) from error
        raise ConnectionError(first_line(error)) from error


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors that caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _bar_class(name: str, progress: Progress) -> type[Any]:
    """A class of silent bars for the hub's library, which report bytes to `progress`."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm carries no types
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            progress(f"downloading {name}", int(self.n), int(self.total) if self.total else None)
            return shown

        # Because of these two, the library makes one bar, of the bytes that are written, and none of those received.
        def update_transfer(self, n: float | None = 1) -> None: ...

        def set_transfer_postfix_str(self, *args: Any, **options: Any) -> None: ...

    return Bar
