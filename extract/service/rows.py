"""Encodes rows of regions in the requested format: an Arrow stream, a Parquet file, or JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from vlmill.runtime.client.forms import ARROW, JSON, PARQUET
from vlmill.runtime.files.atomic import temporary_folder
from vlmill.runtime.files.shards import file_metadata, write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions
from vlmill.runtime.service.json_rows import plain_row
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import REGIONS

KINDS = (JSON, ARROW, PARQUET)  # the first is the default format
# Statuses of a request with only rejected images; others are 422.
STATUSES = {Reason.TOO_LARGE: 413, Reason.UNSUPPORTED_FORMAT: 415, Reason.NETWORK_FAILED: 503}


@dataclass(frozen=True, kw_only=True)
class RejectedImage:
    """Holds the reason why an image has no row."""

    reason: Reason
    detail: str


Outcome = RegionRow | RejectedImage


@dataclass(frozen=True, kw_only=True)
class RegionsResponse:
    """Holds the results of a request's images: rows in their order, and rejects by number."""

    rows: Sequence[RegionRow]
    rejects: Mapping[int, RejectedImage]
    names: Sequence[str]

    def list_rejects(self) -> list[dict[str, object]]:
        """Returns the rejects as plain values."""
        return [
            {
                "picture": index,
                "name": self.names[index],
                "reason": why.reason.value,
                "why": why.detail,
            }
            for index, why in self.rejects.items()
        ]

    def require_rows(self) -> None:
        """Raises RequestRefused if every image is rejected."""
        if self.rows or not self.rejects:
            return
        first = next(iter(self.rejects.values()))
        message = f"the image is rejected: {first.detail}"
        if len(self.names) > 1:
            message = f"all images are rejected, the first as {first.reason.value}: {first.detail}"
        status = STATUSES.get(first.reason, 422)
        again = 1 if status == 503 else None
        more = {"rejects": self.list_rejects()}
        raise RequestRefused(status, first.reason.value, message, retry_after=again, more=more)


def make_response(outcomes: Sequence[Outcome], names: Sequence[str]) -> RegionsResponse:
    """Separates rows from rejects; of identical images the first one has the row, as in a run."""
    rows: dict[str, RegionRow] = {}
    first: dict[str, int] = {}
    rejects: dict[int, RejectedImage] = {}
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, RejectedImage):
            rejects[index] = outcome
        elif outcome.image_id in rows:
            earlier = names[first[outcome.image_id]]
            why = f"{names[index]} has the same bytes as the earlier {earlier}"
            rejects[index] = RejectedImage(reason=Reason.DUPLICATE, detail=why)
        else:
            rows[outcome.image_id] = outcome
            first[outcome.image_id] = index
    return RegionsResponse(rows=list(rows.values()), rejects=rejects, names=names)


def choose_kind(accept: str) -> str:
    """Returns the best of :data:`KINDS` that an Accept header allows. Raises RequestRefused without
    one.
    """
    if not accept.strip():
        return JSON
    wishes: list[tuple[float, int, str]] = []
    for order, part in enumerate(accept.lower().split(",")):
        name, *parameters = (word.strip() for word in part.split(";"))
        wishes.append((-quality(parameters), order, name))
    for weight, _, name in sorted(wishes):
        if name in ("*/*", "application/*") and weight < 0:
            return JSON
        if name in KINDS and weight < 0:
            return name
    raise RequestRefused(406, "not_acceptable", f"accept: there is {', '.join(KINDS)}")


def quality(parameters: Sequence[str]) -> float:
    """Returns the weight of one entry of an Accept header; 0 if it is invalid."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return max(0.0, min(1.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def encode_response(response: RegionsResponse, kind: str, about: Mapping[str, Any]) -> bytes:
    """Encodes the rows; ``about`` is the worker's metadata."""
    table = encode_regions(response.rows, dtype=about["dtype"])
    if kind == ARROW:
        return arrow_stream(table, about)
    if kind == PARQUET:
        return parquet_file(table, about)
    content = {
        "regions": [plain_row(row) for row in table.to_pylist()],
        "rejects": response.list_rejects(),
        "arrays": about["arrays"],
    }
    return json.dumps(content, allow_nan=False).encode()


def arrow_stream(table: pa.Table, about: Mapping[str, Any]) -> bytes:
    """Encodes a table with the metadata that a shard of it has."""
    metadata = file_metadata(REGIONS, about["producer"], about["arrays"])
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(metadata).combine_chunks()  # one batch
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def parquet_file(table: pa.Table, about: Mapping[str, Any]) -> bytes:
    """Encodes a table as a run's shard of it."""
    with temporary_folder() as folder:
        shard = write_shard(
            folder,
            REGIONS,
            table,
            producer=about["producer"],
            arrays=about["arrays"],
            compression=about["compression"],
        )
        return (folder / shard.name).read_bytes()
