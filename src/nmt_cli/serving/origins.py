"""Origins and hosts: which pages in a browser may use the server, and under which names it answers.

A page of any site can send requests to a server on its visitor's machine. After DNS rebinding, it can also read the
answers: the name of its own site then leads to the server. The browser tells the truth in the headers Origin,
Sec-Fetch-Site and Host, which a page cannot change. Programs other than browsers send no Origin and no Sec-Fetch-Site.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from nmt_cli.serving.errors import RequestError, shorten

ANY = "*"
# These methods change nothing and cost little, and a browser does not let another site read the answers.
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# These paths tell nothing of the server, and a load balancer asks for them under any name.
_PROBES = ("/health", "/ready")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]*)(:[0-9]*)?")


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The sites whose pages may use the server, and its further names; `*` allows all."""

    origins: Sequence[str]
    hosts: Sequence[str]

    def check(self, scope: Scope) -> None:
        """Raise RequestError 403 if the request has a foreign name in Host, or comes from a page of another site."""
        # A header that comes twice, as only programs send it, counts with its last value.
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if scope["path"] not in _PROBES and not self._has_name(host):
            name = shorten(host.encode("ascii", "backslashreplace").decode())
            hint = "nmt serve --allow-host gives the server further names; its IP address always works"
            raise RequestError(f"the server does not answer as {name}", hint=hint, status=403, code="wrong_host")
        if scope["method"] not in _SAFE_METHODS and not self._is_own_page(headers, host):
            raise wrong_origin_error()

    def _has_name(self, host: str) -> bool:
        """Whether the Host header names this server.

        Addresses do, and names without a dot: no site on the internet has such a name, so it cannot be rebound.
        """
        if ANY in self.hosts:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].rstrip(".")
        if "." not in name or name.endswith(".localhost") or name in self.hosts or name == socket.gethostname().lower():
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _is_own_page(self, headers: Mapping[bytes, bytes], host: str) -> bool:
        """Whether the request comes from no page, from the server's own page, or from a page of an allowed site.

        The order of the checks is that of CrossOriginProtection in Go's net/http. Browsers send Sec-Fetch-Site to
        https and to this machine only; elsewhere Origin is compared with Host.
        """
        origin = headers.get(b"origin")
        if ANY in self.origins or (origin is not None and origin.decode("latin-1") in self.origins):
            return True
        if (site := headers.get(b"sec-fetch-site")) is not None:
            return site in (b"same-origin", b"none")
        return origin is None or origin.decode("latin-1").lower().partition("://")[2] == host


def wrong_origin_error() -> RequestError:
    """The refusal of a page: 403."""
    hint = "nmt serve --cors names the sites whose pages may"
    return RequestError("a page of that site may not call the server", hint=hint, status=403, code="wrong_origin")


class HostAndOriginMiddleware:
    """Raises RequestError for a foreign name of the server, and for a page of a site that is not allowed."""

    def __init__(self, app: ASGIApp, *, allowed: AllowedOrigins) -> None:
        self._app, self._allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        self._allowed.check(scope)
        await self._app(scope, receive, send)


class CorsMiddleware(CORSMiddleware):
    """Adds the CORS headers for pages of allowed sites, and refuses the preflight requests of pages of other sites."""

    def __init__(self, app: ASGIApp, *, allowed: AllowedOrigins, refuse: ASGIApp) -> None:
        super().__init__(
            app,
            allow_origins=list(allowed.origins),
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=["Retry-After", "X-Request-ID"],
        )
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight request, or let the application answer."""
        if scope.get("method") == "OPTIONS" and self._refuses_preflight(Headers(scope=scope)):
            await self._refuse(scope, receive, send)
        elif self.allow_origins:
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refuses_preflight(self, headers: Headers) -> bool:
        is_preflight = "access-control-request-method" in headers and "origin" in headers
        return is_preflight and self.preflight_response(headers).status_code != 200
