"""The application: all endpoints, the page, limits on requests, and the answers to errors."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from nmt_cli.errors import NmtError
from nmt_cli.serving.api import deepl, deepl_documents, deepl_glossaries, libretranslate, v1
from nmt_cli.serving.api.endpoints import JsonRoute, OpenCall, json_response, openapi_document
from nmt_cli.serving.log import request_id, request_id_from
from nmt_cli.serving.origins import AllowedOrigins
from nmt_cli.serving.request_errors import (
    BUSY,
    ClientGone,
    RequestError,
    request_error_from,
    server_busy_error,
    unexpected_error,
)
from nmt_cli.serving.server_metrics import CONTENT_TYPE
from nmt_cli.serving.service import Service
from nmt_cli.templates.render import render

logger = logging.getLogger(__name__)

# nginx's code for a client that has gone; only the log shows it.
_STATUS_CLIENT_GONE = 499
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Status(BaseModel):
    """The state of the server in a word."""

    status: str


_operations = APIRouter(
    route_class=JsonRoute, tags=["operations"], generate_unique_id_function=lambda route: route.name
)


@_operations.get("/health", response_model=Status)
async def health(call: OpenCall) -> Response:
    """200 as long as the server answers at all."""
    return json_response({"status": "ok"})


@_operations.get("/ready", response_model=Status, responses={503: {"model": Status, "description": BUSY}})
async def ready(call: OpenCall) -> Response:
    """200 if every model has a worker, else 503."""
    is_ready = call.service.models.are_ready
    return json_response({"status": "ready" if is_ready else "not ready"}, status=200 if is_ready else 503)


@_operations.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(call: OpenCall) -> Response:
    """The metrics in Prometheus's text format."""
    return Response(call.service.metrics.render(), media_type=CONTENT_TYPE)


_MONITORING_PATHS = {"/health", "/ready", "/metrics"}
# The most used first, because the router compares a path with one after another.
_DEEPL_ROUTES = [*deepl.router.routes, *deepl_documents.router.routes, *deepl_glossaries.router.routes]
ROUTES = [*v1.router.routes, *_DEEPL_ROUTES, *libretranslate.router.routes, *_operations.routes]
# These are answered with more slashes too, as clients write a path after an address that ends with one.
_PATHS_WITH_SLASHES = {"/docs"} | {
    route.path for route in (*_DEEPL_ROUTES, *libretranslate.router.routes) if isinstance(route, Route)
}


def create_app(service: Service, *, allowed_origins: AllowedOrigins) -> CORSMiddleware:
    """The application of a service for the pages that are allowed to use it."""
    routes = [*ROUTES, *_pages(openapi_document(ROUTES, service)).routes]
    # Outermost, so that a page may read every error, and a browser's preflight does not count as a request.
    return CORSMiddleware(
        Application(Router(routes, redirect_slashes=False), service, allowed_origins),
        allow_origin_regex=allowed_origins.origins_pattern,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["Retry-After", "X-Request-ID"],
    )


def _pages(document: dict[str, Any]) -> APIRouter:
    """The page to translate on, the OpenAPI document, and the page that shows it."""
    contents = {
        "/": files("nmt_cli.serving").joinpath("page.html").read_text(encoding="utf-8"),
        "/docs": render("api.html", document=document),
    }
    headers = {"Content-Security-Policy": _PAGE_POLICY}
    pages = APIRouter(route_class=JsonRoute)

    @pages.get("/")
    @pages.get("/docs")
    async def page(call: OpenCall) -> Response:
        return HTMLResponse(contents[call.request.scope["path"]], headers=headers)

    @pages.get("/openapi.json")
    async def openapi(call: OpenCall) -> Response:
        return json_response(document)

    return pages


