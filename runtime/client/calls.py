"""Defines a call for each path of the services: the request, and how its response is read.

An image is a path or the bytes of a file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vlmill.runtime.client.forms import ARROW, JSON, PARQUET, ImageSource
from vlmill.runtime.client.responses import Response
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
    words = {"texts": texts}
    return Call(path="/v1/embed", images=images, words=words, read=read_json)


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
