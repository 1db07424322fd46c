"""What the application does when it is wrong itself, and whom it lets in."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope

from nmt_cli.serving import app as serving_app
from nmt_cli.serving.api.endpoints import openapi_document
from nmt_cli.serving.app import create_app
from nmt_cli.serving.keys import ApiKeys
from nmt_cli.serving.origins import AllowedOrigins
from nmt_cli.serving.request_limits import RequestLimits
from nmt_cli.serving.router import ModelRouter
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.service import Service

pytestmark = pytest.mark.anyio
LIMITS = RequestLimits(
    characters=9, texts=9, sentences=9, concurrent_requests=9, timeout_seconds=1, alternatives=3, beam=8
)
SERVICE = Service(ModelRouter([]), LIMITS, ApiKeys(), ServerMetrics())


async def ask(app: ASGIApp, path: str, sent: list[Message]) -> None:
    """Append the answer to a page of https://example.org."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"origin", b"https://example.org")]
    scope: Scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)


async def test_a_mistake_of_the_server_is_told_in_form_counted_and_logged_as_500(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = ServerMetrics()
    service = Service(ModelRouter([]), LIMITS, ApiKeys(), metrics)
    sent: list[Message] = []

    async def wrong(request: Request) -> Response:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(serving_app, "ROUTES", [*serving_app.ROUTES, Route("/v1/wrong", wrong)])
    app = create_app(service, allowed_origins=AllowedOrigins([], []))
    caplog.set_level(logging.INFO, "nmt_cli.serving.app")
    with pytest.raises(ZeroDivisionError):  # uvicorn logs it
        await ask(app, "/v1/wrong", sent)
    assert sent[0]["status"] == 500
    body = sent[1]["body"]
    assert isinstance(body, bytes)
    assert json.loads(body)["error"]["code"] == "internal"
    assert b"secret" not in body
    assert 'nmt_requests_total{code="500",endpoint="/v1/wrong"} 1.0' in metrics.render().decode()
    assert caplog.messages[0] == "GET /v1/wrong: 500"
    assert b"x-request-id" in dict(sent[0]["headers"])


async def test_one_request_too_many_is_refused_and_a_page_may_read_why(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(LIMITS, concurrent_requests=1)
    allowed = AllowedOrigins(["https://example.org"], [])
    may_go = asyncio.Event()

    async def wait(request: Request) -> Response:
        await may_go.wait()
        return Response("well")

    monkeypatch.setattr(serving_app, "ROUTES", [*serving_app.ROUTES, Route("/wait", wait)])
    app = create_app(Service(ModelRouter([]), limits, ApiKeys(), ServerMetrics()), allowed_origins=allowed)
    waiting, refused, health = list[Message](), list[Message](), list[Message]()
    first = asyncio.ensure_future(ask(app, "/wait", waiting))
    await asyncio.sleep(0.01)
    await ask(app, "/wait", refused)
    headers = dict(refused[0]["headers"])
    assert (refused[0]["status"], headers[b"retry-after"]) == (503, b"1")
    assert headers[b"access-control-allow-origin"] == b"https://example.org"
    assert headers[b"access-control-expose-headers"] == b"Retry-After, X-Request-ID"
    await ask(app, "/health", health)
    may_go.set()
    await first
    assert (health[0]["status"], waiting[0]["status"]) == (200, 200)


def document() -> dict[str, Any]:
    return openapi_document(serving_app.ROUTES, SERVICE)


def test_the_openapi_document_says_how_keys_are_sent() -> None:
    paths, schemes = document()["paths"], document()["components"]["securitySchemes"]
    assert paths["/v1/translate"]["post"]["security"] == [{}, *({name: []} for name in schemes)]
    assert "security" not in paths["/v1/models"]["get"]


def test_the_openapi_document_suits_the_generators_of_clients() -> None:
    """No field has a default, and each body is JSON or has a file: test_generated_clients.py has the generators."""
    schemas = document()["components"]["schemas"]
    for path, methods in document()["paths"].items():
        if body := methods.get("post", {}).get("requestBody"):
            ((media_type, content),) = body["content"].items()
            model = schemas[content["schema"]["$ref"].rpartition("/")[2]]
            has_file = "file" in model["properties"]
            assert media_type == ("multipart/form-data" if has_file else "application/json"), path
            assert not [name for name, field in model["properties"].items() if "default" in field], path
