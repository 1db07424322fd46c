"""What the application does when it is wrong itself."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from nmt_cli.serving.app import build
from nmt_cli.serving.keys import Keys
from nmt_cli.serving.limits import Limits
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.models import Models
from nmt_cli.serving.service import Service
from nmt_cli.serving.translation import Translation

LIMITS = Limits(characters=9, texts=9, sentences=9, queue=9, requests=9, timeout_seconds=1, alternatives=3, beam=8)


def test_a_mistake_of_the_server_is_told_in_form_counted_and_logged_as_500(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    service = Service(Models([]), LIMITS, Keys([]), metrics, Translation(LIMITS))
    app = build(service, origins=[])
    sent: list[dict[str, object]] = []

    @app.get("/v1/wrong")
    async def wrong() -> None:
        raise ZeroDivisionError("secret")

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/wrong", "query_string": b"", "headers": []}
    caplog.set_level(logging.INFO, "nmt_cli.serving.app")
    with pytest.raises(ZeroDivisionError):  # uvicorn logs it
        asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 500
    body = sent[1]["body"]
    assert isinstance(body, bytes)
    assert json.loads(body)["error"]["code"] == "internal"
    assert b"secret" not in body
    assert 'nmt_requests_total{code="500",endpoint="/v1/wrong"} 1.0' in metrics.render().decode()
    assert json.loads(caplog.messages[0])["status"] == 500
