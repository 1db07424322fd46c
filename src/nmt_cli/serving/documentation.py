"""What the OpenAPI document says about bodies that are read by hand, and the page at /docs that shows it."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_WITHOUT_KEY = {
    400: {400: "The request makes no sense, or the key is missing."},
    401: {401: "The key is missing."},
    403: {403: "The key is wrong, or missing."},
}


def body_of(kind: type[BaseModel], *, forms: bool) -> dict[str, Any]:
    """The request body of a path: JSON, and where `forms`, the two kinds of form as well."""
    schema = _inlined(kind.model_json_schema())
    content = {"application/json": {"schema": schema}}
    if forms:
        content |= {name: {"schema": schema} for name in ("application/x-www-form-urlencoded", "multipart/form-data")}
    return {"requestBody": {"required": True, "content": content}}


def query_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The parameters of a path's query string."""
    schema = _inlined(kind.model_json_schema())
    required = schema.get("required", [])
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in schema["properties"].items()
        ]
    }


def errors_of(kind: type[BaseModel], *codes: int, missing_key: int) -> dict[int | str, dict[str, Any]]:
    """The answers with which a path refuses; `missing_key` is the status where there is no key."""
    reasons = {
        400: "The request makes no sense.",
        403: "The key is wrong.",
        408: "The body did not arrive in time.",
        409: "A model cannot be loaded; the old one stays.",
        413: "A limit of the server, or of the key.",
        429: "The key's requests of this minute are used up; see Retry-After.",
        503: "No room, no time or no model now; see Retry-After.",
    } | _WITHOUT_KEY[missing_key]
    return {code: {"model": kind, "description": reasons[code]} for code in codes}


def page(app: FastAPI) -> str:
    """The OpenAPI document as a page without anything to load."""
    document = app.openapi()
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('summary', ''))}</p>")
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                parts.append(_fields(content["application/json"]["schema"]))
                parts.append(f"<p>As {escape(', '.join(content))}.</p>")
            codes = "".join(
                f"<li><code>{code}</code> {escape(answer.get('description', ''))}</li>"
                for code, answer in operation["responses"].items()
            )
            parts.append(f"<ul>{codes}</ul>")
    style = (
        ":root{color-scheme:light dark}body{margin:2rem auto;max-width:52rem;padding:0 1rem;font:1rem/1.5 system-ui,"
        "sans-serif}h2{margin-top:2.5rem;border-bottom:1px solid #8884}table{border-collapse:collapse;width:100%}"
        "td,th{text-align:start;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #8884;vertical-align:top}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>API of nmt serve</title><style>{style}</style><h1>API</h1>"
        f"<p>The same as an <a href='openapi.json'>OpenAPI document</a>. <a href='./'>Translate</a></p>{''.join(parts)}"
    )


def _fields(schema: dict[str, Any]) -> str:
    rows = []
    for name, field in schema.get("properties", {}).items():
        kinds = [one.get("type", "") for one in field.get("anyOf", [field])]
        kind = " or ".join(one for one in kinds if one and one != "null")
        need = "required" if name in schema.get("required", []) else "optional"
        words = escape(field.get("description", ""))
        rows.append(f"<tr><td><code>{escape(name)}</code><td>{kind}<td>{need}<td>{words}")
    return f"<table><tr><th>Field<th>Type<th><th>Meaning{''.join(rows)}</table>"


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without what only pydantic wants in it; these records have no others inside."""
    assert "$defs" not in schema
    return schema
