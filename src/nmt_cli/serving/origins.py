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
from fnmatch import fnmatchcase, translate
from ipaddress import ip_address

from starlette.types import Scope

from nmt_cli.serving.request_errors import RequestError

ANY = "*"
# Names that are in no public DNS, so no site can have one: without a dot, or with an ending of RFC 6761, RFC 6762
# (appendix G), RFC 8375, ICANN's .internal, Linux or Kubernetes.
_LOCAL_NAME = re.compile(
    r"[^.]*|.+\.(corp|home|home\.arpa|internal|intranet|lan|local|localdomain|localhost|private|svc|test)"
)
_MAX_SHOWN_CHARACTERS = 100
# These methods change nothing and cost little, and a browser does not let another site read the answers.
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# These paths tell nothing of the server, and a load balancer asks for them under any name.
_PROBES = ("/health", "/ready")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]*)(:[0-9]*)?")


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The sites whose pages may use the server, and its further names; `*` stands for any characters."""

    origins: Sequence[str]
    hosts: Sequence[str]

    def check(self, scope: Scope) -> None:
        """Raise RequestError 403 if the request has a foreign name in Host, or comes from a page of another site."""
        # A header that comes twice, as only programs send it, counts with its last value.
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if scope["path"] not in _PROBES and not self._has_name(host):
            hint = "nmt serve --allow-host gives the server further names; its IP address always works"
            message = f"the server does not answer as {_shown(host)}"
            raise RequestError(message, hint=hint, status=403, code="wrong_host")
        if scope["method"] not in _SAFE_METHODS and not self._is_own_page(headers, host):
            origin = headers.get(b"origin", b"").decode("latin-1")
            hint = "nmt serve --cors names the sites whose pages may"
            message = f"a page of {_shown(origin) or 'another site'} may not call the server"
            raise RequestError(message, hint=hint, status=403, code="wrong_origin")

    def _has_name(self, host: str) -> bool:
        """Whether the Host header names this server.

        Addresses do, and names of local networks: no site on the internet has such a name, so it cannot be rebound.
        """
        if ANY in self.hosts:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].rstrip(".")
        if _LOCAL_NAME.fullmatch(name) or _matches(name, self.hosts) or name == socket.gethostname().lower():
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _is_own_page(self, headers: Mapping[bytes, bytes], host: str) -> bool:
        """Whether the request comes from no page, from the server's own page, from an allowed site, or from an add-on.

        An add-on may do so because its user has installed it: no page can send the origin of an add-on. The order of
        the checks is that of CrossOriginProtection in Go's net/http. Browsers send Sec-Fetch-Site to https and to this
        machine only; elsewhere Origin is compared with Host.
        """
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        scheme, _, site = origin.partition("://")
        if _matches(origin, self.origins) or scheme.endswith("-extension"):
            return True
        if (relation := headers.get(b"sec-fetch-site")) is not None:
            return relation in (b"same-origin", b"none")
        return not origin or site == host

    @property
    def origins_pattern(self) -> str:
        """A regular expression for the origins of these sites."""
        return "|".join(map(translate, self.origins))


def _matches(value: str, patterns: Sequence[str]) -> bool:
    # An address in brackets is no pattern.
    return value in patterns or any(ANY in pattern and fnmatchcase(value, pattern) for pattern in patterns)


def _shown(value: str) -> str:
    return value[:_MAX_SHOWN_CHARACTERS].encode("ascii", "backslashreplace").decode()
