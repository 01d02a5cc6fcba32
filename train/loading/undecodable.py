"""Records images that turn out to be undecodable during training, and limits their number."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

NAMED = 8  # images that a message names


@dataclass(frozen=True, kw_only=True)
class Undecodable:
    """Records an undecodable image and the pair that was replaced because of it."""

    pair_id: str
    image_id: str
    reason: Reason
    why: str


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Limits the undecodable images of a run: a ``share`` of its ``images``."""

    images: int
    share: float

    def check(self, image_ids: Collection[str]) -> None:
        """Raises InputError if there are more different images than the limit."""
        if len(image_ids) <= self.share * self.images:
            return
        more = len(image_ids) - NAMED
        raise InputError(
            f"--images: {len(image_ids)} of the run's {self.images} images cannot be decoded "
            f"({', '.join(islice(image_ids, NAMED))}{f' and {more} others' if more > 0 else ''}), "
            f"more than max_bad={self.share}; remove their pairs, or continue with a higher "
            "max_bad"
        )