class Application:
    """Limits, counts, times and logs requests, without text, query or address, and answers their errors.

    `router` finds it in the scope, as `app`, and raises its errors.
    """

    def __init__(self, router: Router, service: Service, allowed_origins: AllowedOrigins) -> None:
        self.service = service
        self._router = router
        self._allowed_origins = allowed_origins
        self._num_in_work = 0
        service.metrics.in_flight.set_function(lambda: self._num_in_work)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = time.perf_counter()
        status, reason = _STATUS_CLIENT_GONE, None
        own_id = request_id_from(dict(scope["headers"]).get(b"x-request-id"))
        request_id.set(own_id)
        method, scope = scope["method"], _as_routed(scope)
        scope["app"] = self

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", own_id.encode()), _NO_SNIFFING]
            await send(message)

        self._num_in_work += 1
        try:
            if self._num_in_work > self.service.limits.concurrent_requests and scope["path"] not in _MONITORING_PATHS:
                raise server_busy_error("too many requests at once", retry_after_seconds=1)
            self._allowed_origins.check(scope)
            await self._router(scope, receive, send_and_note_status)
        except ClientGone:
            await Response(status_code=_STATUS_CLIENT_GONE)(scope, receive, send_and_note_status)
        except Exception as error:  # uvicorn would answer an unexpected one in plain text
            refusal, has_begun = _refusal(error, path=scope["path"]), status != _STATUS_CLIENT_GONE
            if "route" not in scope or isinstance(error, HTTPException):  # others may hold words of a text
                reason = refusal.message
            if not has_begun:
                response = _error_response(refusal, path=scope["path"], headers=getattr(error, "headers", None))
                await response(scope, receive, send_and_note_status)
            if has_begun or refusal.status == 500:
                status = 500
                raise  # uvicorn logs it
        finally:
            self._num_in_work -= 1
            self._count_and_log(scope, method, status, time.perf_counter() - started, reason)

    def _count_and_log(self, scope: Scope, method: str, status: int, seconds: float, reason: str | None) -> None:
        # The pattern, not the path: a path may hold anything.
        endpoint = getattr(scope.get("route"), "path", "other")
        self.service.metrics.add_request(endpoint, status, seconds)
        fields = {
            "method": method,
            "endpoint": endpoint,
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
            "client": scope.get("state", {}).get("client"),
        } | ({"reason": reason} if reason else {})
        logger.info("%s %s: %s", method, endpoint, reason or status, extra={"fields": {"event": "request", **fields}})


def _as_routed(scope: Scope) -> Scope:
    """The request with the method and path of its route: HEAD as GET, and some paths without needless slashes."""
    method, path = scope["method"], scope["path"]
    if method == "HEAD":
        method = "GET"  # uvicorn leaves the body of the answer out
    if "//" in path or path.endswith("/"):
        plain_path = re.sub("/+", "/", path).removesuffix("/")
        path = plain_path if plain_path in _PATHS_WITH_SLASHES else path
    return {**scope, "method": method, "path": path}


def _refusal(error: Exception, *, path: str) -> RequestError:
    match error:
        case RequestError():
            return error
        case NmtError():
            return request_error_from(error, status=400, code="invalid_request")
        case HTTPException():
            return _routing_error(error, path)
        case _:
            return unexpected_error()


def _routing_error(error: HTTPException, path: str) -> RequestError:
    """The error for a request that Starlette's router refuses: for its path with 404, for its method with 405."""
    code, message, hint = "no_such_path", "there is no such path", "see /docs"
    if error.status_code == 405:
        method = (error.headers or {}).get("Allow", "")
        code, message = "method_not_allowed", f"this path takes {method}"
        if method == "POST":
            hint = f"send its fields as JSON: curl -H 'Content-Type: application/json' -d JSON URL{path}; see /docs"
    return RequestError(message, hint=hint, status=error.status_code, code=code)


def _error_response(error: RequestError, *, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """The refusal in the form of the API that the path belongs to."""
    error_content = libretranslate.error_content
    if path.startswith("/v1/"):
        error_content = v1.error_content
    elif path.startswith(("/v2/", "/v3/")):
        error_content = deepl.error_content
    all_headers = dict(headers or {})
    if error.retry_after_seconds is not None:
        all_headers["Retry-After"] = str(error.retry_after_seconds)
    # A value that was refused may hold half a character.
    body = json.dumps(error_content(error), ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status_code=error.status, headers=all_headers, media_type="application/json")
