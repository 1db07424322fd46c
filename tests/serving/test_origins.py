"""Which pages of a browser may use the server, and under which names: by header, and in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from starlette.types import Scope

from nmt_cli.cli.serve import serve
from nmt_cli.errors import UsageError
from nmt_cli.serving.origins import AllowedOrigins
from nmt_cli.serving.request_errors import RequestError
from tests.browser import Browser
from tests.serving.servers import Server

NAMED = AllowedOrigins(
    ["https://app.example", "https://*.app.example", "http://dev.example:*"], ["nmt.example", "*.sub.example"]
)
TEXT = {"text": "the old sea", "source": "en"}
WRONG_HOST = (403, "wrong_host", "nmt serve --allow-host gives the server further names; its IP address always works")
WRONG_ORIGIN = (403, "wrong_origin", "nmt serve --cors names the sites whose pages may")


def refusal(scope: Scope) -> tuple[int, str, str] | None:
    """How `NAMED` refuses a request; None if it takes it."""
    try:
        NAMED.check(scope)
    except RequestError as problem:
        return problem.status, problem.code, problem.hint
    return None


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("127.0.0.1:8000", True),
        ("10.1.2.3", True),
        ("[::1]:8000", True),
        ("localhost:8000", True),
        ("gpubox", True),
        ("host.docker.internal:8000", True),
        ("gpubox.local.", True),
        ("nmt.default.svc.cluster.local", True),
        ("a.deep.sub.example", True),
        ("sub.example", False),
        ("local.evil.example", False),
        ("NMT.example:80", True),
        ("", True),
        ("evil.example", False),
        ("evil.example:8000@127.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("[", False),
    ],
)
def test_the_server_answers_to_addresses_plain_names_and_names_that_it_was_given(host: str, is_answered: bool) -> None:
    scope = {"method": "GET", "path": "/metrics", "headers": [(b"host", host.encode())]}
    assert refusal(scope) == (None if is_answered else WRONG_HOST)
    AllowedOrigins([], ["*"]).check(scope)
    NAMED.check({**scope, "path": "/ready"})


@pytest.mark.parametrize(
    ("sent", "is_taken"),
    [
        ({}, True),  # no browser
        ({"origin": "http://nmt.example:8000"}, True),
        ({"origin": "https://nmt.example:8000"}, True),  # a proxy brings TLS
        ({"origin": "https://app.example"}, True),
        ({"origin": "https://one.two.app.example"}, True),
        ({"origin": "http://dev.example:5173", "sec-fetch-site": "cross-site"}, True),
        ({"origin": "moz-extension://8a1c0f4e-0d2b-4f6e-9b53-1c1f3a7d5e21"}, True),  # an add-on of the user's
        ({"origin": "chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb", "sec-fetch-site": "cross-site"}, True),
        ({"origin": "https://evilapp.example"}, False),
        ({"origin": "https://behind.example", "sec-fetch-site": "same-origin"}, True),  # a proxy changes Host
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://nmt.example:9000"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "https://nmt.example:8000", "sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
    ],
)
def test_only_its_own_pages_and_pages_of_named_sites_may_ask_for_work(sent: dict[str, str], is_taken: bool) -> None:
    headers = {"host": "nmt.example:8000", **sent}
    sent_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": "POST", "path": "/translate", "headers": sent_headers}
    assert refusal(scope) == (None if is_taken else WRONG_ORIGIN)
    AllowedOrigins(["*"], ["nmt.example"]).check(scope)
    NAMED.check({**scope, "method": "GET"})  # a link on a foreign page


def test_a_running_server_refuses_foreign_names_and_pages_and_counts_them(server: Server) -> None:
    before = server.metric('nmt_requests_total{code="403",endpoint="other"}')
    with server.logging_text('"reason": "the server does not answer as evil.example"'):
        renamed = server.get("/v1/models", Host="evil.example")
    assert renamed.status == 403
    assert renamed.json["error"]["message"] == "the server does not answer as evil.example"
    with server.logging_text('"reason": "a page of https://evil.example may not call the server"'):
        foreign = server.post("/translate", b"q=sea&source=en&target=de", Origin="https://evil.example")
    assert foreign.status == 403
    assert foreign.json == {
        "error": "a page of https://evil.example may not call the server"
        " (nmt serve --cors names the sites whose pages may)"
    }
    assert server.metric('nmt_requests_total{code="403",endpoint="other"}') == before + 2
    assert server.post("/v1/translate", TEXT, Origin=server.url).status == 200
    assert server.get("/health", Host="evil.example").status == 200


def test_browsers_questions_are_answered_and_count_as_no_request(server: Server, strict: Server) -> None:
    headers = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
        "Origin": "https://app.example.org",
        "X-Request-ID": "preflight",
    }
    answers = {}
    for one in (strict, server):
        with one.logging_text('"endpoint": "/v1/models"'):
            answers[one] = one.ask("OPTIONS", "/translate", headers=headers)
            one.get("/v1/models")  # its line comes last
        assert "preflight" not in one.log
    allowed, refused = answers[strict], answers[server]
    assert (allowed.status, allowed.headers["access-control-allow-private-network"]) == (200, "true")
    assert allowed.headers["access-control-allow-origin"] == "https://app.example.org"
    assert refused.status == 400
    assert "access-control-allow-origin" not in refused.headers
    assert "access-control-allow-origin" not in server.get("/health", Origin="https://example.org").headers


@pytest.mark.parametrize(
    "name",
    [
        "https://nmt.example",
        "nmt.example:80",
        "nmt.example/page",
    ],
)
def test_a_name_that_no_browser_would_send_is_refused(models: dict[str, Path], name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a host") as error:
        serve(model=[models["en-de"]], allow_host=["*", "nmt.example", name], port=0)
    assert (error.value.where, error.value.message.split()[0]) == ("--allow-host", repr(name))
    assert "--allow-host" in error.value.hint


@pytest.mark.parametrize(
    "site",
    [
        "app.example",
        "https://app.example/",
        "https://",
        "null",
    ],
)
def test_a_site_that_no_browser_would_send_is_refused(models: dict[str, Path], site: str) -> None:
    well = ["*", "https://App.example", "https://*.app.example:8443", "http://localhost:*", "http://[::1]:3000"]
    with pytest.raises(UsageError, match="is not the address of a site") as error:
        serve(model=[models["en-de"]], cors=[*well, "moz-extension://*", site], port=0)
    assert (error.value.where, error.value.message.split()[0]) == ("--cors", repr(site))


@pytest.fixture(scope="module")
def foreign_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The port of a site of somebody else's."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<title>a page of somebody else's</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever).start()
        yield f"http://evil.example:{site.server_address[1]}/"
        site.shutdown()


FORM = "new URLSearchParams({q: 'the old sea', source: 'en', target: 'de'})"


def test_a_page_of_another_site_gets_nothing_done_in_a_browser(
    browser: Browser, server: Server, foreign_page: str
) -> None:
    tokens = 'nmt_tokens_total{model="en-de",side="source"}'
    before = server.metric(tokens)
    with server.logging_text('"endpoint": "/ready"'):
        browser.open(foreign_page)
        send = f"fetch('{server.url}/translate', {{method: 'POST', mode: 'no-cors', body: {FORM}}})"
        assert browser.run(f"{send}.then(answer => answer.type)") == "opaque"
        text = f"{{method: 'POST', mode: 'no-cors', body: {json.dumps(json.dumps(TEXT))}}}"
        browser.run(f"fetch('{server.url}/v1/translate', {text}).then(answer => answer.type)")
        browser.run(f"navigator.sendBeacon('{server.url}/translate', {FORM})")
        # A form of the page, whose answer goes into a frame; and a frame of the server's own page.
        browser.run(
            f"document.body.innerHTML = `<iframe name=answer></iframe><iframe id=page src={server.url}/></iframe>"
            f"<form method=post target=answer action={server.url}/translate><input name=q value=sea>"
            "<input name=source value=en><input name=target value=de></form>`; document.forms[0].submit()"
        )
        browser.until("[...document.querySelectorAll('iframe')].every(one => one.contentDocument === null)")
        assert any("frame-ancestors" in entry for entry in browser.console)
        for url in ("/v1/models", "/metrics"):
            assert browser.run(f"fetch('{server.url}{url}').then(() => 'read', () => 'not read')") == "not read"
        # The name of the page now leads to the server.
        browser.open(f"http://rebound.example:{server.port}/health")
        post = "{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"text\": \"the sea\"}'}"
        for url, sent in (("/v1/models", "{}"), ("/metrics", "{}"), ("/v1/translate", post)):
            assert browser.run(f"fetch('{url}', {sent}).then(answer => answer.status)") == 403
        server.get("/ready")  # its line comes last
    assert server.metric(tokens) == before
