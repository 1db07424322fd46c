"""Errors of requests, which each API reports in its own form."""

from __future__ import annotations

from nmt_cli.errors import NmtError

_MAX_SHOWN_CHARACTERS = 20
REFUSED = "The request is refused: the error says why, and what to do."
FAILED, TIMEOUT = "failed", "timeout"
"""The codes of the errors of requests that were in work, and have cost time."""
BUSY_CODE = "busy"
"""The code of the errors of requests for which there is no room now."""
BUSY = "No room, no time or no model now; see Retry-After."


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
    def message_with_hint(self) -> str:
        """Message and hint, for the APIs that have one field for both."""
        return f"{self.message} ({self.hint})"


def request_error_from(
    error: NmtError, *, status: int, code: str, retry_after_seconds: int | None = None
) -> RequestError:
    """The refusal of a request because of an error of another room."""
    return RequestError(
        error.message,
        hint=error.hint,
        status=status,
        code=code,
        where=error.where or error.setting,
        retry_after_seconds=retry_after_seconds,
    )


def invalid_request_error(message: str, *, hint: str, where: str | None = None) -> RequestError:
    """A request that makes no sense: 400."""
    return RequestError(message, hint=hint, status=400, code="invalid_request", where=where)


def not_found_error(what: str, *, hint: str) -> RequestError:
    """A request for something that is not there, or belongs to another key: 404."""
    return RequestError(f"{what} not found", hint=hint, status=404, code="not_found")


def too_large_error(message: str, *, hint: str, where: str | None = None) -> RequestError:
    """A request beyond a limit of the server: 413."""
    return RequestError(message, hint=hint, status=413, code="too_large", where=where)


def too_many_error(number: int, what: str, *, limit: int) -> RequestError:
    """A request with more texts, sentences or characters than the limit: 413."""
    return too_large_error(f"{number:,} {what} are too many", hint=f"send at most {limit:,}")


def server_busy_error(message: str, *, retry_after_seconds: int, code: str = BUSY_CODE) -> RequestError:
    """A request that the server has no room or no time for now: 503 with Retry-After."""
    hint = f"try again in {retry_after_seconds} s"
    return RequestError(message, hint=hint, status=503, code=code, retry_after_seconds=retry_after_seconds)


def unexpected_error() -> RequestError:
    """A request that an error of our own has ended: 500."""
    return RequestError("the server raised an unexpected error", hint="its log has more", status=500, code="internal")


class ClientGone(Exception):
    """Nobody waits for the answer."""


def shorten(value: str) -> str:
    """A value that a client sent, short enough for a message."""
    return value if len(value) <= _MAX_SHOWN_CHARACTERS else value[:_MAX_SHOWN_CHARACTERS] + "…"
