"""Endpoints: the request and the answer of each path, for routing, for validation and for the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nmt_cli import __version__
from nmt_cli.serving.api.requests import read_fields, validate_fields
from nmt_cli.serving.errors import RequestError
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.routing import Service

Fields = TypeVar("Fields", bound=BaseModel)

# Made once: that takes longer than to encode a short answer.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

# The statuses with which an endpoint may refuse a text.
TEXT_ERRORS = (400, 403, 408, 413, 429, 503)
_REASONS = {
    400: "The request makes no sense.",
    403: "The key is wrong.",
    408: "The body did not arrive in time.",
    409: "A model cannot be loaded; the old one stays.",
    413: "A limit of the server, or of the key.",
    429: "The key's requests of this minute are used up; see Retry-After.",
    503: "No room, no time or no model now; see Retry-After.",
}
_REASONS_WITH_MISSING_KEY = {
    400: "The request makes no sense, or the key is missing.",
    401: "The key is missing.",
    403: "The key is wrong, or missing.",
}
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_SCHEMAS = "#/components/schemas/"


class NoFields(BaseModel):
    """A request without fields."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Fields]):
    """A request to an endpoint: its fields, which are checked, and the owner of its key."""

    service: Service
    request: Request
    fields: Fields
    owner: KeyOwner


Handler = Callable[[Call[Fields]], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path and method of an API, with the models of its request and of its answer.

    `takes` is read from JSON, a form or the query string; the document names forms only if `forms`.
    """

    api: Api
    method: str
    path: str
    summary: str
    handler: Handler[Any]
    takes: type[BaseModel]
    forms: bool
    answer: Any
    media_type: str
    streams: str | None
    errors: Sequence[int]
    needs_key: bool

    def route(self, service: Service) -> Route:
        """The route that reads a request, finds the owner of its key, checks its fields, and has it answered."""
        has_fields = self.takes is not NoFields
        has_key_field = "api_key" in self.takes.model_fields
        limits, keys, handler, nothing = service.limits, service.keys, self.handler, NoFields()

        async def answer(request: Request) -> Response:
            given = await read_fields(request, limits, kind=self.takes) if has_fields else {}
            owner = keys.anonymous
            if self.needs_key and keys.are_required:
                key = given.get("api_key") if has_key_field else None
                owner = keys.authenticate(
                    key if isinstance(key, str) else None,
                    request.headers,
                    missing_status=self.api.missing_key_status,
                )
                request.state.client = owner.name
            fields = validate_fields(self.takes, given) if has_fields else nothing
            return await handler(Call(service, request, fields, owner))

        return Route(self.path, answer, methods=[self.method])

    def document(self, schemas: dict[str, Any]) -> dict[str, Any]:
        """The operation in the OpenAPI document; models that it refers to are added to `schemas`."""
        answers = {self.media_type: {"schema": _schema(self.answer, schemas, mode="serialization")}}
        if self.streams is not None:
            answers[self.streams] = {}
        found: dict[str, Any] = {
            "tags": [self.api.name],
            "summary": self.summary,
            "operationId": f"{self.method}{self.path}".lower().replace("/", "_"),
            "responses": {"200": {"description": "The answer.", "content": answers}},
        }
        missing_key = self.api.missing_key_status
        for status in sorted({*self.errors, missing_key}) if self.needs_key else self.errors:
            reason = _REASONS_WITH_MISSING_KEY[status] if status == missing_key else _REASONS[status]
            content = {"application/json": {"schema": _schema(self.api.error, schemas, mode="serialization")}}
            found["responses"][str(status)] = {"description": reason, "content": content}
        if self.takes is NoFields:
            return found
        if self.method == "GET":
            schema = self.takes.model_json_schema()
            found["parameters"] = [
                {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": field}
                for name, field in schema["properties"].items()
            ]
            return found
        body = {"schema": _schema(self.takes, schemas, mode="validation")}
        kinds = ("application/json", *(_FORMS if self.forms else ()))
        found["requestBody"] = {"required": True, "content": dict.fromkeys(kinds, body)}
        return found


def json_response(content: Any, *, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(_JSON.encode(content).encode(), status_code=status, media_type="application/json")


class Api:
    """The endpoints of one API, and its form of an error.

    A request without the key that the server needs is refused with `missing_key_status`.
    """

    def __init__(
        self,
        name: str,
        *,
        prefix: str,
        error: type[BaseModel],
        error_content: Callable[[RequestError], dict[str, Any]],
        missing_key_status: int,
    ) -> None:
        self.name = name
        self.prefix = prefix
        self.error = error
        self.error_content = error_content
        self.missing_key_status = missing_key_status
        self.endpoints: list[Endpoint] = []

    def endpoint(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        takes: type[Fields],
        answer: Any,
        forms: bool = False,
        media_type: str = "application/json",
        streams: str | None = None,
        errors: Sequence[int] = (),
        needs_key: bool = True,
    ) -> Callable[[Handler[Fields]], Handler[Fields]]:
        """Have the decorated function answer the requests of a path."""

        def add(handler: Handler[Fields]) -> Handler[Fields]:
            self.endpoints.append(
                Endpoint(
                    api=self,
                    method=method,
                    path=self.prefix + path,
                    summary=summary,
                    handler=handler,
                    takes=takes,
                    forms=forms,
                    answer=answer,
                    media_type=media_type,
                    streams=streams,
                    errors=errors,
                    needs_key=needs_key,
                )
            )
            return handler

        return add


def openapi_document(apis: Sequence[Api]) -> dict[str, Any]:
    """The OpenAPI document of all endpoints."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for api in apis:
        for endpoint in api.endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = endpoint.document(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nmt serve",
            "description": "Translation with the models of this server.",
            "version": __version__,
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema(kind: Any, schemas: dict[str, Any], *, mode: Any) -> dict[str, Any]:
    """The JSON schema of a type; models go to `schemas` by their name."""
    schema = TypeAdapter(kind).json_schema(ref_template=f"{_SCHEMAS}{{model}}", mode=mode)
    schemas |= schema.pop("$defs", {})
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return schema
    schemas[kind.__name__] = schema
    return {"$ref": f"{_SCHEMAS}{kind.__name__}"}
