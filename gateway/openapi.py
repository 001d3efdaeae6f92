"""The OpenAPI document, made from the route table and the msgspec structs. Adds no facts of its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.endpoint import Endpoint
from gateway.replies import Problem

REF = "#/components/schemas/{name}"


def document(table: Sequence[Endpoint], version: str = "1") -> bytes:
    """OpenAPI 3.1 as JSON."""
    kinds = [kind for endpoint in table for kind in (endpoint.takes, endpoint.gives) if kind not in (None, bytes)]
    kinds = [Problem, *dict.fromkeys(kinds)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in table:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, known)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Stokehold", "version": version},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                },
            },
        }
    )


def _operation(endpoint: Endpoint, known: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    described = inspect.cleandoc(endpoint.handler.__doc__ or "")
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
        "summary": described.splitlines()[0] if described else "",
        "description": described,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", endpoint.path)
        ],
        "responses": {
            "2XX": {"description": "done", **_content(endpoint.gives, known)},
            "default": {"description": "a problem", "content": {"application/problem+json": {"schema": known[Problem]}}},
        },
    }
    if endpoint.takes is not None:
        operation["requestBody"] = _content(endpoint.takes, known)
    if endpoint.scope is not None:
        operation["security"] = [{"bearer": [endpoint.scope]}, {"key": [endpoint.scope]}]
    return operation


def _content(kind: Any, known: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if kind is None:
        return {}
    if kind is bytes:
        return {"content": {"application/octet-stream": {"schema": {}}}}
    return {"content": {media: {"schema": known[kind]} for media in ("application/json", "application/msgpack")}}
