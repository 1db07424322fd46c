"""Errors of requests, which each API reports in its own form."""

from __future__ import annotations

from nmt_cli.errors import NmtError


class RequestError(NmtError):
    """A request that is not served, with an HTTP status, a code for programs, and perhaps the time to try again."""

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        status: int,
        code: str,
        where: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    @property
    def sentence(self) -> str:
        """Message and hint, for the APIs that have one field for both."""
        return f"{self.message} ({self.hint})"


def refusal_for(problem: NmtError, *, status: int, code: str, retry_after_seconds: int | None = None) -> RequestError:
    """The refusal of a request that an error of another room makes impossible."""
    where = problem.where or problem.setting
    return RequestError(
        problem.message,
        hint=problem.hint,
        status=status,
        code=code,
        where=where,
        retry_after_seconds=retry_after_seconds,
    )


def invalid_request(message: str, *, hint: str, where: str | None = None) -> RequestError:
    """A request that makes no sense: 400."""
    return RequestError(message, hint=hint, status=400, code="invalid_request", where=where)


def too_large(message: str, *, hint: str, where: str | None = None) -> RequestError:
    """A request beyond a limit of the server: 413."""
    return RequestError(message, hint=hint, status=413, code="too_large", where=where)


def too_many_texts(number: int, *, most: int) -> RequestError:
    """A request with more than `most` texts: 413."""
    return too_large(f"{number:,} texts are too many", hint=f"send at most {most:,} texts in a request")


def shortened(value: str) -> str:
    """A value that a client sent, short enough for a message."""
    return value if len(value) <= 20 else value[:20] + "…"


def server_busy(message: str, *, retry_after_seconds: int) -> RequestError:
    """A request that the server has no room or no time for now: 503 with Retry-After."""
    hint = f"try again in {retry_after_seconds} s"
    return RequestError(message, hint=hint, status=503, code="busy", retry_after_seconds=retry_after_seconds)


class ClientGone(Exception):
    """Nobody waits for the answer."""
