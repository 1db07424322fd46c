"""Endpoints: the request and the answer of each path, for routing, for validation and for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter
from pydantic_core import PydanticCustomError, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nmt_cli import __version__
from nmt_cli.serving.api.requests import read_fields, read_json_fields, validate_fields
from nmt_cli.serving.errors import RequestError
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.service import Service

Fields = TypeVar("Fields", bound=BaseModel)

# The statuses with which an endpoint may refuse a text.
_TEXT_ERRORS = (400, 403, 408, 413, 429, 503)
_REASONS = {
    400: "The request makes no sense.",
    403: "The key is wrong, or the page of another site, or the name in Host, is not allowed.",
    408: "The body did not arrive in time.",
    409: "A model cannot be loaded; the old one stays.",
    413: "A limit of the server, or of the key.",
    415: "The body is not sent as JSON.",
    429: "The key's requests of this minute are used up, or its address sent many wrong keys; see Retry-After.",
    503: "No room, no time or no model now; see Retry-After.",
}
_REASONS_WITH_MISSING_KEY = {
    400: "The request makes no sense, or the key is missing.",
    401: "The key is missing.",
    403: "The key is wrong or missing, or the page of another site, or the name in Host, is not allowed.",
}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "deepl": {"type": "apiKey", "in": "header", "name": "Authorization", "description": "DeepL-Auth-Key KEY"},
}
_FORMS = "The fields may also be sent as a form, or in the query string."
_SCHEMAS = "#/components/schemas/"


def _refuse_text(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


# The last annotation of a field, around its bounds. pydantic alone would read a number from text, and its strict mode
# would refuse 3.0, which is an integer in JSON.
NUMBER = BeforeValidator(_refuse_text)
NotBlank = Annotated[str, Field(json_schema_extra={"pattern": r"\S"})]
"""Text that may not be blank: the endpoint says so, and the OpenAPI document too."""


class NoFields(BaseModel):
    """A request without fields."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Fields]):
    """A request to an endpoint: its fields, which are checked, and the owner of its key."""

    service: Service
    request: Request
    fields: Fields
    owner: KeyOwner


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Fields]):
    """A path and method of an API, the function that answers, and the models of request and answer.

    `request_model` is read from JSON. With `forms`, and in a GET, it may also be a form or the query string.
    `answer_model` is only for the OpenAPI document. With `streams`, the answer may also be a stream of that media type.
    `errors` are the statuses of refusals, if the endpoint needs a key.
    """

    method: str
    path: str
    handler: Callable[[Call[Fields]], Awaitable[Response]]
    request_model: type[Fields]
    answer_model: Any
    summary: str
    forms: bool = False
    media_type: str = "application/json"
    streams: str | None = None
    errors: Sequence[int] = _TEXT_ERRORS
    needs_key: bool = True


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints of one API, and its form of an error.

    All paths that begin with one of its prefixes have that form. A request without the key that the server needs is
    refused with `missing_key_status`.
    """

    name: str
    prefixes: Sequence[str]
    operation_prefix: str
    error: type[BaseModel]
    error_content: Callable[[RequestError], dict[str, Any]]
    missing_key_status: int
    endpoints: Sequence[Endpoint[Any]]

    def routes(self, service: Service) -> Iterator[Route]:
        """A route for each endpoint; it reads a request, finds the owner of its key, checks its fields, and answers."""
        return (self._route(endpoint, service) for endpoint in self.endpoints)

    def _route(self, endpoint: Endpoint[Any], service: Service) -> Route:
        model, keys, no_fields = endpoint.request_model, service.keys, NoFields()
        has_fields = model is not NoFields
        read = read_fields if endpoint.forms or endpoint.method == "GET" else read_json_fields
        has_key_field = "api_key" in model.model_fields

        async def answer(request: Request) -> Response:
            given = await read(request, service.limits, kind=model) if has_fields else {}
            owner = keys.anonymous
            if endpoint.needs_key and keys.are_required:
                key = given.get("api_key") if has_key_field else None
                key = key if isinstance(key, str) else None
                address = request.client.host if request.client else ""
                owner = keys.authenticate(key, request.headers, address=address, missing_status=self.missing_key_status)
                request.state.client = owner.name
            fields = validate_fields(model, given) if has_fields else no_fields
            return await endpoint.handler(Call(service, request, fields, owner))

        return Route(endpoint.path, _Application(answer), methods=[endpoint.method])

    def operation(self, endpoint: Endpoint[Any], schemas: dict[str, Any]) -> dict[str, Any]:
        """The operation in the OpenAPI document; models that it refers to are added to `schemas`."""
        answers = {endpoint.media_type: {"schema": _schema(endpoint.answer_model, schemas, mode="serialization")}}
        if endpoint.streams is not None:
            answers[endpoint.streams] = {}
        found: dict[str, Any] = {
            "tags": [self.name],
            "summary": endpoint.summary,
            "operationId": f"{self.operation_prefix}{endpoint.handler.__name__}",
            "responses": {"200": {"description": "The answer.", "content": answers}},
        }
        if endpoint.needs_key:
            # A server without keys asks for none.
            found["security"] = [{}, *({name: []} for name in _SECURITY)]
            reasons = {status: _REASONS[status] for status in endpoint.errors}
            if endpoint.request_model is not NoFields and endpoint.method == "POST" and not endpoint.forms:
                reasons[415] = _REASONS[415]
            reasons[self.missing_key_status] = _REASONS_WITH_MISSING_KEY[self.missing_key_status]
            for status, reason in sorted(reasons.items()):
                content = {"application/json": {"schema": _schema(self.error, schemas, mode="serialization")}}
                found["responses"][str(status)] = {"description": reason, "content": content}
        if endpoint.request_model is NoFields:
            return found
        if endpoint.method == "GET":
            schema = endpoint.request_model.model_json_schema()
            found["parameters"] = [
                {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": field}
                for name, field in schema["properties"].items()
            ]
            return found
        body = _schema(endpoint.request_model, schemas, mode="validation")
        # Generators of clients: openapi-typescript makes fields with defaults required, and openapi-python-client mixes
        # up several media types.
        for field in schemas[endpoint.request_model.__name__]["properties"].values():
            field.pop("default", None)
        if endpoint.forms:
            found["description"] = _FORMS
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        return found


class _Application:
    """A function from request to answer as an ASGI application.

    Around a plain function, Starlette would handle exceptions a second time.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


