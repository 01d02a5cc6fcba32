"""Defines a call for each path of the services: the request, and how its response is read.

An image is a path or the bytes of a file. Inputs that exceed the limits of a request are divided
into calls, whose results are joined.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vlmill.runtime.client.forms import ARROW, JSON, PARQUET, ImageSource, image_size
from vlmill.runtime.client.responses import Response, ServiceError
from vlmill.schemas.plain_json import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
Rows = list[dict[str, Any]]
Where = Mapping[str, Sequence[str]]  # allowed values by column
Vector = list[float] | None  # None: the image or text cannot be read


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Result]):
    """Holds a request, a form unless ``method`` is GET, and the function that reads its response.

    ``body`` is sent as JSON instead of a form.
    """

    path: str
    read: Callable[[Response], Result]
    images: Sequence[ImageSource] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    accept: str = JSON
    method: str = "POST"


@dataclass(frozen=True, kw_only=True)
class RejectedImage:
    """Holds the position of a rejected image in the input, and the reason."""

    index: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RegionBatch:
    """Holds rows of the regions table, and the images of the batch that have none."""

    table: "pa.Table | None"
    rejects: Sequence[RejectedImage]


def read_json(response: Response) -> Any:
    """Returns the JSON of a response."""
    return parse_json(response.content)


def read_content(response: Response) -> bytes:
    """Returns the bytes of a response."""
    return response.content


def read_field(name: str) -> Callable[[Response], Any]:
    """Returns the function that reads one field of a response."""
    return lambda response: read_json(response)[name]


def about() -> Call[dict[str, Any]]:
    """Asks for the description of the served model, and the limits of a request."""
    return Call(path="/v1/about", method="GET", read=read_json)


def regions(images: Sequence[ImageSource]) -> Call[RegionBatch]:
    """Asks for the regions of images, as rows of the regions table."""
    return Call(path="/v1/regions", images=images, accept=ARROW, read=read_regions)


def regions_parquet(images: Sequence[ImageSource]) -> Call[bytes]:
    """Asks for a shard of the regions table, as `extract-rois run` writes it."""
    return Call(path="/v1/regions", images=images, accept=PARQUET, read=read_content)


def read_regions(response: Response) -> RegionBatch:
    """Reads an Arrow stream, and the header with the rejected images."""
    import pyarrow as pa  # only tables need it

    table = pa.ipc.open_stream(response.content).read_all()
    rejects = [
        RejectedImage(index=index, reason=reason)
        for index, reason in parse_json(response.headers.get("vlmill-rejects", "[]"))
    ]
    return RegionBatch(table=table, rejects=rejects)


def score(images: Sequence[ImageSource], texts: Sequence[str]) -> Call[list[list[float | None]]]:
    """Asks for the score of each image with each text."""
    words = {"texts": texts}
    return Call(path="/v1/score", images=images, words=words, read=read_field("scores"))


def embed(
    images: Sequence[ImageSource] = (), texts: Sequence[str] = ()
) -> Call[dict[str, list[Vector]]]:
    """Asks for the vectors of images and texts."""
    return Call(path="/v1/embed", images=images, words={"texts": texts}, read=read_json)


def search(
    *,
    text: str | None = None,
    image: ImageSource | None = None,
    top: int = 10,
    where: Where | None = None,
    rerank: int | None = None,
) -> Call[Rows]:
    """Asks for the nearest rows of the index among the rows that match ``where``; ``rerank`` is how
    many of a text's results the service's reranker sorts again.
    """
    words = {"top": [str(top)], "text": [] if text is None else [text], "where": conditions(where)}
    words["rerank"] = [] if rerank is None else [str(rerank)]
    images = [] if image is None else [image]
    return Call(path="/v1/search", images=images, words=words, read=read_field("answers"))


def similar(
    items: Sequence[str], *, seen: Sequence[str] = (), top: int = 10, where: Where | None = None
) -> Call[Rows]:
    """Asks for the items that are nearest to an item, or to the last ones of a history."""
    words = {"items": items, "seen": seen, "top": [str(top)], "where": conditions(where)}
    return Call(path="/v1/similar", words=words, read=read_field("answers"))


def conditions(where: Where | None) -> list[str]:
    """Returns the values that columns must have, as the service reads them."""
    return [f"{column}={value}" for column, values in (where or {}).items() for value in values]


def answer(image: ImageSource, question: str) -> Call[str]:
    """Asks a question about an image."""
    words = {"question": [question]}
    return Call(path="/v1/answer", images=[image], words=words, read=read_field("answer"))


def attend(image: ImageSource, text: str) -> Call[dict[str, Any]]:
    """Asks for the decrease of a score without each region."""
    return Call(path="/v1/attend", images=[image], words={"text": [text]}, read=read_json)


def classify(image: ImageSource, text: str = "") -> Call[dict[str, Any]]:
    """Asks for the classes of an image, or of an image with a text."""
    words = {"text": [text] if text else []}
    return Call(path="/v1/classify", images=[image], words=words, read=read_json)


def entail(image: ImageSource, statement: str) -> Call[dict[str, Any]]:
    """Asks whether an image entails a statement."""
    words = {"statement": [statement]}
    return Call(path="/v1/entail", images=[image], words=words, read=read_json)


Item = TypeVar("Item")
MOST_TEXTS = 256  # of a request for scores or vectors
MOST_BYTES = 32 << 20  # of a body, unless the service states its limit
MOST_IMAGES = 32
TOO_LARGE = 413


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Holds the largest number of images of a request, and the bytes of its body."""

    images: int = MOST_IMAGES
    bytes: int = MOST_BYTES

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> "Limits":
        """Reads the limits in a service's description of itself."""
        limits = about.get("limits", {})
        return cls(
            images=int(limits.get("pictures", MOST_IMAGES)),
            bytes=int(limits.get("bytes", MOST_BYTES)),
        )


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[Result]):
    """Holds the calls for an input, and the function that joins their results."""

    calls: Sequence[Call[Any]]
    join: Callable[[Sequence[Any]], Result]


