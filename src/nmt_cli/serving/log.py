"""The server's log: a line of JSON for each event, with its time, level and request.

On a terminal a line is text, as in other commands.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
from contextvars import ContextVar
from typing import Any

from nmt_cli.console import PACKAGE_LOGGER, is_interactive

_REQUEST_ID = re.compile(r"[!-~]{1,128}")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being served; each line of its log has it."""


def request_id_from(header: bytes | None) -> str:
    """The id in the header X-Request-ID; a random id if it is missing, or is not 1 to 128 visible ASCII characters."""
    text = "" if header is None else header.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else f"{random.getrandbits(64):016x}"


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record; `fields` of the record stand for its message."""

    def format(self, record: logging.LogRecord) -> str:
        """The time in seconds since 1970, the level, the request's id if it has one, and the fields or the message."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        if (request := request_id.get()) is not None:
            line["request_id"] = request
        line |= getattr(record, "fields", {"message": record.getMessage()})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_server_log() -> None:
    """Log in JSON from now on, unless stderr is a terminal; libraries log in the same form as we do."""
    # The answer 400 already reports a form that cannot be read.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    if not is_interactive():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        PACKAGE_LOGGER.handlers[:] = [handler]
    logging.root.handlers[:] = PACKAGE_LOGGER.handlers