def json_response(content: Any, *, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(to_json(content, inf_nan_mode="null"), status_code=status, media_type="application/json")


def openapi_document(apis: Sequence[Api], service: Service) -> dict[str, Any]:
    """The OpenAPI document of all endpoints, with the languages and limits of a server."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for api in apis:
        for endpoint in api.endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = api.operation(endpoint, schemas)
    for schema in schemas.values():
        if schema["title"].endswith("Request"):
            _add_limits(schema["properties"], service)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nmt serve",
            "description": "Translation with the models of this server.",
            "version": __version__,
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY},
    }


def _schema(kind: Any, schemas: dict[str, Any], *, mode: Any) -> dict[str, Any]:
    """The JSON schema of a type; models go to `schemas` by their name."""
    schema = TypeAdapter(kind).json_schema(ref_template=f"{_SCHEMAS}{{model}}", mode=mode)
    schemas |= schema.pop("$defs", {})
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return schema
    schemas[kind.__name__] = schema
    return {"$ref": f"{_SCHEMAS}{kind.__name__}"}


def _add_limits(fields: Mapping[str, dict[str, Any]], service: Service) -> None:
    """Add the limits and the languages of the server to the schemas of the fields of a request.

    A code may have more parts than the model's own: en-US is en if there is no en-US.
    """
    limits, models = service.limits, service.models
    sources, targets = (
        "|".join(dict.fromkeys((*codes, *map(str.upper, codes)))) for codes in (models.sources, models.targets)
    )
    bounds: dict[str, tuple[str, Any]] = {
        "alternatives": ("maximum", limits.alternatives),
        "nbest": ("maximum", limits.alternatives + 1),
        "beam": ("maximum", limits.beam),
        **dict.fromkeys(("source", "source_lang"), ("pattern", f"^(auto|({sources})([-_].*)?)?$")),
        **dict.fromkeys(("target", "target_lang"), ("pattern", f"^({targets})([-_].*)?$")),
    }
    for name in bounds.keys() & fields.keys():
        key, value = bounds[name]
        schema = fields[name].get("anyOf", [fields[name]])[0]  # the other one is null
        schema[key] = value
