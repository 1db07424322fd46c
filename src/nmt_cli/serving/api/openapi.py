"""The OpenAPI document of a server: FastAPI's, with the languages and limits of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from nmt_cli import __version__
from nmt_cli.serving.service import Service


def openapi_document(routes: Sequence[BaseRoute], service: Service) -> dict[str, Any]:
    """The OpenAPI document of the endpoints, with the languages and limits of a server."""
    document = get_openapi(
        title="nmt serve",
        version=__version__,
        description="Translation with the models of this server.",
        routes=routes,
    )
    for methods in document["paths"].values():
        for operation in methods.values():
            if "security" in operation:
                operation["security"].insert(0, {})  # a server without keys asks for none
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request"):
            # openapi-typescript makes fields with defaults required.
            for field in schema["properties"].values():
                field.pop("default", None)
            _add_limits(schema["properties"], service)
    return document


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
