"""The fields of a request, from JSON, a form or the query string, within limits of size."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NoReturn
from urllib.parse import parse_qs

from fastapi import Request
from fastapi.datastructures import Headers
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from nmt_cli.serving.queued_texts import Caller
from nmt_cli.serving.request_errors import (
    ClientGone,
    RequestError,
    invalid_request_error,
    shorten,
    too_large_error,
    too_many_error,
)
from nmt_cli.serving.request_limits import RequestLimits

# Fields of a form beside its texts. Reading a field blocks the server for 0.08 ms.
_OTHER_FIELDS = 50


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


# JSON has no NaN and no Infinity, which Python's decoder would read.
_STRICT_JSON = json.JSONDecoder(parse_constant=_reject_constant)
_HEADER_HINT = "send it with -H 'Content-Type: application/json'"
_JSON_HINT = "send UTF-8 JSON with Content-Type: application/json"


async def read_fields(request: Request, limits: RequestLimits) -> dict[str, Any]:
    """The fields of body and query string, the body's first; a form's field that comes twice is a list.

    The values are not checked yet.
    """
    # Not request.url: it is made from the Host header, which may be anything.
    max_fields = limits.texts + _OTHER_FIELDS
    fields = _form_fields(request.scope["query_string"].decode("latin-1"), max_fields=max_fields)
    body = await _read_body(request, max_bytes=limits.body_bytes)
    if not body:
        return fields
    if _is_json(request):
        return fields | _json_fields(body, max_texts=limits.texts)
    if _content_type(request) == "multipart/form-data":
        return fields | await _multipart_fields(body, request.headers, max_fields=max_fields)
    if body.lstrip().startswith(b"{"):
        raise invalid_request_error("the body looks like JSON, and is sent as a form", hint=_HEADER_HINT)
    try:
        return fields | _form_fields(body.decode("utf-8"), max_fields=max_fields)
    except UnicodeDecodeError:
        raise invalid_request_error("the body is not UTF-8", hint=_JSON_HINT) from None


async def read_file_fields(request: Request, limits: RequestLimits) -> dict[str, Any]:
    """The fields of a form, one of which may be a file."""
    body = await _read_body(request, max_bytes=limits.body_bytes)
    if _content_type(request) != "multipart/form-data":
        hint = "send it with curl -F file=@page.html"
        raise invalid_request_error("the file is not sent in a form", hint=hint, where="file")
    return await _multipart_fields(body, request.headers, max_fields=_OTHER_FIELDS, max_files=1)


async def read_json_fields(request: Request, limits: RequestLimits) -> dict[str, Any]:
    """The fields of a body that must be JSON; RequestError 415 otherwise.

    A browser asks the server before it sends JSON for a page of another site. It sends forms without asking.
    """
    if not _is_json(request):
        message = "the body is not sent as JSON"
        raise RequestError(message, hint=_HEADER_HINT, status=415, code="unsupported_media_type")
    body = await _read_body(request, max_bytes=limits.body_bytes)
    return _json_fields(body, max_texts=limits.texts)


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(request: Request) -> bool:
    return _content_type(request).endswith("json")


def wrong_field_error(error: ValidationError) -> RequestError:
    """The refusal for the first wrong field; it never shows the field's value."""
    first = error.errors(include_url=False)[0]
    name = shorten(str(first["loc"][0])) if first["loc"] else "request"
    match first["type"]:
        case "blank" if len(first["loc"]) > 1:
            reason, hint = f"{name} has an empty text", "write a text, or take it out"
        case "missing" | "blank" | "string_too_short":
            name = shorten(str(first["loc"][-1]))
            reason = f"missing {name} parameter"
            hint = f"give {name}; the page at /docs has the parameters of each call"
        case "extra_forbidden":
            reason, hint = f"there is no {name}", "leave it out; the page at /docs has the parameters of each call"
        case "string_type" if name == "terms":
            reason, hint = "a translation in terms is no string", "write several forms as Haus|Hauses"
        case _:
            reason, hint = f"{name}: {first['msg']}", "see /docs"
    return invalid_request_error(f"Invalid request: {reason}", hint=hint, where=name)


