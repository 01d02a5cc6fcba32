"""Defines the fields of retrieval's recipes."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmill.train.settings.tasks import TaskRecipe

MARGIN = 0.2  # on scores between 0 and 1, as UNITER's; ImageBERT's paper does not specify it
Loss = Literal["binary", "softmax", "triplet"]
OF_ALIGNMENT = 4  # the pair, and one of each of the three negatives


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings:
    """Holds the fields that only retrieval has."""

    # The negatives of a pair: the same image with other captions (texts), the same caption with
    # other images, either of these by chance (both), ViLBERT's three of another caption, another
    # image and a caption of a near image (alignment), or the other pairs of the step (batch). For
    # batch VLMo contrasts vectors, and of the other fields only same_picture_negatives applies;
    # other models score each caption of the step with each of its images.
    negatives: Literal["texts", "pictures", "both", "alignment", "batch"] = "alignment"
    num_candidates: int = OF_ALIGNMENT  # the pair itself among them
    # Whether alignment's near caption is of one of the images nearest by their
    # regions, which --negatives lists, or of any image.
    nearest: bool = True
    # Summed: each pair is matching or not, the pair among its candidates, and the
    # hardest of these by a margin.
    losses: tuple[Loss, ...] = ("softmax",)
    margin: float = MARGIN
    # Whether another caption of a pair's image in the step is a negative of it (VLMo's code).
    same_picture_negatives: bool = False

    @property
    def samples_of_pair(self) -> int:
        """Returns how many pairs are computed for a caption."""
        return 1 if self.negatives == "batch" else self.num_candidates

    def __post_init__(self) -> None:
        if self.num_candidates < 2:
            raise ValueError(f"settings.num_candidates={self.num_candidates}: expected at least 2")
        if self.negatives == "alignment" and self.num_candidates != OF_ALIGNMENT:
            raise ValueError(
                f"settings.num_candidates={self.num_candidates}: negatives=alignment has "
                f"{OF_ALIGNMENT}; set that, or negatives=both"
            )
        if not self.losses or len(set(self.losses)) < len(self.losses):
            raise ValueError(
                f"settings.losses={list(self.losses)}: expected at least one, each named once"
            )
        if not 0 <= self.margin <= 1:
            raise ValueError(f"settings.margin={self.margin}: expected a difference from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class RetrievalRecipe(TaskRecipe):
    """Describes a run of retrieval."""

    published: ClassVar[dict[str, Any]] = {
        "validation_pairs": 500
    }  # 100 images, each with all of the captions
    task: str = "retrieval"
    settings: RetrievalSettings = field(default_factory=RetrievalSettings)
