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
    list_of,
    nullable,
    record_of,
)

VECTORS = list_of(nullable(list_of(NUMBER)))
NUMBERS_BY_NAME = {"type": "object", "additionalProperties": NUMBER}
RESULT = record_of(
    {"score": NUMBER, "kind": STRING},
    {"image_id": STRING, "pair_id": STRING, "text": STRING, "caption": STRING},
)
ITEM = record_of(
    {"score": NUMBER, "kind": STRING, "item_id": STRING, "near": STRING},
    {"image_id": STRING, "pair_id": STRING, "text": STRING, "caption": STRING},
)
CLASSES = record_of({"labels": list_of(STRING), "probabilities": NUMBERS_BY_NAME})
ANY = {"type": "object", "additionalProperties": True}
BODIES: dict[str, Schema] = {
    SCORE: form_body({"texts": list_of(STRING)}, ("texts",)),
    ATTEND: form_body({"text": STRING}, ("text",)),
    EMBED: form_body({"texts": list_of(STRING)}),
    SEARCH: form_body({"text": STRING, "top": INTEGER, "where": list_of(STRING)}),
    SIMILAR: form_body(
        {
            "items": list_of(STRING),
            "seen": list_of(STRING),
            "top": INTEGER,
            "where": list_of(STRING),
        },
        ("items",),
        images=False,
    ),
    ANSWER: form_body({"question": STRING}, ("question",)),
    CLASSIFY: form_body({"text": STRING}),
    ENTAIL: form_body({"statement": STRING}, ("statement",)),
}
RESPONSES: dict[str, Schema] = {
    SCORE: record_of({"scores": list_of(list_of(nullable(NUMBER)))}),
    ATTEND: record_of(
        {"score": NUMBER, "losses": list_of(NUMBER), "regions": list_of(ANY), "arrays": ANY}
    ),
    EMBED: record_of({"pictures": VECTORS, "texts": VECTORS}),
    SEARCH: record_of({"answers": list_of(RESULT)}),
    SIMILAR: record_of({"answers": list_of(ITEM), "missing": list_of(STRING)}),
    ANSWER: record_of({"answer": STRING}),
    CLASSIFY: CLASSES,
    ENTAIL: CLASSES,
}
PICTURE: dict[int | str, dict[str, Any]] = {200: file_response("the image", JPEG)}


def describe_method(method: str) -> Schema:
    """Returns the body and the response of a method's endpoint."""
    response = json_response("the result", RESPONSES[method])
    return {"requestBody": BODIES[method], "responses": {"200": response}}
