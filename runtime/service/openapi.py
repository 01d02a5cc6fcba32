"""Completes the OpenAPI document: bodies, errors, and the token, for generated clients."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

Schema = dict[str, Any]
ERRORS = {
    "400": "an invalid request",
    "401": "the token is missing or wrong",
    "403": "a request that this service does not accept from its sender",
    "404": "the service does not have it",
    "408": "the body did not arrive in time",
    "413": "too large",
    "415": "an unsupported format",
    "422": "an unreadable image or text",
    "429": "busy; retry after `Retry-After` seconds",
    "503": "not computed in time, or a worker was lost; retry after `Retry-After` seconds",
}
WITHOUT_TOKEN = ("/healthz", "/readyz")
JPEG = "image/jpeg"


def list_schema(items: Schema) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    """Returns the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def object_schema(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    """Returns the schema of an object with these fields, and possibly others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
BINARY = {"type": "string", "format": "binary"}
FILES = list_schema(BINARY)
BASE64 = list_schema({"type": "string", "contentEncoding": "base64"})
REJECT = object_schema({"picture": INTEGER, "name": STRING, "reason": STRING, "why": STRING})
ERROR = object_schema(
    {"error": STRING, "reason": STRING, "request_id": STRING}, {"rejects": list_schema(REJECT)}
)


def form_body(
    fields: Mapping[str, Schema], required: tuple[str, ...] = (), *, images: bool = True
) -> Schema:
    """Returns the description of a body: a form, or JSON with images in base64.

    ``fields`` are those besides ``pictures`` and ``urls``, which bodies with ``images`` have.
    """
    form, plain = dict(fields), dict(fields)
    if images:
        form["pictures"] = FILES
        plain |= {"pictures": BASE64, "urls": list_schema(STRING)}
    more = {"required": list(required)} if required else {}
    content = {
        "multipart/form-data": {"schema": {"type": "object", "properties": form, **more}},
        "application/json": {"schema": {"type": "object", "properties": plain, **more}},
    }
    return {"required": True, "content": content}


def json_response(description: str, schema: Schema) -> Schema:
    """Returns the description of a response."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def file_response(description: str, media_type: str) -> Schema:
    """Returns the description of a response that is a file."""
    return {"description": description, "content": {media_type: {"schema": BINARY}}}


class ServiceApplication(FastAPI):
    """Describes errors and the token of every path in its OpenAPI document.

    ``direct`` has endpoints of POST by path, which are called without FastAPI's layers: these take
    longer than a small response, and none of these endpoints uses them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.direct: dict[str, Callable[[Request], Awaitable[Response]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        endpoint = self.direct.get(scope.get("path", ""))
        if endpoint is None or scope.get("method") != "POST":
            await super().__call__(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    def openapi(self) -> Schema:
        """Returns the OpenAPI document of the service."""
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi())
        return self.openapi_schema


def complete(document: Schema) -> Schema:
    """Adds errors and the token to FastAPI's document, which it changes."""
    schema = {"$ref": "#/components/schemas/Error"}
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # of FastAPI; no path responds so
        schemas.pop(name, None)
    schemas["Error"] = {"title": "Error", **ERROR}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path not in WITHOUT_TOKEN:
                operation["security"] = [{"token": []}, {}]  # {}: a service without a token
            statuses = ERRORS if path.startswith("/v1/") else {}
            errors = {status: json_response(why, schema) for status, why in statuses.items()}
            operation["responses"] = {**operation["responses"], **errors}
    return document