def split_images(images: Iterable[ImageSource], limits: Limits) -> Iterator[list[ImageSource]]:
    """Yields images in batches that fit into a request; a too large one is alone in its batch.

    Raises OSError for a file that does not exist.
    """
    batch, num_bytes = list[ImageSource](), 0
    for image in images:
        size = image_size(image)
        if batch and (len(batch) == limits.images or num_bytes + size > 0.95 * limits.bytes):
            yield batch
            batch, num_bytes = [], 0
        batch.append(image)
        num_bytes += size
    if batch:
        yield batch


def split_list(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Returns a list in parts of at most ``size``."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def plan_scores(
    images: Sequence[ImageSource], texts: Sequence[str], limits: Limits
) -> Plan[list[list[float | None]]]:
    """Plans the scores of all images with all texts."""
    image_parts, text_parts = list(split_images(images, limits)), split_list(texts, MOST_TEXTS)
    blocks = [score(part, words) for part in image_parts for words in text_parts]

    def join(results: Sequence[list[list[float | None]]]) -> list[list[float | None]]:
        width = len(text_parts)
        rows = [results[start : start + width] for start in range(0, len(results), width or 1)]
        return [list(chain(*row)) for blocks in rows for row in zip(*blocks, strict=True)]

    return Plan(calls=blocks, join=join)


def plan_vectors(
    images: Sequence[ImageSource], texts: Sequence[str], limits: Limits
) -> Plan[dict[str, list[Vector]]]:
    """Plans the vectors of images and texts."""
    parts = [embed(images=part) for part in split_images(images, limits)]
    parts += [embed(texts=part) for part in split_list(texts, MOST_TEXTS)]

    def join(results: Sequence[dict[str, list[Vector]]]) -> dict[str, list[Vector]]:
        names = ("pictures", "texts")
        return {name: [vector for part in results for vector in part[name]] for name in names}

    return Plan(calls=parts, join=join)


class RegionBatches:
    """Divides any number of images into calls, and returns results for the full input."""

    def __init__(self, images: Iterable[ImageSource], limits: Limits) -> None:
        self._images, self._limits = images, limits
        self._sizes = deque[int]()  # images of the calls whose results are expected
        self._start = 0  # images before the next result

    def calls(self) -> Iterator[Call[RegionBatch]]:
        """Yields the calls."""
        for batch in split_images(self._images, self._limits):
            self._sizes.append(len(batch))
            yield regions(batch)

    def place(self, result: RegionBatch | ServiceError) -> RegionBatch:
        """Returns the next batch with the positions of its rejects in the whole input.

        A batch whose images are all rejected has no table. Raises other refusals.
        """
        start, count = self._start, self._sizes.popleft()
        self._start += count
        if isinstance(result, RegionBatch):
            table, reasons = result.table, [(row.index, row.reason) for row in result.rejects]
        elif result.rejects:
            table, reasons = None, [(row["picture"], row["reason"]) for row in result.rejects]
        elif count == 1 and result.status == TOO_LARGE:  # refused before it was read
            table, reasons = None, [(0, result.reason)]
        else:
            raise result
        rejects = [RejectedImage(index=start + index, reason=reason) for index, reason in reasons]
        return RegionBatch(table=table, rejects=rejects)


def join_regions(batches: Iterable[RegionBatch]) -> "pa.Table":
    """Returns one table of the batches' rows. Raises ServiceError if all images are rejected."""
    import pyarrow as pa  # only tables need it

    tables, reasons = list[pa.Table](), set[str]()
    for batch in batches:
        reasons |= {row.reason for row in batch.rejects}
        if batch.table is not None:
            tables.append(batch.table)
    if not tables:
        why = ", ".join(sorted(reasons)) or "there is no image"
        raise ServiceError(422, "all_rejected", f"no image has a row: {why}")
    return pa.concat_tables(tables)
