"""Describes the bodies and responses of a checkpoint's endpoints for the OpenAPI document."""

from typing import Any

from vlmill.inference.service.questions import (
    ANSWER,
    ATTEND,
    CLASSIFY,
    EMBED,
    ENTAIL,
    SCORE,
    SEARCH,
    SIMILAR,
)
from vlmill.runtime.service.openapi import (
    INTEGER,
    JPEG,
    NUMBER,
    STRING,
    Schema,
    file_response,
    form_body,
    json_response,
    list_schema,
    nullable,
    object_schema,
)

VECTORS = list_schema(nullable(list_schema(NUMBER)))
NUMBERS_BY_NAME = {"type": "object", "additionalProperties": NUMBER}
RESULT = object_schema(
    {"score": NUMBER, "kind": STRING},
    {
        "match": NUMBER,
        "image_id": STRING,
        "pair_id": STRING,
        "text": STRING,
        "caption": STRING,
    },
)
ITEM = object_schema(
    {"score": NUMBER, "kind": STRING, "item_id": STRING, "near": STRING},
    {"image_id": STRING, "pair_id": STRING, "text": STRING, "caption": STRING},
)
CLASSES = object_schema({"labels": list_schema(STRING), "probabilities": NUMBERS_BY_NAME})
ANY = {"type": "object", "additionalProperties": True}
BODIES: dict[str, Schema] = {
    SCORE: form_body({"texts": list_schema(STRING)}, ("texts",)),
    ATTEND: form_body({"text": STRING}, ("text",)),
    EMBED: form_body({"texts": list_schema(STRING)}),
    SEARCH: form_body(
        {"text": STRING, "top": INTEGER, "where": list_schema(STRING), "rerank": INTEGER}
    ),
    SIMILAR: form_body(
        {
            "items": list_schema(STRING),
            "seen": list_schema(STRING),
            "top": INTEGER,
            "where": list_schema(STRING),
        },
        ("items",),
        images=False,
    ),
    ANSWER: form_body({"question": STRING}, ("question",)),
    CLASSIFY: form_body({"text": STRING}),
    ENTAIL: form_body({"statement": STRING}, ("statement",)),
}
RESPONSES: dict[str, Schema] = {
    SCORE: object_schema({"scores": list_schema(list_schema(nullable(NUMBER)))}),
    ATTEND: object_schema(
        {"score": NUMBER, "losses": list_schema(NUMBER), "regions": list_schema(ANY), "arrays": ANY}
    ),
    EMBED: object_schema({"pictures": VECTORS, "texts": VECTORS}),
    SEARCH: object_schema({"answers": list_schema(RESULT)}),
    SIMILAR: object_schema({"answers": list_schema(ITEM), "missing": list_schema(STRING)}),
    ANSWER: object_schema({"answer": STRING}),
    CLASSIFY: CLASSES,
    ENTAIL: CLASSES,
}
PICTURE: dict[int | str, dict[str, Any]] = {200: file_response("the image", JPEG)}


def describe_method(method: str) -> Schema:
    """Returns the body and the response of a method's endpoint."""
    response = json_response("the result", RESPONSES[method])
    return {"requestBody": BODIES[method], "responses": {"200": response}}
