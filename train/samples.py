"""One pair of a stage, masked: pure functions of the tables' rows and a source of random numbers.

T tokens, R regions of a picture, the whole one not among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from vlmill.schemas.regions import RegionRow
from vlmill.train.draws import Uniforms
from vlmill.train.masking import (
    NO_WORD,
    Flags,
    Ids,
    MaskedTokens,
)
from vlmill.train.recipes.base import Feeding, Masking
from vlmill.train.region_masking import MaskedRegions, mask_groups, masked_by, overlaps
from vlmill.train.vlbert_samples import kept_lengths, kept_tokens
from vlmill.train.vocabulary import CLS, MASK, PAD, SEP, UNK

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """What masking has to know of a vocabulary of V tokens.

    ``continues`` [V]: pieces that go on with a word (``##``). ``specials``: [PAD], [UNK], [CLS],
    [SEP] and [MASK], as far as there are.
    """

    mask_id: int
    size: int
    continues: Flags
    specials: frozenset[int]

    @staticmethod
    def of(tokenizer: Tokenizer) -> "Lexicon":
        """That of a tokenizer."""
        size = tokenizer.get_vocab_size()
        words = [tokenizer.id_to_token(i) or "" for i in range(size)]
        ids = [tokenizer.token_to_id(name) for name in (PAD, UNK, CLS, SEP, MASK)]
        assert ids[-1] is not None  # every way to a tokenizer checks the special tokens
        return Lexicon(
            mask_id=ids[-1],
            size=size,
            continues=np.array([word.startswith("##") for word in words]),
            specials=frozenset(i for i in ids if i is not None),
        )

    def words(self, tokens: Ids, maskable: Flags) -> Ids:
        """Each token's word, counted from 0; none where it is not maskable."""
        starts = ~self.continues[tokens] | ~maskable
        return np.where(maskable, np.cumsum(starts), NO_WORD).astype(np.int64)


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


def box_locations(boxes: Array, width: int, height: int) -> Array:
    """Corners and area as fractions of the picture [R, 5] (ImageBERT, sec. 3.2)."""
    size = np.array([width, height, width, height], dtype=np.float32)
    corners = np.clip(boxes.reshape(-1, 4) / np.maximum(size, 1), 0, 1).astype(np.float32)
    area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    return np.concatenate([corners, area[:, None]], axis=1)


@dataclass(frozen=True, kw_only=True)
class SampledRegions:
    """A picture's regions as a sample takes them, features left in their file.

    ``count`` regions of the row are read, of which the first ``kept`` are shown (VL-BERT's picture
    is the mean of all). ``boxes`` float32 [kept, 4] or, with the whole picture first,
    [1 + kept, 4], ``mirrored`` or not; ``masks`` [count]; ``row`` holds the whole
    row, as far as :func:`columns_of` says.
    """

    count: int
    kept: int
    boxes: Array
    masks: MaskedRegions
    row: RegionRow
    mirrored: bool = False


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
    return (*COLUMNS[feeding.region_targets], *["global_feature"] * global_features)


def sample_regions(
    row: RegionRow, tokens: MaskedTokens, draws: Uniforms, feeding: Feeding, masking: Masking
) -> tuple[SampledRegions, int]:
    """Mask a picture's regions; also how many tokens are kept beside them."""
    count = min(len(row.boxes), feeding.max_regions)
    size = (row.width, row.height)
    mirrored = bool(feeding.flip) and draws.random() < feeding.flip
    boxes = _placed(row.boxes[:count], size, feeding, mirrored=mirrored)
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
        count=count, kept=kept, boxes=boxes, masks=masks, row=row, mirrored=mirrored
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


def joined_texts(texts: Sequence[Ids], longest: int) -> Ids:
    """Texts of [CLS] ... [SEP] one after the other without these, the first ``longest`` pieces."""
    return np.concatenate([text[1:-1] for text in texts])[:longest]
