"""The OpenAPI document of a server, made of the endpoints with the models of their requests and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from nmt_cli import __version__
from nmt_cli.serving.api.endpoints import Api, Endpoint, NoFields
from nmt_cli.serving.service import Service

_REASONS = {
    400: "The request makes no sense.",
    403: "The key is wrong, or the page of another site, or the name in Host, is not allowed.",
    408: "The body did not arrive in time.",
    409: "A model cannot be loaded; the old one stays.",
    413: "A limit of the server, or of the key.",
    415: "The body is in another form than those described, or compressed with another program than gzip.",
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


def openapi_document(apis: Sequence[Api], service: Service) -> dict[str, Any]:
    """The OpenAPI document of all endpoints, with the languages and limits of a server."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for api in apis:
        for endpoint in api.endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(api, endpoint, schemas)
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


def _operation(api: Api, endpoint: Endpoint[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """An endpoint as an operation of the document; models that it refers to are added to `schemas`."""
    model = endpoint.request_model
    operation: dict[str, Any] = {
        "tags": [api.name],
        "summary": endpoint.summary,
        "operationId": f"{api.operation_prefix}{endpoint.handler.__name__}",
        "responses": _responses(api, endpoint, schemas),
    }
    if endpoint.needs_key:
        # A server without keys asks for none.
        operation["security"] = [{}, *({name: []} for name in _SECURITY)]
    if model is NoFields:
        return operation
    if endpoint.method == "GET":
        schema = model.model_json_schema()
        operation["parameters"] = [
            {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": field}
            for name, field in schema["properties"].items()
        ]
        return operation
    body = _schema(model, schemas, mode="validation")
    # Generators of clients: openapi-typescript makes fields with defaults required, and openapi-python-client mixes
    # up several media types.
    for field in schemas[model.__name__]["properties"].values():
        field.pop("default", None)
    if endpoint.takes_forms:
        operation["description"] = _FORMS
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _responses(api: Api, endpoint: Endpoint[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The answer of an endpoint, and its refusals, by status."""
    answers = {endpoint.media_type: {"schema": _schema(endpoint.answer_model, schemas, mode="serialization")}}
    if endpoint.stream_media_type is not None:
        answers[endpoint.stream_media_type] = {}
    responses = {"200": {"description": "The answer.", "content": answers}}
    if not endpoint.needs_key:
        return responses
    reasons = {status: _REASONS[status] for status in endpoint.errors}
    if endpoint.request_model is not NoFields and endpoint.method == "POST":
        reasons[415] = _REASONS[415]
    reasons[api.missing_key_status] = _REASONS_WITH_MISSING_KEY[api.missing_key_status]
    refusal = {"application/json": {"schema": _schema(api.error, schemas, mode="serialization")}}
    return responses | {
        str(status): {"description": reason, "content": refusal} for status, reason in sorted(reasons.items())
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
