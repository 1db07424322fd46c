"""The Hugging Face hub: names of models, and downloads through its own library, with their progress and errors."""

from __future__ import annotations

import errno
import inspect
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.cache import cache_folder
from nmt_cli.console import Progress
from nmt_cli.errors import NmtError, first_line
from nmt_cli.files import writing_error

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-]+))?", re.ASCII)
# /+ because Path shortens // to /.
_ADDRESS = re.compile(r"^(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/+")
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")  # of a model on the hub; nmt reads the first that is there
INDEX_ENDING = ".index.json"  # after such a name: the list of the files over which the weights are spread
_OUR_FOLDERS = ("runs", "data", "models")  # nmt and its documents write there, so runs/x is a path


def endpoint() -> str:
    """The address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub as OWNER/NAME, or as OWNER/NAME@REVISION with a commit, a tag or a branch."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"

    @property
    def page(self) -> str:
        """The address of the model's page on the hub."""
        return f"{endpoint()}/{self.repository}"

    @property
    def folder(self) -> Path:
        """The place of the model directory in the cache of nmt."""
        return cache_folder() / "models" / str(self)


def hub_name(given: str | Path) -> HubName | None:
    """The name on the hub that the user gave; None if the user gave a path.

    A text is a path if it exists, or if its first folder exists. The address of a model's page stands for the model's
    name.
    """
    path, text = Path(given), str(given)
    first = next(iter(path.parts), "")
    # Path("./x/y") drops the dot, so the text is tested as well.
    is_path = path.is_absolute() or text.startswith("./") or first in ("", "..", *_OUR_FOLDERS)
    if is_path or path.exists() or Path(first).exists():
        return None
    match = _NAME.fullmatch(_ADDRESS.sub("", text).rstrip("/"))
    return HubName(match[1], match[2]) if match else None


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


def download_file(
    repository: str, path: str, *, repo_type: str, revision: str | None, progress: Progress | None
) -> Path:
    """A file of a repository, from the hub's own cache or downloaded into it.

    Without `progress`, the library shows its own bars. It raises what the library raises.
    """
    import huggingface_hub

    reporting: dict[str, Any] = {}  # transformers 4 takes versions of the library that have no such option
    if progress is not None and "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        reporting["tqdm_class"] = _bar_class(Path(path).name, progress)
    return Path(huggingface_hub.hf_hub_download(repository, path, repo_type=repo_type, revision=revision, **reporting))


def snapshot_of(repository: str, names: list[str], *, repo_type: str, revision: str | None, only_cached: bool) -> Path:
    """The folder of a commit in the hub's own cache, with the named files; a file that the commit lacks is left out.

    The files are small, so no progress is shown. The folder has the name of the commit. If the hub cannot be reached,
    or with `only_cached`, it is the one in the cache. Raises what the library raises.
    """
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(
        repository,
        repo_type=repo_type,
        revision=revision,
        allow_patterns=names,
        local_files_only=only_cached,
        tqdm_class=_bar_class("", lambda stage, done, total: None),
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
