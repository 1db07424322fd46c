"""The server's log: a line of JSON for each event, with its time, level and request.

On a terminal, a line is text as in other commands, except the line of a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from nmt_cli.console import is_interactive

logger = logging.getLogger(__name__)

# Our own logger has handlers already. Libraries report to the root logger.
_OUR_LOGGER, _ROOT_LOGGER = "nmt_cli", ""
# What uvicorn says of a connection that is refused with 400.
_INVALID_REQUEST = "Invalid HTTP request received."
_SECONDS_BETWEEN_REFUSALS = 1.0
_REQUEST_ID = re.compile(r"[!-~]{1,128}")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being served; each line of its log has it."""


def request_id_from(header: bytes | None) -> str:
    """The id in the header X-Request-ID; a random id if it is missing, or is not 1 to 128 visible ASCII characters."""
    text = "" if header is None else header.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else f"{random.getrandbits(64):016x}"


class LogEvent:
    """An event with fields, as the message of a log record."""

    def __init__(self, event: str, fields: Mapping[str, Any]) -> None:
        self.fields = {"event": event, **fields}

    def __str__(self) -> str:
        """The line on a terminal."""
        return json.dumps(self.fields)


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """The time in seconds since 1970, the level, the request's id if there is one, and the event or the message."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        if (request := request_id.get()) is not None:
            line["request_id"] = request
        line |= record.msg.fields if isinstance(record.msg, LogEvent) else {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def server_log() -> Iterator[None]:
    """Log as a server while the block runs: in JSON, unless stderr is a terminal."""
    configured = [logging.getLogger(name) for name in (_OUR_LOGGER, _ROOT_LOGGER)]
    saved = [(each_logger.handlers[:], each_logger.propagate) for each_logger in configured]
    configure_server_log()
    try:
        yield
    finally:
        for each_logger, (handlers, propagate) in zip(configured, saved, strict=True):
            each_logger.handlers[:], each_logger.propagate = handlers, propagate


def configure_server_log() -> None:
    """Log in JSON from now on, unless stderr is a terminal; libraries log in the same form as we do."""
    # The answer 400 already reports a form that cannot be read.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    handlers = logging.getLogger(_OUR_LOGGER).handlers[:]
    if not is_interactive():
        handlers = [logging.StreamHandler(sys.stderr)]
        handlers[0].setFormatter(JsonFormatter())
    for handler in handlers:
        handler.addFilter(lambda record: record.msg != _INVALID_REQUEST)
    for name in (_OUR_LOGGER, _ROOT_LOGGER):
        configured = logging.getLogger(name)
        configured.handlers[:], configured.propagate = handlers, False


class RefusalLog:
    """Logs connections that were refused: at most one line per second and reason, with the number of connections."""

    def __init__(self) -> None:
        self._refused: Counter[tuple[int, str]] = Counter()

    def add(self, status: int, reason: str) -> None:
        """Count a connection that was refused with this status."""
        if not self._refused:
            asyncio.get_running_loop().call_later(_SECONDS_BETWEEN_REFUSALS, self._write)
        self._refused[status, reason] += 1

    def _write(self) -> None:
        for (status, reason), connections in self._refused.items():
            logger.warning(LogEvent("refused", {"status": status, "reason": reason, "connections": connections}))
        self._refused.clear()
