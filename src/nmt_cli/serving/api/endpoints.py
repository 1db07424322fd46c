"""What the endpoints of all APIs share: reading a request, finding the owner of its key, answering, describing."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_type_hints

from fastapi import Depends, Form, Request, Response, Security
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import PydanticCustomError, to_json
from starlette.routing import BaseRoute

from nmt_cli import __version__
from nmt_cli.decoding.terms import TermList
from nmt_cli.languages import language_name
from nmt_cli.serving.api.requests import read_fields, read_file_fields, read_json_fields, wrong_field_error
from nmt_cli.serving.document_store import StoredDocument
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.service import Service, off_the_loop
from nmt_cli.tokenization.white_space import is_blank

# They only describe the key in the OpenAPI document: `ApiKeys.authenticate` reads it.
_BEARER = Security(HTTPBearer(scheme_name="bearer", auto_error=False))
_KEY_HEADER = Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False))
_DEEPL_KEY = Security(
    APIKeyHeader(name="Authorization", scheme_name="deepl", description="DeepL-Auth-Key KEY", auto_error=False)
)


def _check_not_blank(text: str) -> str:
    if is_blank(text):
        raise PydanticCustomError("blank", "it is blank")
    return text


NotBlank = Annotated[
    str, AfterValidator(_check_not_blank), Field(json_schema_extra={"pattern": r"[^\s\x00-\x1f\x7f-\x9f]"})
]
"""Text that may not be blank."""
Terms = Annotated[
    dict[NotBlank, NotBlank],
    Field(description="terms and their translations, of which there may be several forms: Haus|Hauses"),
]
"""Terms of a request."""


class Language(BaseModel):
    """A language by its code and its English name."""

    code: str
    name: str

    @classmethod
    def of(cls, code: str) -> Self:
        """The language of a code."""
        return cls(code=code, name=language_name(code))


class SourceLanguage(Language):
    """A language, and the languages that it is translated into; a language that is only a target has none."""

    targets: list[str]

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[str, str]]) -> list[Self]:
        """The languages of some directions, each once: first those that are translated."""
        codes = [*(source for source, _ in pairs), *(target for _, target in pairs)]
        targets: dict[str, list[str]] = {code: [] for code in codes}
        for source, target in pairs:
            targets[source].append(target)
        return [cls(code=code, name=language_name(code), targets=into) for code, into in targets.items()]


@dataclass(frozen=True, slots=True)
class Call:
    """A request to an endpoint, and the owner of its key."""

    service: Service
    request: Request
    owner: KeyOwner


async def open_call(request: Request) -> Call:
    """The call of a request that needs no key."""
    service: Service = request.app.service
    return Call(service, request, service.keys.anonymous)


OpenCall = Annotated[Call, Depends(open_call)]
"""A call that needs no key."""


def keyed_call(*, missing_status: int, key_field: str | None = None) -> Callable[..., Awaitable[Call]]:
    """Gives the call of a request; RequestError if the server needs a key and it is wrong or missing.

    A missing key is refused with `missing_status`. The field `key_field` of the body or the query string may hold it.
    """

    async def find(request: Request, bearer: Any = _BEARER, header: Any = _KEY_HEADER, deepl: Any = _DEEPL_KEY) -> Call:
        service: Service = request.app.service
        if not service.keys.are_required:
            return await open_call(request)
        key = request.state.fields.get(key_field)
        owner = service.keys.authenticate(
            key if isinstance(key, str) else None, request.headers, missing_status=missing_status
        )
        request.state.client = owner.name  # for the log
        return Call(service, request, owner)

    return find


class JsonRoute(APIRoute):
    """A route whose body must be JSON, within the limits of the service.

    FastAPI describes it by the signature of its endpoint, which takes a `call` and perhaps `fields`. It would read and
    check them too, in twice the time.
    """

    _read = staticmethod(read_json_fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of a request: its fields are read, then its key is checked, then its fields."""
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        fields_type: type[BaseModel] | None = get_type_hints(endpoint).get("fields")
        find_caller = get_type_hints(endpoint, include_extras=True)["call"].__metadata__[0].dependency

        async def handle(request: Request) -> Response:
            if fields_type is None:
                request.state.fields = request.query_params
                return await endpoint(call=await find_caller(request))
            request.state.fields = await self._read(request, request.app.service.limits)
            call = await find_caller(request)
            try:
                fields = fields_type.model_validate(request.state.fields)
            except ValidationError as error:
                raise wrong_field_error(error) from None
            return await endpoint(fields=fields, call=call)

        return handle


class FormRoute(JsonRoute):
    """A route whose fields may come as JSON, as a form or in the query string."""

    _read = staticmethod(read_fields)


class FileRoute(JsonRoute):
    """A route whose fields come as a form, with a file."""

    _read = staticmethod(read_file_fields)


# How a form with a file is described.
FILE_FORM = Form(media_type="multipart/form-data")


async def term_list(terms: Mapping[str, str]) -> TermList | None:
    """The terms of a request; None if it has none. DataError if a form of a translation is blank."""
    return await off_the_loop(list(terms), lambda: TermList(terms)) if terms else None


def file_response(document: StoredDocument) -> Response:
    """The file of a document, as a download."""
    document.is_fetched = True
    media_type = mimetypes.guess_type(document.name)[0] or "application/octet-stream"
    return FileResponse(document.file, filename=document.name, media_type=media_type)


def json_response(content: Any, *, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(to_json(content, inf_nan_mode="null"), status_code=status, media_type="application/json")


def openapi_document(routes: Sequence[BaseRoute], service: Service) -> dict[str, Any]:
    """The OpenAPI document of the endpoints, with the languages and limits of a server."""
    document = get_openapi(
        title="nmt serve",
        version=__version__,
        description="Translation with the models of this server.",
        routes=routes,
    )
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if names := re.findall(r"\{(\w+)\}", path):  # the endpoints find them in the request
                operation["parameters"] = [*operation.get("parameters", []), *map(_path_parameter, names)]
            if "security" in operation:
                operation["security"].insert(0, {})  # a server without keys asks for none
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request"):
            # openapi-typescript makes fields with defaults required.
            for field in schema["properties"].values():
                field.pop("default", None)
            _add_limits(schema["properties"], service)
    return document


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _add_limits(fields: Mapping[str, dict[str, Any]], service: Service) -> None:
    """Add the limits and the languages of the server to the schemas of the fields of a request.

    A code may have more parts than the model's own: en-US is en if there is no en-US.
    """
    limits, models = service.limits, service.models
    sources, targets = _any_case_pattern(models.sources), _any_case_pattern(models.targets)
    source_pattern, target_pattern = f"^(auto|({sources})([-_].*)?)?$", f"^({targets})([-_].*)?$"
    constraints: dict[str, dict[str, Any]] = {
        "alternatives": {"maximum": limits.alternatives},
        "nbest": {"maximum": limits.alternatives + 1},
        "beam": {"maximum": limits.beam},
        "source": {"pattern": source_pattern},
        "source_lang": {"pattern": source_pattern},
        "target": {"pattern": target_pattern},
        "target_lang": {"pattern": target_pattern},
    }
    for name in constraints.keys() & fields.keys():
        schema = fields[name].get("anyOf", [fields[name]])[0]  # the second alternative of anyOf is null
        schema |= constraints[name]


def _any_case_pattern(codes: Sequence[str]) -> str:
    """A regular expression for any of the codes, in lower or upper case."""
    return "|".join(dict.fromkeys((*codes, *map(str.upper, codes))))
