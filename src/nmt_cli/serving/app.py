"""The application: the APIs, operations, the page, and the one place where errors become answers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt_cli import __version__
from nmt_cli.errors import NmtError
from nmt_cli.serving import deepl, documentation, libretranslate, metrics, own, words
from nmt_cli.serving.refusals import Refused, busy
from nmt_cli.serving.service import Service
from nmt_cli.serving.translation import ClientGone

logger = logging.getLogger(__name__)

# nginx's code for a client that has gone; nobody sees it but the log.
_CLIENT_GONE = 499
_WATCHING = ("/health", "/ready", "/metrics")
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def build(service: Service, *, origins: Sequence[str]) -> FastAPI:
    """The application of a service; pages of `origins` may call it from a browser."""
    app = FastAPI(
        title="nmt serve",
        version=__version__,
        description="Translation with the models of this server.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for dialect in (own, words, libretranslate, deepl):
        app.include_router(dialect.routes(service))
    _add_operations(app, service)
    _add_pages(app)
    app.add_exception_handler(NmtError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_path)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(Exception, _confess)
    app.add_middleware(Doorkeeper, service=service)
    if origins:
        # Around the doorkeeper, whose refusals a page may read too; a browser's question before a call is no request.
        app.add_middleware(
            Visitors,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["operations"], summary="Whether the server runs")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["operations"], summary="Whether all models are loaded: 200 or 503")
    async def ready() -> JSONResponse:
        is_ready = service.models.are_ready
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, status_code=200 if is_ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["operations"], summary="Counters for Prometheus")
    async def counters() -> Response:
        return Response(service.metrics.render(), media_type=metrics.CONTENT_TYPE)


def _add_pages(app: FastAPI) -> None:
    page = files("nmt_cli.serving").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": _PAGE_POLICY, "X-Content-Type-Options": "nosniff"}

    @app.get("/", include_in_schema=False)
    async def translate_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(documentation.page(app), headers=headers)


class Visitors(CORSMiddleware):
    """Pages of other sites: those that are named may call; the others are refused in the API's own form."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser that asks whether a page may call, or let the application answer."""
        headers = Headers(raw=scope.get("headers", []))
        asks = "access-control-request-method" in headers and "origin" in headers
        is_question = scope.get("method") == "OPTIONS" and asks
        if not is_question or self.preflight_response(headers).status_code == 200:
            await super().__call__(scope, receive, send)
            return
        hint = "nmt serve --cors names the sites whose pages may"
        refused = Refused("a page of that site may not call the server", hint=hint, status=403, code="wrong_origin")
        await _form(refused, path=scope["path"])(scope, receive, send)


class Doorkeeper:
    """Counts, times and logs requests, and lets in no more than are allowed at once; no text, no query, no address.

    A request is in from the last byte of its body on: one that is sent slowly takes no place.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._num_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = _CLIENT_GONE
        is_inside = False
        method = scope["method"]
        if method == "HEAD":
            # The answer is GET's; uvicorn leaves its body out.
            scope = {**scope, "method": "GET"}

        def enter() -> None:
            nonlocal is_inside
            is_inside = True
            self._count(1)
            if self._num_inside > self._service.limits.requests and scope["path"] not in _WATCHING:
                raise busy("too many requests at once", retry_after_seconds=1)

        async def receive_and_enter() -> Message:
            message = await receive()
            if not is_inside and message["type"] == "http.request" and not message.get("more_body", False):
                enter()
            return message

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if not _has_body(scope):
                enter()
            await self._app(scope, receive_and_enter, send_and_look)
        except Refused as problem:
            await _form(problem, path=scope["path"])(scope, receive, send_and_look)
        except Exception:
            status = 500
            raise
        finally:
            if is_inside:
                self._count(-1)
            self._record(scope, method, status, time.perf_counter() - started)

    def _count(self, change: int) -> None:
        self._num_inside += change
        self._service.metrics.in_flight.set(self._num_inside)

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        found = self._service.metrics
        # The pattern, not the path: a path may hold anything.
        endpoint = getattr(scope.get("route"), "path", "other")
        found.requests.labels(endpoint, str(status)).inc()
        found.request_seconds.labels(endpoint).observe(seconds)
        event = {
            "event": "request",
            "time": round(time.time(), 3),
            "method": method if method.isalpha() and len(method) < 10 else "other",
            "endpoint": endpoint,
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
            "client": scope.get("state", {}).get("client"),
        }
        logger.info("%s", json.dumps(event))


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


async def _refuse(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, NmtError)
    if not isinstance(problem, Refused):
        problem = Refused(problem.message, hint=problem.hint, where=problem.where, status=400, code="invalid_request")
    return _form(problem, path=request.scope["path"])


async def _refuse_path(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    message = {404: "there is no such path", 405: "this path has no such method"}.get(problem.status_code, "no")
    refused = Refused(message, hint="see /docs", status=problem.status_code, code="no_such_path")
    return _form(refused, path=request.scope["path"], headers=problem.headers or {})


async def _answer_nobody(request: Request, problem: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


async def _confess(request: Request, problem: Exception) -> Response:
    refused = Refused("the server made a mistake", hint="its log has more", status=500, code="internal")
    return _form(refused, path=request.scope["path"])


def _form(problem: Refused, *, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """The refusal in the form of the API that the path belongs to."""
    hint = f" ({problem.hint})" if problem.hint else ""
    content: dict[str, Any]
    if path.startswith("/v1/"):
        content = own.error_form(problem)
    elif path.startswith("/v2/"):
        content = {"message": problem.message + hint}
    else:
        content = {"error": problem.message + hint}
    more = dict(headers or {})
    if problem.retry_after_seconds is not None:
        more["Retry-After"] = str(problem.retry_after_seconds)
    # A value that was refused may hold half a character.
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status_code=problem.status, headers=more, media_type="application/json")
