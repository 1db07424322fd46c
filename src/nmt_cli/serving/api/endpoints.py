"""The parts that the endpoints of all APIs share: reading a request, finding the owner of its key, answering."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Self

from fastapi import Request, Response, Security
from fastapi.datastructures import QueryParams
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError, to_json

from nmt_cli.languages import language_name
from nmt_cli.serving.api.requests import read_fields, read_json_fields
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.service import Service
from nmt_cli.tokenization.tokenizer import is_blank

# They only describe the key in the OpenAPI document: `ApiKeys.authenticate` reads it.
_BEARER = Security(HTTPBearer(scheme_name="bearer", auto_error=False))
_KEY_HEADER = Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False))
_DEEPL_KEY = Security(
    APIKeyHeader(name="Authorization", scheme_name="deepl", description="DeepL-Auth-Key KEY", auto_error=False)
)
_JSON_TYPE = (b"content-type", b"application/json")


def _check_not_blank(text: str) -> str:
    if is_blank(text):
        raise PydanticCustomError("missing", "it is blank")
    return text


NotBlank = Annotated[
    str, AfterValidator(_check_not_blank), Field(json_schema_extra={"pattern": r"[^\s\x00-\x1f\x7f-\x9f]"})
]
"""Text that may not be blank."""


class Language(BaseModel):
    """A language by its code and its English name."""

    code: str
    name: str

    @classmethod
    def of(cls, code: str) -> Self:
        """The language of a code."""
        return cls(code=code, name=language_name(code))


@dataclass(frozen=True, slots=True)
class Call:
    """A request to an endpoint, and the owner of its key."""

    service: Service
    request: Request
    owner: KeyOwner


async def open_call(request: Request) -> Call:
    """The call of a request that needs no key."""
    service: Service = request.app.state.service
    return Call(service, request, service.keys.anonymous)


class KeyedCall:
    """Gives the call of a request; RequestError if the server needs a key and it is wrong or missing.

    A missing key is refused with `missing_status`. The field `key_field` of the body or the query string may hold it.
    """

    def __init__(self, *, missing_status: int, key_field: str | None = None) -> None:
        self._missing_status, self._key_field = missing_status, key_field

    async def __call__(
        self, request: Request, bearer: Any = _BEARER, header: Any = _KEY_HEADER, deepl: Any = _DEEPL_KEY
    ) -> Call:
        """The call, whose owner also stands in the log."""
        service: Service = request.app.state.service
        if not service.keys.are_required:
            return Call(service, request, service.keys.anonymous)
        key = None
        if self._key_field is not None:
            fields = request.fields if isinstance(request, _ReadRequest) else request.query_params
            key = fields.get(self._key_field)
        owner = service.keys.authenticate(
            key if isinstance(key, str) else None, request.headers, missing_status=self._missing_status
        )
        request.state.client = owner.name
        return Call(service, request, owner)


class JsonRoute(APIRoute):
    """A route whose body must be JSON, within the limits of the service."""

    _read = staticmethod(read_json_fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, before which the body is read."""
        handle = super().get_route_handler()
        if self.body_field is None and not self.dependant.query_params:
            return handle

        async def read_and_handle(request: Request) -> Response:
            fields = await self._read(request, request.app.state.service.limits)
            return await handle(_ReadRequest(request, fields))

        return read_and_handle


class FormRoute(JsonRoute):
    """A route whose fields may come as JSON, as a form or in the query string."""

    _read = staticmethod(read_fields)


class _ReadRequest(Request):
    """A request whose fields have been read: to FastAPI, they are its JSON, or the query string of a GET."""

    def __init__(self, request: Request, fields: dict[str, Any]) -> None:
        headers = [header for header in request.scope["headers"] if header[0] != _JSON_TYPE[0]]
        super().__init__({**request.scope, "headers": [*headers, _JSON_TYPE]}, request.receive)
        self.fields = fields

    @property
    def query_params(self) -> QueryParams:
        return QueryParams(self.fields)

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self.fields


def json_response(content: Any, *, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(to_json(content, inf_nan_mode="null"), status_code=status, media_type="application/json")
