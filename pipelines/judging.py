"""Defines the results of a filter of images, and how jobs call it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from vlmill.runtime.units.funnel import Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageScores:
    """Holds an image's scores by filters, 0 to 1; None for a filter that is off."""

    nsfw_score: float | None = None
    realism_score: float | None = None


class ImageJudge(Protocol):
    """Judges decoded images in batches."""

    def prepare(self, image: Image.Image) -> Any:
        """Returns the inputs of :meth:`judge` for a decoded image. May raise Rejected."""

    def judge(self, inputs: Sequence[Any]) -> Sequence[Drop | ImageScores]:
        """Returns for each image why it is dropped, or its scores."""
