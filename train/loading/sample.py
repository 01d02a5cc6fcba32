"""One pair of a stage, masked: pure functions of the tables' rows and a source of random numbers.

T tokens, R regions of a picture, the whole one not among them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.regions import RegionRow
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.boxes import overlaps
from vlmill.train.loading.masking.regions import MaskedRegions, mask_groups, masked_by
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.random import Uniforms
from vlmill.train.recipes.spec import Feeding, Masking

LONGEST = 64  # text and regions together


def cut_tokens(tokens: Ids, longest: int | None) -> Ids:
    """At most ``longest`` tokens of [CLS] text [SEP], the [SEP] kept."""
    if longest is None or len(tokens) <= longest:
        return tokens
    return tokens[kept_tokens(len(tokens), longest)]


def mask_picture(
    boxes: Array, draws: Uniforms, masking: Masking, size: tuple[int, int]
) -> MaskedRegions:
    """Mask the regions of a picture of ``size`` pixels by the stage's rule."""
    if masking.region_rule == "regions":
        share = masking.regions
        drawn = draws.many(len(boxes))
        return masked_by(drawn, share=share, to_zero=masking.region_to_zero)
    pixel = (1.0, 1.0) if masking.group_pixels else (0.0, 0.0)
    return mask_groups(
        overlaps(boxes, pixel=pixel),
        draws,
        anchor_share=masking.regions,
        threshold=masking.group_overlap,
        inclusive=masking.group_pixels,
    )


@dataclass(frozen=True, kw_only=True)
class SampledRegions:
    """A picture's regions as a sample takes them, features left in their file.

    ``count`` regions of the row are read, of which the first ``kept`` are shown (VL-BERT's picture
    is the mean of all). ``boxes`` float32 [kept, 4] or, with the whole picture first,
    [1 + kept, 4], ``mirrored`` or not; ``masks`` [count]; ``row`` holds the whole
    row, as far as :func:`columns_of` says, in the table's order. ``order`` [count] gives the place
    in the row of each region that is read; None: they are the row's first.
    """

    count: int
    kept: int
    boxes: Array
    masks: MaskedRegions
    row: RegionRow
    mirrored: bool = False
    order: Ids | None = None

    def places(self, regions: Ids) -> Ids:
        """Where in the row the regions lie that stand at ``regions`` in the sample."""
        return regions if self.order is None else self.order[regions]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text with a picture (or alone), masked; ``matching`` says whether they belong together.

    ``original`` [T] tokens and ``tokens`` as the model sees them.
    """

    pair_id: str
    original: Ids
    tokens: MaskedTokens
    regions: SampledRegions | None
    matching: bool

    def with_regions(self, regions: SampledRegions, words: int) -> "Sample":
        """The first ``words`` tokens, [SEP] kept, beside a picture's regions."""
        original, tokens = self.original, self.tokens
        if words < len(original):
            kept = kept_tokens(len(original), words)
            tokens = MaskedTokens(tokens=tokens.tokens[kept], masked=tokens.masked[kept])
            original = original[kept]
        return Sample(
            pair_id=self.pair_id,
            original=original,
            tokens=tokens,
            regions=regions,
            matching=self.matching,
        )


IGNORED = -100
COLUMNS = {"class": ("class_ids",), "distribution": ("class_ids", "class_probs", "class_prob_ids")}


def columns_of(feeding: Feeding, *, global_features: bool = False) -> tuple[str, ...]:
    """What is read of a row beside its boxes and features."""
    columns = [*COLUMNS[feeding.region_targets], *["global_feature"] * global_features]
    if feeding.region_order == "confidence":
        columns += ["class_probs", "class_scores"]
    return tuple(dict.fromkeys(columns))


