"""Requests that nobody thought of, from the OpenAPI document and from hypothesis: no 500, no hang, errors in form."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nmt_cli.serving.api import libretranslate
from nmt_cli.serving.api.v1 import TranslateRequest
from tests.serving.servers import Server

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
)

_EXAMPLES = 8
_SOURCE_FIELDS = {
    "/translate": "source",
    "/v1/translate": "source",
    "/v1/words": "source",
    "/v1/attention": "source",
    "/v2/translate": "source_lang",
}
CHECKS = (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
)
# What these take has a form of its own: lines of entries, files.
_OTHER_CONTENT = ("glossaries", "document", "_file")
_ALLOWED = {200, 201, 204, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 499}
QUIETLY = settings(max_examples=_EXAMPLES, suppress_health_check=list(HealthCheck), database=None)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [*TranslateRequest.model_fields, *libretranslate.LibreTranslateRequest.model_fields, "translation"]
)
SENSIBLE = st.sampled_from(["en", "de", "auto", "the old sea", 1, True, ["sea", ""]])
FIELDS = st.dictionaries(NAMES, VALUES | SENSIBLE, max_size=8)
PATHS = st.sampled_from(
    ["/translate", "/detect", "/v1/translate", "/v1/words", "/v1/attention", "/v2/translate", "/v2/languages"]
)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_openapi_document_is_kept(servers: dict[str, Server], mode: GenerationMode) -> None:
    """Every path with what schemathesis makes of its description: what is right is taken, what is wrong is refused."""
    schema = schemathesis.openapi.from_url(f"{servers['operated'].url}/openapi.json")
    # A text may have more pieces than the model takes.
    schema.config.checks.positive_data_acceptance.expected_statuses = ["2xx", "403", "413"]
    seen: dict[int, int] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        described = operation.definition.raw
        in_query = [one for one in described.get("parameters", []) if one["in"] != "path"]
        if mode.is_negative and not in_query and "requestBody" not in described:
            continue  # nothing can be wrong
        if mode.is_positive and any(part in operation.path for part in _OTHER_CONTENT):
            continue

        @QUIETLY
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            if mode.is_positive and case.operation.path == "/v1/translate":
                case.body.pop("prefix", None)  # it goes with a single sentence only
            if mode.is_positive and isinstance(case.body, dict) and case.operation.path in _SOURCE_FIELDS:
                case.body[_SOURCE_FIELDS[case.operation.path]] = "en"  # without it, text in other scripts is refused
            if mode.is_positive and isinstance(case.body, dict):
                for name in ("glossary_id", "glossary_ids", "terms"):  # of a glossary that is there; terms have forms
                    case.body.pop(name, None)
                if case.body.get("split_sentences") == "nonewlines":
                    case.body.pop("split_sentences")  # it goes with texts of a single line only
            response = case.call(timeout=300)
            seen[response.status_code] = seen.get(response.status_code, 0) + 1
            assert response.status_code in _ALLOWED | {503}, response.content
            if response.status_code == 503:
                assert "retry-after" in response.headers
            case.validate_response(response, checks=CHECKS)

        check()
    assert seen[200 if mode.is_positive else 400] > _EXAMPLES


@settings(QUIETLY, max_examples=60)
@given(path=PATHS, fields=FIELDS, kind=st.sampled_from(["json", "form", "query"]))
def test_any_fields_are_answered(server: Server, path: str, fields: dict[str, Any], kind: str) -> None:
    form = urlencode({name: str(value).encode("utf-8", "replace") for name, value in fields.items()})
    match kind:
        case "json":
            answer = server.post(path, fields)
        case "form":
            answer = server.post(path, form.encode(), Content_Type="application/x-www-form-urlencoded")
        case _:
            answer = server.post(f"{path}?{form}", b"")
    assert answer.status in _ALLOWED
    if answer.headers["content-type"] != "application/x-ndjson":
        content = answer.json
        assert answer.status == 200 or ("message" if path.startswith("/v2") else "error") in content


@settings(QUIETLY, max_examples=40)
@given(
    path=PATHS,
    body=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: json.dumps({"q": text})[:-1].encode()),
    kind=st.sampled_from(
        ["application/json", "multipart/form-data", "multipart/form-data; boundary=x", "text/plain", "a/b; c", "", ";;"]
    ),
)
def test_any_bytes_are_answered(server: Server, path: str, body: bytes, kind: str) -> None:
    assert server.post(path, body, Content_Type=kind).status in _ALLOWED