@contextmanager
def watch_caller(request: Request) -> Iterator[Caller]:
    """The caller of a request whose body has been read."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    disconnected = asyncio.ensure_future(wait_for_disconnect())
    try:
        yield Caller(caller_name(request), disconnected)
    finally:
        disconnected.cancel()


def caller_name(request: Request) -> str:
    """The owner of the key of a request, or else the address that it comes from."""
    address = request.client.host if request.client else ""
    return request.scope.get("state", {}).get("client") or address


async def _read_body(request: Request, *, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _long_body_error(max_bytes)
    body = bytearray()
    while (message := await request.receive())["type"] == "http.request":
        body += message["body"]
        if len(body) > max_bytes:
            raise _long_body_error(max_bytes)
        if not message.get("more_body", False):
            return _decoded(bytes(body), request.headers.get("content-encoding"), max_bytes=max_bytes)
    raise ClientGone


def _decoded(body: bytes, encoding: str | None, *, max_bytes: int) -> bytes:
    """The body as it was before the client compressed it."""
    if encoding is None or encoding.lower() == "identity":
        return body
    if encoding.lower() != "gzip":
        message = f"the body has the Content-Encoding {shorten(encoding)}"
        raise RequestError(message, hint="send it as gzip or as it is", status=415, code="unsupported_media_type")
    try:
        content = gzip.GzipFile(fileobj=BytesIO(body)).read(max_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise invalid_request_error("the body is no whole file of gzip", hint="leave Content-Encoding out") from None
    if len(content) > max_bytes:
        raise _long_body_error(max_bytes)
    return content


def _long_body_error(max_bytes: int) -> RequestError:
    return too_large_error(f"the body has more than {max_bytes:,} bytes", hint="send the text in several requests")


def _many_fields_error(max_fields: int) -> RequestError:
    return too_large_error(f"the form has more than {max_fields:,} fields", hint="send fewer")


def _json_fields(body: bytes, *, max_texts: int) -> dict[str, Any]:
    try:
        text = body.decode("utf-8-sig")
        content = _STRICT_JSON.decode(text)
    except (ValueError, RecursionError):
        raise invalid_request_error("the body is not JSON in UTF-8", hint=_JSON_HINT) from None
    if not isinstance(content, dict):
        raise invalid_request_error("the JSON is no object", hint="send an object with the fields that /docs lists")
    if "\\ud" in text.lower():  # other escapes are whole characters
        _check_unicode(content)
    # Checked before the values, because thousands of wrong values take long to describe.
    for value in content.values():
        if isinstance(value, list) and len(value) > max_texts:
            raise too_many_error(len(value), "texts", limit=max_texts)
    return {name: value for name, value in content.items() if value is not None}  # null stands for the default


def _check_unicode(content: dict[str, Any]) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        hint = "send whole characters: a lone surrogate is none"
        raise invalid_request_error("the text holds half a character", hint=hint) from None


def _form_fields(text: str, *, max_fields: int) -> dict[str, Any]:
    try:
        values_by_name = parse_qs(text, keep_blank_values=True, max_num_fields=max_fields, errors="strict")
    except UnicodeDecodeError:
        raise invalid_request_error("the form is not UTF-8", hint=_JSON_HINT) from None
    except ValueError:
        raise _many_fields_error(max_fields) from None
    return _single_or_list(values_by_name)


async def _multipart_fields(body: bytes, headers: Headers, *, max_fields: int, max_files: int = 0) -> dict[str, Any]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(headers, stream(), max_files=max_files, max_fields=max_fields, max_part_size=len(body))
    try:
        form = await parser.parse()
    except (MultiPartException, ValueError, LookupError) as error:
        if "Too many fields" in str(error):
            raise _many_fields_error(max_fields) from None
        raise invalid_request_error("the form cannot be read", hint=_JSON_HINT) from None
    files = {name: value for name, value in form.items() if isinstance(value, UploadFile)}
    return files | _single_or_list({name: list(map(str, form.getlist(name))) for name in form if name not in files})


def _single_or_list(values_by_name: Mapping[str, list[str]]) -> dict[str, Any]:
    """The fields of a form; it sends the line breaks of a text as CR and LF, and here they are LF."""
    fields = {name: [value.replace("\r\n", "\n") for value in values] for name, values in values_by_name.items()}
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