def surest_first(row: RegionRow) -> Ids | None:
    """A picture's regions by falling confidence [R], equal ones in the row's order.

    That is the highest probability of any class, background included (VL-BERT's code), or the
    class's own score where no distribution is stored; None where that is not stored either.
    """
    confidence = row.class_scores
    if row.class_probs is not None:
        # Bits of numbers from 0 up are in the numbers' order, and are compared a hundred times as
        # fast as float16 is (100 regions of 1601 classes: 6 us, not 706).
        halves = row.class_probs.dtype == np.float16
        probs = row.class_probs.view(np.int16) if halves else row.class_probs
        confidence = probs.max(axis=1, initial=0)
    return None if confidence is None else np.argsort(-confidence, kind="stable")


def sample_regions(
    row: RegionRow, tokens: MaskedTokens, draws: Uniforms, feeding: Feeding, masking: Masking
) -> tuple[SampledRegions, int]:
    """Mask a picture's regions; also how many tokens are kept beside them."""
    count = min(len(row.boxes), feeding.max_regions)
    order = surest_first(row) if feeding.region_order == "confidence" else None
    order = None if order is None else order[:count]
    size = (row.width, row.height)
    mirrored = bool(feeding.flip) and draws.random() < feeding.flip
    boxes = row.boxes[:count] if order is None else row.boxes[order]
    boxes = _placed(boxes, size, feeding, mirrored=mirrored)
    masks = mask_picture(boxes, draws, masking, size)
    whole = feeding.whole_image != "none"
    words, kept = len(tokens.tokens), count
    if feeding.max_elements is not None:
        words, shown = kept_lengths(words, count + whole, feeding.max_elements)
        kept = shown - whole
    boxes = boxes[:kept]
    if whole:
        last = int(feeding.whole_image == "rest")  # where VL-BERT's boxes end
        picture = np.array([[0, 0, size[0] - last, size[1] - last]], dtype=np.float32)
        boxes = np.concatenate([picture, boxes])
    regions = SampledRegions(
        count=count,
        kept=kept,
        boxes=boxes,
        masks=masks,
        row=row,
        mirrored=mirrored,
        order=order,
    )
    return regions, words


def _placed(boxes: Array, size: tuple[int, int], feeding: Feeding, *, mirrored: bool) -> Array:
    """Boxes mirrored, and clamped to the last pixel where the model counts so."""
    if mirrored:
        last = size[0] - 1
        boxes = np.stack([last - boxes[:, 2], boxes[:, 1], last - boxes[:, 0], boxes[:, 3]], axis=1)
    if feeding.whole_image == "rest":
        ends = np.array([size[0] - 1, size[1] - 1] * 2, dtype=np.float32)
        boxes = np.clip(boxes, 0, np.maximum(ends, 0))
    return boxes


def joined_texts(texts: Iterable[Ids], longest: int) -> Ids:
    """Texts of [CLS] ... [SEP] one after the other without these, the first ``longest`` pieces.

    At most ``longest`` texts are read: all may be empty.
    """
    pieces, count = list[Ids](), 0
    for text in islice(texts, longest):
        pieces.append(text[1:-1])
        count += len(pieces[-1])
        if count >= longest:
            break
    return np.concatenate(pieces)[:longest]


def global_feature_of(row: RegionRow) -> npt.NDArray[Any]:
    """The whole picture's feature [G]. Raises InputError if the row has none."""
    if row.global_feature is None:
        raise InputError(
            f"--regions: {row.image_id} has no global_feature, which model.global_widths asks for; "
            "extract with --global-feature, or train a model without"
        )
    return row.global_feature


def kept_lengths(tokens: int, regions: int, longest: int = LONGEST) -> tuple[int, int]:
    """How many of the tokens ([CLS] and [SEP] among them) and regions are kept.

    One by one from what there is more of, from the text where they are equal; two tokens and one
    region always stay.
    """
    while tokens + regions > longest and (tokens > 2 or regions > 1):
        if (regions > tokens and regions > 1) or tokens <= 2:
            regions -= 1
        else:
            tokens -= 1
    return tokens, regions


def kept_tokens(count: int, kept: int) -> Ids:
    """The places of the ``kept`` of ``count`` tokens: the first ones, and the last, the [SEP]."""
    return np.append(np.arange(kept - 1), count - 1).astype(np.int64)
