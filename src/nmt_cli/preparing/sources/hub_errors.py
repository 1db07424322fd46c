"""What the libraries of the Hugging Face hub raise, in our own errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from nmt_cli.errors import DataError, NmtError
from nmt_cli.preparing.sources.downloads import Unreachable

HUB_HINT = (
    "check the network; behind a proxy, export HTTPS_PROXY=http://HOST:PORT and HTTP_PROXY; HF_ENDPOINT=https://HOST "
    "names a mirror of the hub; HF_HUB_OFFLINE=1 uses what is in its cache (HF_HOME)"
)


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raise Unreachable where the hub does not answer, DataError where it refuses or the disk is full."""
    import datasets.exceptions
    from huggingface_hub import errors

    try:
        yield
    except NmtError:
        raise
    except Exception as problem:  # the libraries below raise errors of a dozen unrelated classes
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        causes = list(_causes(problem))
        if any(getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for cause in causes):
            hint = "free some space, or move the hub's cache: export HF_HOME=FOLDER; the same command continues"
            raise DataError(f"cannot download {name}: the disk is full", where=name, hint=hint) from problem
        if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes):
            reason = "HF_HUB_OFFLINE is set"
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        if any(isinstance(cause, errors.GatedRepoError) for cause in causes) or "gated" in reason.lower():
            message = f"{name} is gated: the hub wants to know who takes it"
            hint = f"accept its terms at {endpoint}/datasets/{name.split(' ')[0]}, then export HF_TOKEN=hf_..."
        elif any(isinstance(cause, errors.RevisionNotFoundError) for cause in causes):
            message, hint = (
                f"{name} has no such revision on the hub",
                "correct revision, or leave it out for the newest",
            )
        elif any(
            isinstance(cause, errors.RepositoryNotFoundError | datasets.exceptions.DatasetNotFoundError)
            for cause in causes
        ):
            message = f"there is no data set {name} on the hub, or it is private"
            hint = (
                "check repository: it is OWNER/NAME on the hub, or ./FOLDER; for a private one export HF_TOKEN=hf_..."
            )
        elif any(isinstance(cause, datasets.exceptions.DataFilesNotFoundError) for cause in causes):
            message = f"{name.split(' ')[0]} has no data files such as train.parquet, train.jsonl or train.csv"
            hint = (
                "kind: hub reads what is laid out like a data set of the hub; a single file is read by a source of "
                "kind text, tsv, jsonl or parquet, such as {kind: tsv, file: my/x.tsv}"
            )
        elif isinstance(problem, OSError) or any(_is_of_the_network(cause) for cause in causes):
            raise Unreachable(f"cannot reach {name} on the hub: {reason}", where=endpoint, hint=HUB_HINT) from problem
        else:
            message, hint = f"cannot read the data set {name}: {reason}", "check repository, subset, split and revision"
        raise DataError(message, where=name, hint=hint) from problem


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _is_of_the_network(problem: BaseException) -> bool:
    """True for the errors of connections of httpx, which the library of the hub passes on, and which are no OSError."""
    return any(kind.__name__ == "TransportError" for kind in type(problem).__mro__)
