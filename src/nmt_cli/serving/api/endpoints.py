"""Endpoints: the path, request and answer of each, and the route that reads and checks a request and answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nmt_cli.serving.api.requests import read_fields, read_json_fields, validate_fields
from nmt_cli.serving.errors import RequestError
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.service import Service

Fields = TypeVar("Fields", bound=BaseModel)

# The statuses with which an endpoint may refuse a text.
_TEXT_ERRORS = (400, 403, 408, 413, 429, 503)


def _check_not_text(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


# The last annotation of a field of numbers, around its bounds. pydantic alone would read a number from text, and its
# strict mode would refuse 3.0, which is an integer in JSON.
NUMBER = BeforeValidator(_check_not_text)
NotBlank = Annotated[str, Field(json_schema_extra={"pattern": r"[^\s\x1c-\x1f\x85]"})]
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

    A request is read from JSON. With `takes_forms`, and in a GET, it may also be a form or the query string. A request
    that asks for a stream gets `stream_media_type`. `answer_model` and `errors`, the statuses of refusals, are only for
    the OpenAPI document.
    """

    method: str
    path: str
    handler: Callable[[Call[Fields]], Awaitable[Response]]
    request_model: type[Fields]
    answer_model: Any
    summary: str
    takes_forms: bool = False
    media_type: str = "application/json"
    stream_media_type: str | None = None
    errors: Sequence[int] = _TEXT_ERRORS
    needs_key: bool = True


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints of one API, and its form of an error.

    All paths that begin with one of its prefixes have that form. A request without the key that the server needs is
    refused with `missing_key_status`. The field `key_field` of the body or the query string may hold the key.
    """

    name: str
    prefixes: Sequence[str]
    operation_prefix: str
    error: type[BaseModel]
    error_content: Callable[[RequestError], dict[str, Any]]
    missing_key_status: int
    endpoints: Sequence[Endpoint[Any]]
    key_field: str | None = None

    def routes(self, service: Service) -> Iterator[Route]:
        """A route for each endpoint; it reads a request, finds the owner of its key, checks its fields, and answers."""
        return (self._route(endpoint, service) for endpoint in self.endpoints)

    def _route(self, endpoint: Endpoint[Any], service: Service) -> Route:
        model, no_fields = endpoint.request_model, NoFields()
        has_fields = model is not NoFields
        read = read_fields if endpoint.takes_forms or endpoint.method == "GET" else read_json_fields

        async def answer(request: Request) -> Response:
            raw_fields = await read(request, service.limits, kind=model) if has_fields else {}
            owner = service.keys.anonymous
            if endpoint.needs_key and service.keys.are_required:
                owner = self._authenticate(request, raw_fields, service.keys)
                request.state.client = owner.name
            fields = validate_fields(model, raw_fields) if has_fields else no_fields
            return await endpoint.handler(Call(service, request, fields, owner))

        return Route(endpoint.path, _Application(answer), methods=[endpoint.method])

    def _authenticate(self, request: Request, raw_fields: Mapping[str, Any], keys: ApiKeys) -> KeyOwner:
        """The owner of the key in the fields or in the headers."""
        key = None
        if self.key_field is not None:
            key = raw_fields.get(self.key_field) or request.query_params.get(self.key_field)
        return keys.authenticate(
            key if isinstance(key, str) else None,
            request.headers,
            address=request.client.host if request.client else "",
            missing_status=self.missing_key_status,
        )


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
