"""The Hugging Face hub through its own library: downloads with progress, and the errors that they end in."""

from __future__ import annotations

import errno
import inspect
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmt_cli.console import Progress
from nmt_cli.errors import NmtError, first_line
from nmt_cli.files import writing_error


def endpoint() -> str:
    """The address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


@contextmanager
def hub_errors(error_type: type[NmtError], name: str, *, page: str, missing: str) -> Iterator[None]:
    """Raise `error_type` for an error of the hub's library in the block.

    `name` is the model or the data set in messages, and `page` is its page on the hub. `missing` is the message if the
    hub has none of that name.
    """
    try:
        yield
    except NmtError:
        raise
    except Exception as error:  # errors of the hub's library, of its HTTP library and of hf_xet share no class
        raise _user_error(error, error_type, name, page=page, missing=missing) from error


def download(repository: str, path: str, *, repo_type: str, revision: str | None, progress: Progress | None) -> Path:
    """A file of a repository, from the hub's own cache or downloaded into it.

    Without `progress`, the library shows its own bars. It raises what the library raises.
    """
    import huggingface_hub

    reporting: dict[str, Any] = {}
    if progress is not None and "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        reporting["tqdm_class"] = _bar_class(Path(path).name, progress)
    return Path(huggingface_hub.hf_hub_download(repository, path, repo_type=repo_type, revision=revision, **reporting))


def download_small_files(
    repository: str, names: list[str], *, repo_type: str, revision: str | None, only_cached: bool = False
) -> Path:
    """The folder of a commit in the hub's own cache, with the named files; a file that the commit lacks is left out.

    The folder has the name of the commit. If the hub cannot be reached, or with `only_cached`, it is the one in the
    cache. Raises what the library raises.
    """
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(
        repository,
        repo_type=repo_type,
        revision=revision,
        allow_patterns=names,
        local_files_only=only_cached,
        tqdm_class=_bar_class("", lambda *event: None),
    )
    return Path(folder)


def _user_error(error: Exception, error_type: type[NmtError], name: str, *, page: str, missing: str) -> NmtError:
    """The error for a model or a data set that the hub does not give, or that cannot be stored."""
    from huggingface_hub import constants, errors

    # A firewall's EACCES names no file.
    if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)):
        elsewhere = "move the hub's cache: export HF_HOME=FOLDER"
        full = writing_error(error, Path(constants.HF_HUB_CACHE), error_type, elsewhere=elsewhere)
        if full is not None:
            return full
    match error:
        case errors.GatedRepoError():  # the first, because it is a RepositoryNotFoundError too
            message = f"{name} is gated: the hub wants to know who takes it"
            hint = f"accept its terms at {page}, then export HF_TOKEN=hf_..."
        case errors.RevisionNotFoundError():
            message = f"{name} has no such revision on the hub"
            hint = f"take a commit, a tag or a branch of {page}, or leave it out for the newest"
        case errors.RepositoryNotFoundError():
            message = missing
            hint = "check the path or the name; if it is private, export HF_TOKEN=hf_..."
        case _:
            message = f"cannot download {name}: {first_line(error.__cause__ or error) or type(error).__name__}"
            hint = "check the network, or name a mirror of the hub: export HF_ENDPOINT=https://HOST"
    return error_type(message, where=page, hint=hint)


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
