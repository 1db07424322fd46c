"""The fields of a request, from JSON, a form or the query string, within limits of size and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from nmt_cli.serving.errors import RequestError, invalid_request, shortened, too_large, too_many_texts
from nmt_cli.serving.service import Caller, RequestLimits

M = TypeVar("M", bound=BaseModel)

_MAX_FIELDS = 2000
# Of a multipart form, beside its texts. A field takes 0.08 ms to read, in which the server does nothing else.
_OTHER_FIELDS = 50


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_constant=_no_constant)
_HEADER_HINT = "send it with -H 'Content-Type: application/json'"
_JSON_HINT = "send UTF-8 JSON with Content-Type: application/json"


async def read_fields(request: Request, limits: RequestLimits, *, kind: type[BaseModel]) -> dict[str, Any]:
    """The fields of body and query string, the body's first; a form's field that comes twice is a list.

    The values are not checked yet. An error shows the first field of `kind` as an example.
    """
    # Not request.url: it is made from the Host header, which may be anything.
    fields = _form_fields(request.scope["query_string"].decode("latin-1"))
    body = await _read_body(request, max_bytes=limits.body_bytes, timeout_seconds=limits.timeout_seconds)
    if not body:
        return fields
    if _is_json(request):
        return fields | _json_fields(body, kind=kind, max_texts=limits.texts)
    if _content_type(request) == "multipart/form-data":
        return fields | await _multipart_fields(body, request.headers, max_fields=limits.texts + _OTHER_FIELDS)
    if body.lstrip().startswith(b"{"):
        raise invalid_request("the body looks like JSON, and is sent as a form", hint=_HEADER_HINT)
    try:
        return fields | _form_fields(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise invalid_request("the body is not UTF-8", hint=_JSON_HINT) from None


async def read_json_fields(request: Request, limits: RequestLimits, *, kind: type[BaseModel]) -> dict[str, Any]:
    """The fields of a body that must be JSON; RequestError 415 otherwise.

    A browser asks the server before it sends JSON for a page of another site. It sends forms without asking.
    """
    if not _is_json(request):
        message = "the body is not sent as JSON"
        raise RequestError(message, hint=_HEADER_HINT, status=415, code="unsupported_media_type")
    body = await _read_body(request, max_bytes=limits.body_bytes, timeout_seconds=limits.timeout_seconds)
    return _json_fields(body, kind=kind, max_texts=limits.texts)


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(request: Request) -> bool:
    return _content_type(request).endswith("json")


def validate_fields(kind: type[M], fields: Mapping[str, Any]) -> M:
    """The fields as a model; RequestError names the first wrong field, but never shows its value."""
    try:
        return kind.model_validate(fields)
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(error["loc"][0]) if error["loc"] else "request"
        names = ", ".join(kind.model_fields)
        if error["type"] == "missing":
            hint = f"give {name}; the page at /docs has the parameters of each call"
            raise invalid_request(f"Invalid request: missing {name} parameter", hint=hint, where=name) from None
        if error["type"] == "extra_forbidden":
            name = shortened(name)
            raise invalid_request(f"Invalid request: there is no {name}", hint=f"take {names}", where=name) from None
        message = str(error["msg"])
        raise invalid_request(f"Invalid request: {name}: {message}", hint="see /docs", where=name) from None


def refuse_markup(kind: str | None) -> None:
    """Raise RequestError if the text is not plain."""
    if kind is not None and kind != "text":
        message = f"{shortened(kind)} is not supported: tags would be translated as words"
        raise invalid_request(message, hint="send plain text, with the tags taken out", where="format")


@contextmanager
def watch_caller(request: Request) -> Iterator[Caller]:
    """The caller of a request whose body has been read: the owner of its key, or else its address."""

    async def wait() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(wait())
    try:
        owner = request.scope.get("state", {}).get("client")
        yield Caller(owner or (request.client.host if request.client else ""), task)
    finally:
        task.cancel()


async def _read_body(request: Request, *, max_bytes: int, timeout_seconds: float) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        _refuse_length(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_seconds):
            while (message := await request.receive())["type"] == "http.request":
                body += message["body"]
                if len(body) > max_bytes:
                    _refuse_length(max_bytes)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        hint = "send it in one go"
        raise RequestError("the body did not arrive in time", hint=hint, status=408, code="timeout") from None
    raise RequestError("the client has gone", hint="stay", status=400, code="gone")


def _refuse_length(max_bytes: int) -> NoReturn:
    raise too_large(f"the body has more than {max_bytes:,} bytes", hint="send the text in several requests")


def _json_fields(body: bytes, *, kind: type[BaseModel], max_texts: int) -> dict[str, Any]:
    try:
        value = _JSON.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise invalid_request("the body is not UTF-8", hint=_JSON_HINT) from None
    except ValueError:
        raise invalid_request("the body is not JSON", hint=_JSON_HINT) from None
    except RecursionError:
        raise invalid_request("the JSON is nested too deeply", hint="send an object of texts and numbers") from None
    if not isinstance(value, dict):
        example = f'{{"{next(iter(kind.model_fields))}": "..."}}'
        raise invalid_request("the JSON is no object", hint=f"send an object, as in {example}")
    if len(value) > _MAX_FIELDS:
        _refuse_number("JSON")
    # Checked before the values, because thousands of wrong values take long to describe.
    for one in value.values():
        if isinstance(one, list) and len(one) > max_texts:
            raise too_many_texts(len(one), most=max_texts)
    return value


def _refuse_number(kind: str, *, most: int = _MAX_FIELDS) -> NoReturn:
    raise too_large(f"the {kind} has more than {most:,} fields", hint="send fewer") from None


def _form_fields(text: str) -> dict[str, Any]:
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise invalid_request("the form is not UTF-8", hint=_JSON_HINT) from None
    except ValueError:
        _refuse_number("form")
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


async def _multipart_fields(body: bytes, headers: Headers, *, max_fields: int) -> dict[str, Any]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(
            headers, stream(), max_files=0, max_fields=max_fields, max_part_size=len(body)
        ).parse()
    except MultiPartException as problem:
        if "Too many fields" in problem.message:
            _refuse_number("form", most=max_fields)
        raise invalid_request("the form cannot be read", hint=_JSON_HINT) from None
    except (UnicodeDecodeError, KeyError, ValueError, LookupError):
        raise invalid_request("the form cannot be read", hint=_JSON_HINT) from None
    fields: dict[str, Any] = {}
    for name in form:
        values = [str(value) for value in form.getlist(name)]
        fields[name] = values[0] if len(values) == 1 else values
    return fields
