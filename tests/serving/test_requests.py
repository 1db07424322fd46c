"""Whatever is sent, the answer is an error in the API's own form: no 500, no traceback, nobody stalled."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib

import pytest

from tests.serving.servers import MULTIPART, Server, form_body

DEEP = b'{"q":' + b"[" * 80_000 + b"]" * 80_000 + b"}"
JSON = {"Content-Type": "application/json"}


# The fields of each path that may hold text; the first one is the text to translate.
FIELDS = {
    "/translate": ("q", "source", "target", "format", "api_key"),
    "/detect": ("q", "api_key"),
    "/v1/translate": ("text", "source", "target", "prefix", "split_sentences"),
    "/v1/words": ("text", "prefix", "source", "target"),
    "/v1/attention": ("text", "translation", "source", "target"),
    "/v2/translate": ("text", "target_lang", "source_lang", "tag_handling", "formality", "split_sentences"),
}
WELL = {"q": "x", "text": "x", "translation": "x"}
WELL |= {"source": "en", "target": "de", "source_lang": "en", "target_lang": "de"}
TRANSLATE = ("/translate", "/v1/translate", "/v2/translate")


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe{}",
        DEEP,
        b'{"q": NaN}',
        b'{"q": ' + b"9" * 5000 + b"}",
        b'{"q": {"a": 1}, "text": {"a": 1}, "source": 1, "target": [], "target_lang": {}}',
        b'{"q": "x", "text": "x", "source": "en", "target": "zz", "target_lang": "zz", "translation": "x"}',
        b'{"q": "\\ud800", "text": "\\ud800", "source": "en", "target": "de", "target_lang": "de", "translation": "x"}',
    ],
    ids=range(10),
)
def test_bodies_that_make_no_sense(server: Server, path: str, body: bytes) -> None:
    answer = server.ask("POST", path, body, headers=JSON)
    if path == "/detect" and body.startswith(b'{"q": "x"'):  # all that is asked for is there
        assert answer.status == 200, answer.body
        return
    assert answer.status == 400, answer.body
    error = answer.json["message"] if path.startswith("/v2") else answer.json["error"]
    assert error["message"] if path.startswith("/v1") else error
    assert "Traceback" not in answer.body.decode()


@pytest.mark.parametrize("path", FIELDS)
def test_half_a_character_is_refused_wherever_it_stands(server: Server, path: str) -> None:
    logged = len(server.log)
    for field in FIELDS[path]:
        asked = {name: WELL[name] for name in FIELDS[path] if name in WELL} | {field: "secret \ud800"}
        answer = server.ask("POST", path, json.dumps(asked).encode(), headers=JSON)
        assert answer.status == 400, (field, answer.body)
        assert answer.json
    unknown = server.ask("POST", path, json.dumps(WELL | {"\ud800": 1}).encode(), headers=JSON)
    assert unknown.status < 500
    assert "secret" not in server.log[logged:]


@pytest.mark.parametrize("path", TRANSLATE)
def test_too_much_is_refused_before_it_is_looked_at_one_by_one(server: Server, path: str) -> None:
    well = {name: WELL[name] for name in FIELDS[path] if name in WELL}
    field = FIELDS[path][0]
    for asked, message in (
        ({field: [0] * 50_000}, "50,000 texts are too many"),
        ({field: "x" * 12_000_000}, " bytes"),
        ({field: "x" * 10_001}, "10,001 characters in a text are too many"),
        ({field: ["x" * 9000] * 12}, "108,000 characters are too many"),
    ):
        answer = server.post(path, well | asked)
        assert answer.status == 413
        assert message in answer.body.decode()
    if path != "/v1/translate":
        assert server.ask("POST", path, b"&".join([b"a=1"] * 3000)).status == 413


@pytest.mark.parametrize("path", TRANSLATE)
def test_a_compressed_body_is_read_up_to_the_limit_of_its_content(server: Server, path: str) -> None:
    asked = json.dumps({name: WELL[name] for name in FIELDS[path] if name in WELL}).encode()
    for body, encoding, status in (
        (gzip.compress(asked), "gzip", 200),
        (asked, "identity", 200),
        (gzip.compress(asked)[:-4], "gzip", 400),
        (gzip.compress(asked) * 2, "gzip", 400),
        (asked, "gzip", 400),
        (zlib.compress(asked), "deflate", 415),
        (asked, "br", 415),
        (gzip.compress(b" " * 100_000_000 + asked), "gzip", 413),
    ):
        answer = server.ask("POST", path, body, headers=JSON | {"Content-Encoding": encoding})
        assert answer.status == status, answer.body
        assert answer.json


def test_a_multipart_form_has_room_for_all_texts_and_no_thousands_of_fields(server: Server) -> None:
    answers = []
    for number in (200, 251):
        fields = [("text", "sea"), *[("more", "x")] * (number - 2), ("target_lang", "DE")]
        answers.append(server.post("/v2/translate", form_body(fields), Content_Type=MULTIPART))
    assert [answer.status for answer in answers] == [200, 413]
    assert answers[1].json["message"] == "the form has more than 250 fields (send fewer)"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize("path", ["/translate", "/v2/translate"])
def test_json_that_is_not_sent_as_json_is_told_apart_from_a_form(server: Server, path: str, kind: str) -> None:
    answer = server.ask("POST", path, b' {"text": "a=b"}', headers={"Content-Type": kind})
    assert answer.status == 400
    assert "the body looks like JSON, and is sent as a form" in str(answer.json)
    assert "send it with -H 'Content-Type: application/json'" in answer.body.decode()


@pytest.mark.parametrize("path", [path for path in FIELDS if path.startswith("/v1")])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"])
def test_our_own_api_takes_json_only(server: Server, path: str, kind: str) -> None:
    form = b"text=the+sea&translation=Meer&source=en"
    for answer in (
        server.ask("POST", path, form, headers={"Content-Type": kind}),
        server.ask("POST", path, json.dumps(WELL).encode(), headers={"Content-Type": kind}),
        server.ask("POST", f"{path}?{form.decode()}", b""),
    ):
        assert (answer.status, answer.json["error"]["code"]) == (415, "unsupported_media_type")
        assert answer.json["error"]["hint"] == "send it with -H 'Content-Type: application/json'"


def test_a_wrong_value_is_told_by_its_field(server: Server) -> None:
    for wrong in (1, ["the sea", 2], {"a": 1}):
        error = server.post("/v1/translate", {"text": wrong, "target": "de"}).json["error"]
        assert (error["where"], error["message"].partition(": Input")[0]) == ("text", "Invalid request: text")
    for field, kind in (
        ("nbest", "number"),
        ("beam", "number"),
        ("length_penalty", "number"),
        ("stream", "valid boolean"),
    ):
        error = server.post("/v1/translate", {"text": "the sea", field: "1"}).json["error"]
        assert error["message"] == f"Invalid request: {field}: Input should be a {kind}"
    well = {"text": "the sea", "source": "en", "nbest": 2.0, "beam": None, "split_sentences": None, "stream": None}
    assert server.post("/v1/translate", well).status == 200


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "a\x00b\x1b[31m\x7f",
        "😀👩‍👩‍👧‍👦🏳️‍🌈",
        "مرحبا بالعالم",
        "\u200b\u200d\ufeff",
        "é" * 100 + "e\u0301" * 100,
        "▁▁ ▁",
        "</s> <s> <pad> <unk>",
        "𝕳𝖊𝖑𝖑𝖔 \U0010ffff \ufffe",
    ],
)
def test_unusual_text_is_translated(server: Server, text: str) -> None:
    answer = server.post("/v1/translate", {"text": text, "source": "en"})
    assert answer.status == 200
    assert isinstance(answer.json["translations"][0]["text"], str)
    assert server.post("/translate", {"q": text, "source": "auto", "target": "en"}).status in (200, 400)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/translate", 405),
        ("DELETE", "/", 405),
        ("GET", "/nothing", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/v1/%00", 404),
        ("GET", "//translate", 405),
        ("GET", "/" + "a" * 20_000, 404),
        ("PURGE", "/translate", 405),
        ("OPTIONS", "*", 404),  # as a load balancer looks whether the server lives
    ],
)
def test_paths_and_methods_that_do_not_exist(server: Server, method: str, path: str, status: int) -> None:
    answer = server.ask(method, path)
    assert answer.status == status
    assert "error" in answer.json


def test_a_wrong_method_is_told_the_right_one(server: Server) -> None:
    answer = server.ask("GET", "/translate")
    assert answer.headers["allow"] == "POST"
    assert answer.json["error"].startswith("this path takes POST (send its fields as JSON: curl ")
    assert server.post("/languages", {}).json["error"] == "this path takes GET (see /docs)"


@pytest.mark.parametrize("host", [b"[", b"a]b:x", b"x/../..", b"\xff", b""])
def test_any_host_is_answered(server: Server, host: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert _status(connection) in (400, 403)  # for lack of a body, or as a name that is not the server's


def test_a_request_that_offers_another_protocol_is_answered_in_this_one(server: Server) -> None:
    """Java's HttpClient offers h2c by default."""
    body = json.dumps({"text": "the old sea", "source": "en"}).encode()
    head = b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert _status(connection) == 200


def _status(connection: socket.socket) -> int:
    """The status of the next answer, which is read to its end."""
    with http.client.HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status
