"""Serves the page of the services over a table of regions, for ``extract-rois show --serve``.

Nothing is computed, so there is no worker: rows and images are read on demand.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from PIL import Image

from vlmill.extract import show
from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import decode
from vlmill.extract.images.plan import InputImage, plan_images
from vlmill.extract.images.reader import InputReader
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.runtime.console.command import print_status
from vlmill.runtime.readers.class_names import require_names
from vlmill.runtime.readers.regions import RegionReader, encode_regions
from vlmill.runtime.service.guard import Guard
from vlmill.runtime.service.json_rows import plain_row
from vlmill.runtime.service.openapi import JPEG, file_response
from vlmill.runtime.service.refusals import RequestRefused, bad_request
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell, guard_application, new_application, require_query
from vlmill.schemas.rejects import Rejected

MOST_A_PAGE = 100


@dataclass(kw_only=True)
class TableView:
    """Holds a table of regions and the images of its rows."""

    reader: RegionReader
    images: Mapping[int, InputImage]
    names: show.Vocabulary
    summary: str = ""  # the number of rows with images, and the images without a row
    source: InputReader = field(default_factory=lambda: InputReader(InputLimits().max_bytes))
    lock: threading.Lock = field(default_factory=threading.Lock)  # of reader and source
    thumbnails: "BoundedPool[bytes, bytes]" = field(
        default_factory=lambda: BoundedPool(1, start_thumbnails)
    )

    def page(self, page: int, size: int) -> dict[str, Any]:
        """Returns the content of one page."""
        counts, ids = self.reader.box_counts(), self.reader.image_ids
        numbers = range(page * size, min((page + 1) * size, len(self.reader)))
        rows = [
            {
                "number": number,
                "image_id": ids[number],
                "num_boxes": int(counts[number]),
                "has_picture": number in self.images,
            }
            for number in numbers
        ]
        return {"total": len(self.reader), "rows": rows}

    def row(self, number: int) -> bytes:
        """Returns a row in the form of the service of regions."""
        with self.lock:
            row = self.reader.row(number)
        dtype = self.reader.arrays.get("features", {}).get("dtype", "float32")
        (plain,) = encode_regions([row], dtype=dtype).to_pylist()
        content = {"regions": [plain_row(plain)], "rejects": [], "arrays": self.reader.arrays}
        return json.dumps(content, allow_nan=False).encode()

    def image(self, number: int) -> bytes:
        """Returns a row's image as a JPEG of a page's size. Raises RequestRefused."""
        if number not in self.images:
            raise RequestRefused(404, "no_picture", "--images has no image of this row")
        try:
            with self.lock:
                _, data = self.source.read(self.images[number])
            return self.thumbnails.call(data)
        except Rejected as why:
            raise RequestRefused(404, why.reason.value, "the image cannot be read") from None


def start_thumbnails() -> Callable[[bytes], bytes]:
    """Returns the function that creates thumbnails in a process that can be killed."""
    return make_thumbnail


def make_thumbnail(data: bytes) -> bytes:
    """Returns an image as a JPEG of a page's size. Raises Rejected."""
    image = Image.fromarray(decode(data, InputLimits())[:, :, ::-1].copy())
    image.thumbnail((show.MAX_SIDE_PX, show.MAX_SIDE_PX))
    return show.encode_image(image, "JPEG")


def view(regions: str, images: Sequence[str], names: show.Vocabulary) -> TableView:
    """Opens a table, and finds its rows' images by their names, else by their content.

    Raises InputError for names that are not the detector's, and for an image that matches two rows.
    """
    reader = RegionReader(regions, flag="REGIONS")
    require_names(vars(names), reader.producer, "REGIONS")
    table_view = TableView(reader=reader, images={}, names=names)
    images_by_row: dict[int, InputImage] = {}
    image_counts = show.ImageCounts(num_rows=len(reader), verb="found")
    for image in plan_images(images):
        image_id = show.find_row_id(reader.index, image)
        if image_id is None:
            try:
                image_id, _ = table_view.source.read(image)
            except Rejected as why:
                image_counts.leave_out(image, why)
                continue
        if image_id in reader:
            images_by_row.setdefault(int(reader.find([image_id])[0]), image)
        else:
            image_counts.unnamed.append(show.name_in(image))
    image_counts.num_drawn = len(images_by_row)
    table_view.images, table_view.summary = (
        images_by_row,
        image_counts.format_counts(reader.index),
    )
    return table_view


def viewer_service(settings: ServiceSettings, table_view: TableView) -> tuple[Shell, Guard]:
    """Creates the service of the page."""
    shell = Shell(settings=settings)
    reader = table_view.reader

    def about() -> Mapping[str, Any]:
        weights = str(reader.producer.get("weights", "unknown"))
        return {
            "service": "table",
            "title": "A table of regions",
            "random": "random" in weights,
            "weights": weights,
            "detector_fingerprint": reader.detector_fingerprint,
            "arrays": reader.arrays,
            "classes": list(table_view.names.classes),
            "attributes": list(table_view.names.attributes),
        }

    application = new_application(shell, "vlmill table", "Looks at a table of regions.", about)

    @application.get("/v1/rows", summary="The rows of a page", operation_id="rows")
    async def rows(request: Request) -> dict[str, Any]:
        require_query(request, ("page", "per_page"))
        page = parse_number(request.query_params.get("page", "0"))
        size = parse_number(request.query_params.get("per_page", "24"))
        if not 1 <= size <= MOST_A_PAGE:
            raise bad_request(f"per_page: expected 1 to {MOST_A_PAGE}")
        return table_view.page(page, size)

    @application.get("/v1/rows/{number}", summary="A row", operation_id="row")
    async def row(number: str) -> Response:
        content = await asyncio.to_thread(table_view.row, parse_row_number(number))
        return Response(content, media_type="application/json")

    @application.get(
        "/v1/rows/{number}/picture",
        summary="A row's image",
        operation_id="picture",
        response_class=Response,
        responses={200: file_response("the image", JPEG)},
    )
    async def image(number: str) -> Response:
        content = await asyncio.to_thread(table_view.image, parse_row_number(number))
        return Response(content, media_type="image/jpeg")

    def parse_row_number(number: str) -> int:
        row_number = parse_number(number)
        if row_number >= len(reader):
            raise RequestRefused(404, "no_row", f"the table has {len(reader)} rows, from 0")
        return row_number

    return shell, guard_application(shell, application)


def parse_number(text: str) -> int:
    """Reads a number from 0. Raises RequestRefused."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise bad_request("expected a number from 0")
    return int(text)


def serve_table(regions: str, images: Sequence[str], names: show.Vocabulary, port: int) -> int:
    """Serves the page only on this machine until a stop is requested; returns the exit status."""
    from vlmill.runtime.service.server import run_service

    table_view = view(regions, images, names)
    if images:
        print_status(table_view.summary)
    shell, application = viewer_service(ServiceSettings(port=port), table_view)
    return run_service(shell, application, [], "extract-rois show")
