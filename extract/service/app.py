"""Defines the endpoint of regions, and the description for the page."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from vlmill.extract.service.rows import KINDS, choose_kind, encode_response, make_response
from vlmill.runtime.client.forms import JSON, PARQUET
from vlmill.runtime.readers.class_names import stored_names
from vlmill.runtime.service.guard import Guard
from vlmill.runtime.service.openapi import BINARY, REJECT, form_body, list_schema, object_schema
from vlmill.runtime.service.refusals import bad_request
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell, account, guard_application, new_application

DESCRIPTION = "Regions of images: the rows that `extract-rois run` writes."
HOW = """One image as the body, or several as the files of a multipart form, up to the limit in
`/v1/about`. `Accept` chooses an Arrow stream, a Parquet file (both are the regions table) or
JSON, where features are base64 of the type in `arrays`. An image that is rejected has no row: JSON
lists it, and the header `vlmill-rejects` has the numbers and reasons. If all are rejected, the
status is 413, 415 or 422."""
SAMPLES = [
    {
        "lang": "Shell",
        "label": "one image, JSON",
        "source": "curl --fail --silent --data-binary @image.jpg --header 'content-type: "
        "image/jpeg' http://127.0.0.1:8080/v1/regions",
    },
    {
        "lang": "Shell",
        "label": "several images, Parquet",
        "source": "curl --fail --silent --form images=@image.jpg --form images=@other.jpg "
        "--header 'accept: application/vnd.apache.parquet' --output regions.parquet "
        "http://127.0.0.1:8080/v1/regions",
    },
    {
        "lang": "Python",
        "label": "a table",
        "source": "from vlmill.client import Client\n"
        'client = Client("http://127.0.0.1:8080")\n'
        'table = client.regions(["image.jpg", "other.jpg"])\n'
        "print(table.num_rows)\n",
    },
]
ROW = {"type": "object", "additionalProperties": True}
ROWS = object_schema({"regions": list_schema(ROW), "rejects": list_schema(REJECT), "arrays": ROW})
OPENAPI = {
    "requestBody": {
        "required": True,
        "content": {"image/*": {"schema": BINARY}, **form_body({})["content"]},
    },
    "responses": {
        "200": {
            "description": "rows of the regions table",
            "content": {
                JSON: {"schema": ROWS},
                **{kind: {"schema": BINARY} for kind in KINDS if kind != JSON},
            },
        }
    },
    "x-codeSamples": SAMPLES,
}


def regions_service(
    settings: ServiceSettings, classes: Sequence[str], attributes: Sequence[str]
) -> tuple[Shell, Guard]:
    """Creates the service; ``classes`` and ``attributes`` are the names that its page shows."""
    shell = Shell(settings=settings)

    def about() -> Mapping[str, Any]:
        producer = shell.about["producer"]
        stored = stored_names(producer)
        return {
            "service": "regions",
            "title": "Regions of images",
            "detector_fingerprint": producer["detector_fingerprint"],
            "weights": producer["weights"],
            "random": "random" in producer["weights"],
            "arrays": shell.about["arrays"],
            "classes": list(classes or stored["classes"]),
            "attributes": list(attributes or stored["attributes"]),
            "limits": {"bytes": settings.max_bytes, "pictures": settings.max_images},
        }

    application = new_application(shell, "vlmill regions", DESCRIPTION, about)

    @application.post(
        "/v1/regions",
        summary="Regions of images",
        description=HOW,
        operation_id="regions",
        response_class=Response,
        openapi_extra=OPENAPI,
    )
    async def regions(request: Request) -> Response:
        kind = choose_kind(request.headers.get("accept", ""))
        form = await shell.form(request)
        if not form.images:
            raise bad_request("no image; send one as the body, or several as files of a form")
        outcomes = await shell.ask(request, [image.content for image in form.images])
        answer = make_response(outcomes, [image.name for image in form.images])
        for why in answer.rejects.values():
            shell.metrics.rejects.labels(reason=why.reason.value).inc()
        account(request)["rejects"] = len(answer.rejects)
        answer.require_rows()
        content = await asyncio.to_thread(encode_response, answer, kind, shell.about)
        rejects = [[index, why.reason.value] for index, why in answer.rejects.items()]
        headers = {"vlmill-rejects": json.dumps(rejects)}
        if kind == PARQUET:
            headers["content-disposition"] = 'attachment; filename="regions.parquet"'
        return Response(content, media_type=kind, headers=headers)

    return shell, guard_application(shell, application)
