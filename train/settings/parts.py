"""Defines the settings of a training stage; the numbers of papers are in the recipes."""

from dataclasses import dataclass
from typing import Literal

MOST_VISITS = 1000  # of a pair in an epoch
FEWEST_TOKENS = 3  # [CLS], a word, [SEP]


def require_share(name: str, value: float) -> None:
    """Raises ValueError for a value that is not a share."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value}: expected a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Sets the shares of masked sub-words and regions, and their replacements.

    The defaults are BERT's for words (Devlin et al. 2018, sec. 3.1) and ImageBERT's for regions
    (arXiv:2001.07966, sec. 3.3).
    """

    words: float = 0.15  # share of the words, or of the anchors of segments
    word_to_mask: float = 0.8  # of these, the share that is replaced by [MASK]
    word_to_random: float = 0.1  # of these, the share that gets a random token; others stay
    regions: float = 0.15  # share of the regions, or of the anchors of groups
    region_to_zero: float = 0.9  # of these, the share whose feature is zeroed; the rest stays
    # ``tokens`` separately, ``words`` whole (VL-BERT), ``budget`` whole words up to ``words`` of
    # the longest text's length (VLMo's code), ``segments`` of anchors (InterBERT's paper), ``span``
    # one of any length (InterBERT's code).
    word_rule: Literal["tokens", "words", "budget", "segments", "span"] = "tokens"
    # ``regions`` separately, or ``groups`` of an anchor and the regions that overlap with it
    # (InterBERT).
    region_rule: Literal["regions", "groups"] = "regions"
    group_overlap: float = 0.4  # regions with a larger overlap belong to the group
    # As in InterBERT's code: boxes include their last pixel, and overlap by at least
    # ``group_overlap``.
    group_pixels: bool = False
    # Whether words and regions are also predicted in mismatched pairs (ViLBERT, VL-BERT: both;
    # InterBERT: words; ImageBERT: neither). Both are masked in any case: the masks must not reveal
    # whether a pair matches.
    mismatched_words: bool = False
    mismatched_regions: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float | int) and not isinstance(value, bool):
                require_share(f"masking.{name}", value)
        both = self.word_to_mask + self.word_to_random
        require_share("masking.word_to_mask + word_to_random", both)


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """Sets the model's inputs from a pair; the papers' numbers are in `vlmill.train.recipes`."""

    # Text with regions, text with pixels, only text, only images, or text with images and the boxes
    # of their regions (VL-BERT end to end).
    kind: Literal["regions", "pixels", "text", "pictures", "picture-regions"] = "regions"
    max_tokens: int | None = None  # including [CLS] and [SEP]; null: the maximum of the model
    max_regions: int = 100  # the first ones of an image in ``region_order``
    # The source of the boxes: ``--regions``, ``--annotated-regions``, or both. With both the
    # annotated ones come after the detected ones and have priority under ``max_regions``.
    # ``joined-in-training`` uses only the detected ones in evaluation and for the full image's
    # feature (RefCOCO+), and gives them priority. ``examples``: the boxes of the objects that the
    # examples name (VCR). Their features come from pixels only: no table of regions is read.
    boxes: Literal["detected", "annotated", "joined", "joined-in-training", "examples"] = "detected"
    # The table's order, or by falling confidence: the highest probability of any class, background
    # included (VL-BERT), or the class's score if only that is stored; otherwise the table's order.
    region_order: Literal["table", "confidence"] = "table"
    # An additional region in row 0: the mean of the masked features (ViLBERT, InterBERT), or of the
    # features that are not masked (VL-BERT).
    whole_image: Literal["none", "mean", "rest"] = "none"
    max_elements: int | None = None  # the maximum of tokens and regions together (VL-BERT)
    # The detector's class, or its distribution over classes where the regions have one.
    region_targets: Literal["class", "distribution"] = "class"
    flip: float = 0.0  # share of images that are mirrored; for stored features, only their boxes
    text_rows: int = 0  # texts without an image that are added to the pairs of a step (VL-BERT)
    text_row_tokens: int = 64  # their length in tokens, without [CLS] and [SEP]
    # Pixels: side, share of the area that a crop covers, RandAugment, jitter of colours, and the
    # side of the second image, for the tokenizer of images (null: none).
    image_size: int = 224
    crop: tuple[float, float] = (0.5, 1.0)
    augment: bool = True
    jitter: float = 0.0
    token_size: int | None = None
    # Images with regions keep their aspect: the short side has this length, unless the long side
    # would exceed its maximum.
    short_side: int = 600
    long_side: int = 1000

    @property
    def has_regions(self) -> bool:
        """Returns whether an image comes with regions, from any table."""
        return self.kind in ("regions", "picture-regions")

    @property
    def reads_regions(self) -> bool:
        """Returns whether the table of regions is read."""
        return self.has_regions and self.boxes != "examples"

    @property
    def reads_images(self) -> bool:
        """Returns whether the table of images is read."""
        return self.kind in ("pixels", "pictures", "picture-regions")

    def __post_init__(self) -> None:
        require_share("feeding.flip", self.flip)
        require_share("feeding.jitter", self.jitter)
        if self.boxes == "examples" and self.kind != "picture-regions":
            raise ValueError(
                f"feeding.kind={self.kind}, boxes=examples: boxes of examples have no "
                "stored features; set kind=picture-regions, or boxes=annotated"
            )
        sides = (("image_size", 1), ("short_side", 1), ("long_side", 1))
        for name, minimum in (("max_regions", 1), ("text_rows", 0), *sides):
            if getattr(self, name) < minimum:
                raise ValueError(
                    f"feeding.{name}={getattr(self, name)}: expected at least {minimum}"
                )
        for name, minimum in (
            ("max_tokens", FEWEST_TOKENS),
            ("max_elements", 4),
            ("token_size", 1),
        ):
            if (value := getattr(self, name)) is not None and value < minimum:
                raise ValueError(f"feeding.{name}={value}: expected at least {minimum}")
        low, high = self.crop
        if not 0 < low <= high <= 1:
            raise ValueError(f"feeding.crop={self.crop}: expected two shares, the lower first")


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """Sets the weights in the sum of losses; an objective of weight 0 is not computed.

    Each loss is a mean over the whole step's labels, regardless of the number of processes and of
    parts in the step.
    """

    mlm: float = 1.0  # masked language modelling
    text_mlm: float = 0.0  # the same on texts without an image, a separate mean
    moc: float = 1.0  # masked object classification: the detector's class
    mrkl: float = 0.0  # masked regions by the detector's distribution, KL divergence
    mrce: float = 0.0  # the same by cross-entropy, where the distribution is whole (VL-BERT)
    mrfr: float = 1.0  # masked region feature regression
    itm: float = 1.0  # image-text matching
    itc: float = 0.0  # image-text contrast
    mim: float = 0.0  # masked image modelling

    def __post_init__(self) -> None:
        weights = [getattr(self, name) for name in self.__dataclass_fields__]
        if min(weights) < 0 or max(weights) == 0:
            raise ValueError(f"objectives {weights}: expected weights of at least 0, not all 0")


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Sets how weights are updated; defaults are BERT's except ``lr``."""

    lr: float  # the peak of the learning rate
    # PyTorch's AdamW; the optimiser of ViLBERT and InterBERT (no bias correction, each gradient
    # clipped separately); the one of VL-BERT and VLMo; or gradient descent whose decay is a part of
    # the gradient (VL-BERT for VCR).
    kind: Literal["adamw", "bert-adam", "transformers-adamw", "sgd"] = "adamw"
    momentum: float = 0.9  # of sgd
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    # Weight decay of matrices only, of everything (VL-BERT), or inverted: of biases and layer norms
    # only, but not of the weights of co-attention's norms (mistakes of the scripts of ViLBERT and
    # InterBERT, with --init only, as there). Or as in the code of VLMo (experts' norms and scales
    # too, relative positions not) and BEiT (matrices, but neither positions nor the class token).
    decay: Literal["matrices", "everything", "inverted", "vlmo", "beit"] = "matrices"
    # Largest norm of the gradient. For bert-adam it is the norm of each tensor of the published
    # code, where query, key and value are three; 0: no limit.
    clip: float = 1.0
    # Share of the rate for BERT's embeddings and layers, with --init (ViLBERT: 0.1).
    bert_rate: float = 1.0
    # Factor of the rate for a task's new heads: parameters whose names contain one of ``heads``
    # (ViLBERT's VQA 1e-4 of 4e-5, VLMo's 20 times).
    head_rate: float = 1.0
    heads: tuple[str, ...] = ()
    # Rises linearly over the warm-up, then falls linearly, by a cosine, not at all, or times
    # ``drop_factor`` from each epoch of ``drops`` on, counted from 0.
    schedule: Literal["linear", "cosine", "constant", "milestones"] = "linear"
    drops: tuple[float, ...] = ()
    drop_factor: float = 0.1
    warmup: float = 0.1  # share of the steps; rounded down to whole steps, except for bert-adam
    warmup_steps: int | None = None  # replaces the share
    end: float = 0.0  # share of the peak at the end of the schedule
    # The first step's number: 0, so that its rate under warm-up is 0 (the codes of BERT, ViLBERT,
    # InterBERT, VLMo and BEiT), or 1 (VL-BERT's).
    first_step: Literal[0, 1] = 0

    def __post_init__(self) -> None:
        if min(self.lr, self.eps) <= 0 or min(self.weight_decay, self.clip) < 0:
            raise ValueError(
                "optimizer: expected lr and eps above 0, and weight_decay and clip of at least 0"
            )
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"optimizer.lr={self.lr:g} times weight_decay={self.weight_decay:g}: "
                "expected a product below 1, or one step would remove a weight completely"
            )
        shares = ("momentum", "beta1", "beta2", "warmup", "bert_rate", "end", "drop_factor")
        for name in shares:
            require_share(f"optimizer.{name}", getattr(self, name))
        if self.head_rate <= 0:
            raise ValueError(f"optimizer.head_rate={self.head_rate}: expected a factor above 0")
        if self.head_rate != 1 and not self.heads:
            raise ValueError(
                f"optimizer.head_rate={self.head_rate}: optimizer.heads names no "
                "parameter; name substrings of the heads' parameter names"
            )
        if bool(self.drops) != (self.schedule == "milestones") or min(self.drops, default=1) <= 0:
            raise ValueError(
                f"optimizer.schedule={self.schedule}, drops={list(self.drops)}: "
                "expected drops (epochs above 0) with schedule=milestones, and none "
                "with other schedules"
            )
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise ValueError(f"optimizer.warmup_steps={self.warmup_steps}: expected at least 0")


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Sets the order of pairs, as far as it affects speed."""

    # Pairs that are shuffled together in an epoch. The data of a window are contiguous, and should
    # fit into memory in addition to the model (16,384 images of 100 float16 regions are 6.7 GB), or
    # are read image by image.
    window: int = 16_384
    # Larger data are cut into runs of this number of pairs whose images are adjacent; a window
    # consists of runs from anywhere in the data.
    block: int = 64
    # This number of steps is formed together, of pairs of similar lengths, and shuffled. For VLMo
    # on GPUs, which computes its padding there: other models pack rows, and buckets have no
    # benefit.
    bucket: int = 1
    pad_to: int = 1  # with buckets: lengths are padded to a multiple of this

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"loading.{name}={getattr(self, name)}: expected at least 1")


@dataclass(frozen=True, kw_only=True)
class MixedSource:
    """Sets how often an epoch visits the pairs of one source.

    Without such a rule it visits each once. Every epoch samples again which pairs it repeats or
    omits; the number of visits is the same in every epoch.
    """

    source: str  # a value of the column ``source``
    # Visits of a pair: 2 visits each twice, 0.25 a quarter of them, 2.5 each twice and half of them
    # once more.
    weight: float = 1.0
    # This number of captions per image is sampled instead of all (in each visit, with a weight).
    captions_per_picture: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight <= MOST_VISITS:
            raise ValueError(
                f"weight={self.weight} of source {self.source}: expected more than 0 and at most "
                f"{MOST_VISITS}; remove a source with `sources`"
            )
        if self.captions_per_picture is not None and self.captions_per_picture < 1:
            raise ValueError(
                f"captions_per_picture={self.captions_per_picture} of source "
                f"{self.source}: expected "
                "at least 1"
            )
