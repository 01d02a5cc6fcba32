"""Divides inputs that exceed the limits of a request into calls, and joins their results."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vlmill.runtime.client import calls
from vlmill.runtime.client.calls import Call, RegionBatch, RejectedImage, Vector
from vlmill.runtime.client.forms import ImageSource, image_size
from vlmill.runtime.client.responses import ServiceError

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
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
    blocks = [calls.score(part, words) for part in image_parts for words in text_parts]

    def join(results: Sequence[list[list[float | None]]]) -> list[list[float | None]]:
        width = len(text_parts)
        rows = [results[start : start + width] for start in range(0, len(results), width or 1)]
        return [list(chain(*row)) for blocks in rows for row in zip(*blocks, strict=True)]

    return Plan(calls=blocks, join=join)


def plan_vectors(
    images: Sequence[ImageSource], texts: Sequence[str], limits: Limits
) -> Plan[dict[str, list[Vector]]]:
    """Plans the vectors of images and texts."""
    parts = [calls.embed(images=part) for part in split_images(images, limits)]
    parts += [calls.embed(texts=part) for part in split_list(texts, MOST_TEXTS)]

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
            yield calls.regions(batch)

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
