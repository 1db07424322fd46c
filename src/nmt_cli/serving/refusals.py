"""What a request is refused for; each API says it in its own form."""

from __future__ import annotations

from nmt_cli.errors import NmtError


class Refused(NmtError):
    """A request that is not served: HTTP status, a code for programs, and where it helps, when to try again."""

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


def invalid(message: str, *, hint: str, where: str | None = None) -> Refused:
    """A request that makes no sense: 400."""
    return Refused(message, hint=hint, status=400, code="invalid_request", where=where)


def too_large(message: str, *, hint: str, where: str | None = None) -> Refused:
    """A request beyond a limit of the server: 413."""
    return Refused(message, hint=hint, status=413, code="too_large", where=where)


def too_many_texts(number: int, *, most: int) -> Refused:
    """A request of so many texts, where so many are the most: 413."""
    return too_large(f"{number:,} texts are too many", hint=f"send at most {most:,} texts in a request")


def shown(value: str) -> str:
    """What a client gave, short enough to be shown again."""
    return value if len(value) <= 20 else value[:20] + "…"


def busy(message: str, *, retry_after_seconds: int) -> Refused:
    """A request that the server has no room or no time for now: 503 with Retry-After."""
    hint = f"try again in {retry_after_seconds} s"
    return Refused(message, hint=hint, status=503, code="busy", retry_after_seconds=retry_after_seconds)
