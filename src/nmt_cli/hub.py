"""The Hugging Face hub through its own library: why a request failed, and the progress of a download.

The library raises errors of a dozen unrelated classes, and wraps some in others.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmt_cli.console import Progress

TIMEOUT_SECONDS = 20.0
NETWORK_HINT = (
    "check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY; HF_ENDPOINT=https://HOST "
    "names a mirror of the hub; HF_HUB_OFFLINE=1 uses what is in its cache, a folder (HF_HOME) that can be copied"
)
DISK_HINT = "free some space, or move the hub's cache: export HF_HOME=FOLDER; the same command continues"
FailureKind = Literal["disk full", "gated", "no revision", "no repository", "offline", "unreachable", "other"]


@dataclass(frozen=True, slots=True)
class HubFailure:
    """The kind of a failed request, and its reason in words."""

    kind: FailureKind
    reason: str


def failure_of(problem: Exception) -> HubFailure:
    """The failure that an error of the hub's library, or of a library that uses it, stands for."""
    from huggingface_hub import errors

    causes = list(causes_of(problem))
    if any(getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for cause in causes):
        return HubFailure("disk full", "the disk is full")
    kinds: tuple[tuple[type[Exception], FailureKind], ...] = (
        (errors.GatedRepoError, "gated"),  # the first, because it is a RepositoryNotFoundError too
        (errors.RevisionNotFoundError, "no revision"),
        (errors.RepositoryNotFoundError, "no repository"),
    )
    reason = (str(problem).strip() or type(problem).__name__).partition("\n")[0]
    for error, kind in kinds:
        if any(isinstance(cause, error) for cause in causes):
            return HubFailure(kind, reason)
    if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes):
        return HubFailure("offline", "HF_HUB_OFFLINE is set")
    if isinstance(problem, OSError) or any(map(_is_of_the_network, causes)):
        return HubFailure("unreachable", reason)
    return HubFailure("other", reason)


def endpoint() -> str:
    """The address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def download(repository: str, path: str, *, repo_type: str, revision: str | None, progress: Progress | None) -> Path:
    """A file of a repository, from the hub's own cache or downloaded into it; raises what the hub's library raises.

    Without `progress`, the library shows its own bars.
    """
    import huggingface_hub

    reporting: dict[str, Any] = {}
    if progress is not None and "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        reporting["tqdm_class"] = _reporting_bar(Path(path).name, progress)
    return Path(huggingface_hub.hf_hub_download(repository, path, repo_type=repo_type, revision=revision, **reporting))


def causes_of(problem: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that caused it."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _reporting_bar(name: str, progress: Progress) -> type[Any]:
    """A silent bar for the hub's library that reports bytes to a progress."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm carries no types
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            progress(f"downloading {name}", int(self.n), int(self.total) if self.total else None)
            return shown

    return Bar


def _is_of_the_network(problem: BaseException) -> bool:
    """True for httpx's connection errors, which the hub's library passes on; they are no OSError."""
    return any(kind.__name__ == "TransportError" for kind in type(problem).__mro__)
