"""What the published runs feed their models, and how they mask it. Marked [code] where only the
released code says it, [choice] where neither paper nor code does."""

from dataclasses import replace

from vlmill.train.settings.parts import Feeding, Masking


def bert_feeding() -> Feeding:
    """Texts alone, as long as the model takes (arXiv:1810.04805, app. A.2)."""
    return Feeding(kind="text")


def imagebert_feeding() -> Feeding:
    """144 positions in all less 100 regions (arXiv:2001.07966, sec. 5.2)."""
    return Feeding(max_tokens=44, max_regions=100)


def vilbert_feeding() -> Feeding:
    """Captions of 36 tokens [code], 10 to 36 regions (arXiv:1908.02265, sec. 3.2) and the image.

    The distribution over the detector's classes is the target (sec. 3.1).
    """
    return Feeding(max_tokens=36, max_regions=36, whole_image="mean", region_targets="distribution")


def vilbert_retrieval_feeding() -> Feeding:
    """Fine-tuned on texts of 30 tokens, 99 regions and the image [code]."""
    return replace(vilbert_feeding(), max_tokens=30, max_regions=99)


def vilbert_masking() -> Masking:
    """Sec. 3.1. The code masks and asks in mismatched pairs too; the paper is silent."""
    return Masking(mismatched_words=True, mismatched_regions=True)


def vlbert_feeding(*, text_rows: int = 0) -> Feeding:
    """Up to 100 regions (arXiv:1908.08530, sec. 4.1), the surest first, of which 64 elements with
    the text [code].

    The code flips boxes, not features, and learns from as many rows of text alone as of captions.
    """
    return Feeding(
        max_tokens=63,
        max_regions=100,
        region_order="confidence",
        whole_image="rest",
        max_elements=64,
        region_targets="distribution",
        flip=0.5,
        text_rows=text_rows,
        text_row_tokens=64,
    )


def vlbert_masking() -> Masking:
    """Whole words, with BERT's shares [code]; the paper always writes [MASK]."""
    return Masking(word_rule="words", mismatched_words=True, mismatched_regions=True)


def interbert_feeding(*, released: bool = False) -> Feeding:
    """36 tokens and 36 regions [code]; the class as target in the paper, its distribution in the
    code."""
    return Feeding(
        max_tokens=36,
        max_regions=36,
        whole_image="mean",
        region_targets="distribution" if released else "class",
    )


def interbert_retrieval_feeding() -> Feeding:
    """Fine-tuned on texts of 30 tokens [code] and up to 100 regions (arXiv:2003.13198, sec. 4)."""
    return replace(interbert_feeding(), max_tokens=30, max_regions=100)


def interbert_released_feeding() -> Feeding:
    """What the released checkpoints were fed."""
    return interbert_feeding(released=True)


def vlbert_paper_masks(masking: Masking) -> Masking:
    """Returns the masking of VL-BERT's paper (arXiv:1908.08530, sec. 3.3): all chosen are masked,
    where the code keeps or replaces some.
    """
    return replace(masking, word_to_mask=1.0, word_to_random=0.0, region_to_zero=1.0)


def interbert_masking(*, released: bool = False) -> Masking:
    """Segments and groups around anchors of 10 % (arXiv:2003.13198, sec. 3.2).

    The code masks one span of any length, and counts boxes with their last pixel.
    """
    return Masking(
        words=0.10,
        regions=0.10,
        region_to_zero=1.0,
        word_rule="span" if released else "segments",
        region_rule="groups",
        group_pixels=released,
        mismatched_words=True,
    )


def interbert_single_masking() -> Masking:
    """The ablation without segments and groups (table 4): words and regions each for itself."""
    return Masking(mismatched_words=True)


def vlmo_feeding(*, image_size: int = 224) -> Feeding:
    """Stage 3: 40 tokens and RandAugment (arXiv:2111.02358, sec. 4.1); the crop is the code's."""
    return Feeding(kind="pixels", max_tokens=40, image_size=image_size, flip=0.5)


def vlmo_text_feeding() -> Feeding:
    """Stage 2: text of 196 tokens (sec. 4.1)."""
    return Feeding(kind="text", max_tokens=196)


def vlmo_images_feeding(*, image_size: int = 224, token_size: int = 112) -> Feeding:
    """Stage 1 is BEiT's: one crop for the model and, at half the size, for the tokenizer [code]."""
    return Feeding(
        kind="pictures",
        image_size=image_size,
        token_size=token_size,
        crop=(0.08, 1.0),
        augment=False,
        jitter=0.4,
        flip=0.5,
    )


def vlmo_masking() -> Masking:
    """Whole words, 15 % of the 40 tokens that a text may have [code]."""
    return Masking(word_rule="budget", mismatched_words=True)
