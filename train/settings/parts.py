"""What a pass over examples is made of; the numbers of papers stand in the recipes."""

from dataclasses import dataclass
from typing import Literal

MOST_VISITS = 1000  # of a pair in an epoch
FEWEST_TOKENS = 3  # [CLS], a word, [SEP]


def require_share(name: str, value: float) -> None:
    """Raises ValueError for a share that is none."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value}: want a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Shares of sub-words and regions that are masked, and what becomes of those.

    BERT's for words (Devlin et al. 2018, sec. 3.1); ImageBERT's for regions (arXiv:2001.07966, sec.
    3.3).
    """

    words: float = 0.15  # share of the words, or of the anchors of segments
    word_to_mask: float = 0.8  # of these, the share that becomes [MASK]
    word_to_random: float = 0.1  # and any word of the vocabulary; the rest stays as it is
    regions: float = 0.15  # share of the regions, or of the anchors of groups
    region_to_zero: float = 0.9  # of these, the share whose feature is zeroed; the rest stays
    # ``tokens`` each for itself, ``words`` whole (VL-BERT), ``budget`` whole words up to ``words``
    # of the longest text's length (VLMo's code), ``segments`` of anchors (InterBERT's paper),
    # ``span`` one of any length (InterBERT's code).
    word_rule: Literal["tokens", "words", "budget", "segments", "span"] = "tokens"
    # ``regions`` each for itself, or ``groups`` of an anchor and what overlaps with it (InterBERT).
    region_rule: Literal["regions", "groups"] = "regions"
    group_overlap: float = 0.4  # what overlaps by more belongs to the group
    # As InterBERT's code counts: boxes hold their last pixel, and overlap by at least that much.
    group_pixels: bool = False
    # Whether words and regions are guessed in pairs that do not belong together, too (ViLBERT,
    # VL-BERT: both; InterBERT: words; ImageBERT: neither). Both are masked in any case: whether a
    # pair matches must not show by its masks.
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
    """What a stage's model is fed of a pair; the papers' numbers are in `vlmill.train.recipes`."""

    # Text with regions, text with pixels, text alone, images alone, or text with images and the
    # boxes of their regions (VL-BERT end to end).
    kind: Literal["regions", "pixels", "text", "pictures", "picture-regions"] = "regions"
    max_tokens: int | None = None  # [CLS] and [SEP] counted; null: as many as the model takes
    max_regions: int = 100  # the first of an image in ``region_order``
    # Whose boxes they are: ``--regions``, ``--annotated-regions``, or both, the annotated ones
    # behind the detected ones and first to stay (``max_regions``); ``joined-in-training`` has the
    # detected ones alone wherever it is measured, and for the full image's feature (RefCOCO+),
    # and these are the first to stay.
    # ``examples``: those of the objects that the examples themselves name (VCR), of which only
    # pixels tell more: no table of regions is read.
    boxes: Literal["detected", "annotated", "joined", "joined-in-training", "examples"] = "detected"
    # That of the table, or by falling confidence: the highest probability of any class, background
    # included (VL-BERT), or where only the class's own score is stored, that; else the table's.
    region_order: Literal["table", "confidence"] = "table"
    # A further region in row 0: the mean of the masked features (ViLBERT, InterBERT), or of the
    # rest that is not masked (VL-BERT).
    whole_image: Literal["none", "mean", "rest"] = "none"
    max_elements: int | None = None  # the most tokens and regions together (VL-BERT)
    # The detector's class, or its distribution over classes where the regions have it.
    region_targets: Literal["class", "distribution"] = "class"
    flip: float = 0.0  # share of images that are mirrored; of regions, their boxes alone
    text_rows: int = 0  # texts without an image that come with the pairs of a step (VL-BERT)
    text_row_tokens: int = 64  # their length in pieces, without [CLS] and [SEP]
    # Pixels: side, share of the area that a crop takes, RandAugment, jitter of colours, and the
    # side of the second image, for the tokenizer of images (null: none).
    image_size: int = 224
    crop: tuple[float, float] = (0.5, 1.0)
    augment: bool = True
    jitter: float = 0.0
    token_size: int | None = None
    # Images with regions keep their shape: so many pixels, unless the other side passed the most.
    short_side: int = 600
    long_side: int = 1000

    @property
    def has_regions(self) -> bool:
        """Whether an image comes with regions, from whichever table."""
        return self.kind in ("regions", "picture-regions")

    @property
    def reads_regions(self) -> bool:
        """Whether the table of regions is read."""
        return self.has_regions and self.boxes != "examples"

    @property
    def reads_features(self) -> bool:
        """Whether stored features are read; from pixels the model makes its own."""
        return self.kind == "regions"

    @property
    def reads_images(self) -> bool:
        """Whether the table of images is read."""
        return self.kind in ("pixels", "pictures", "picture-regions")

    def __post_init__(self) -> None:
        require_share("feeding.flip", self.flip)
        require_share("feeding.jitter", self.jitter)
        if self.boxes == "examples" and self.kind != "picture-regions":
            raise ValueError(
                f"feeding.kind={self.kind}, boxes=examples: boxes of examples have no stored "
                "features; set kind=picture-regions, or boxes=annotated"
            )
        sides = (("image_size", 1), ("short_side", 1), ("long_side", 1))
        for name, minimum in (("max_regions", 1), ("text_rows", 0), *sides):
            if getattr(self, name) < minimum:
                raise ValueError(f"feeding.{name}={getattr(self, name)}: want at least {minimum}")
        for name, minimum in (
            ("max_tokens", FEWEST_TOKENS),
            ("max_elements", 4),
            ("token_size", 1),
        ):
            if (value := getattr(self, name)) is not None and value < minimum:
                raise ValueError(f"feeding.{name}={value}: want at least {minimum}")
        low, high = self.crop
        if not 0 < low <= high <= 1:
            raise ValueError(f"feeding.crop={self.crop}: want two shares, the lower first")


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """Weights in the sum of losses; an objective of weight 0 is not computed.

    Each loss is a mean over the whole step's labels, whatever the number of processes and of parts
    that the step is computed in.
    """

    mlm: float = 1.0  # masked language modelling
    text_mlm: float = 0.0  # the same on texts without an image, a mean of its own
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
            raise ValueError(f"objectives {weights}: want weights from 0 up, not all 0")


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How weights are moved; defaults are BERT's but for ``lr``."""

    lr: float  # the peak of the learning rate
    # PyTorch's AdamW, that of ViLBERT and InterBERT (no bias correction, each gradient clipped for
    # itself), that of VL-BERT and VLMo, or gradient descent whose decay is a part of the gradient
    # (VL-BERT for VCR).
    kind: Literal["adamw", "bert-adam", "transformers-adamw", "sgd"] = "adamw"
    momentum: float = 0.9  # of sgd
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    # On matrices alone, on everything (VL-BERT), inverted: on biases and layer norms alone, but not
    # on the weights of co-attention's norms (mistakes of the scripts of ViLBERT and InterBERT, with
    # --init only, as there), or as the codes
    # of VLMo (experts' norms and scales too, relative positions not) and BEiT (matrices, but
    # neither positions nor the class token).
    decay: Literal["matrices", "everything", "inverted", "vlmo", "beit"] = "matrices"
    # Largest norm of the gradient, for bert-adam of each tensor's of the published codes, in which
    # query, key and value are three; 0: no limit.
    clip: float = 1.0
    # Share of the rate for BERT's embeddings and layers, with --init (ViLBERT: 0.1).
    bert_rate: float = 1.0
    # What a task's new heads are trained at: times the rate, of parameters whose names hold one of
    # ``heads`` (ViLBERT's VQA 1e-4 of 4e-5, VLMo's 20 times).
    head_rate: float = 1.0
    heads: tuple[str, ...] = ()
    # Up in a line over the warm-up, then down in a line, by a cosine, not at all, or times
    # ``drop_factor`` from each epoch of ``drops`` on, counted from 0.
    schedule: Literal["linear", "cosine", "constant", "milestones"] = "linear"
    drops: tuple[float, ...] = ()
    drop_factor: float = 0.1
    warmup: float = 0.1  # share of the steps; rounded down to whole steps, but not for bert-adam
    warmup_steps: int | None = None  # in place of the share
    end: float = 0.0  # share of the peak that the schedule goes down to
    # The first step's number: 0, so that its rate under warm-up is 0 (the codes of BERT, ViLBERT,
    # InterBERT, VLMo and BEiT), or 1 (VL-BERT's).
    first_step: Literal[0, 1] = 0

    def __post_init__(self) -> None:
        if min(self.lr, self.eps) <= 0 or min(self.weight_decay, self.clip) < 0:
            raise ValueError("optimizer: want lr, eps above 0 and weight_decay, clip from 0 up")
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"optimizer.lr={self.lr:g} times weight_decay={self.weight_decay:g}: want less "
                "than 1, or a step's decay takes all of a weight"
            )
        shares = ("momentum", "beta1", "beta2", "warmup", "bert_rate", "end", "drop_factor")
        for name in shares:
            require_share(f"optimizer.{name}", getattr(self, name))
        if self.head_rate <= 0:
            raise ValueError(f"optimizer.head_rate={self.head_rate}: want a factor above 0")
        if self.head_rate != 1 and not self.heads:
            raise ValueError(
                f"optimizer.head_rate={self.head_rate}: optimizer.heads names no parameter; name "
                "parts of the heads' names"
            )
        if bool(self.drops) != (self.schedule == "milestones") or min(self.drops, default=1) <= 0:
            raise ValueError(
                f"optimizer.schedule={self.schedule}, drops={list(self.drops)}: want drops, epochs "
                "above 0, with schedule=milestones and no others"
            )
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise ValueError(f"optimizer.warmup_steps={self.warmup_steps}: want at least 0")


@dataclass(frozen=True, kw_only=True)
class Loading:
    """In which order pairs come, as far as speed decides it."""

    # Pairs among which an epoch's order is random at once. What a window reads lies together, and
    # should fit into memory beside the model (16,384 images of 100 float16 regions are 6.7 GB),
    # or is read image by image.
    window: int = 16_384
    # Larger data are cut into runs of so many pairs whose images lie side by side; a window is as
    # many runs from anywhere.
    block: int = 64
    # So many steps are formed at once, of pairs of like lengths, and shuffled. For VLMo on GPUs,
    # which computes its padding there: other models pack rows, and buckets bring nothing.
    bucket: int = 1
    pad_to: int = 1  # with buckets: lengths are padded to a multiple

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"loading.{name}={getattr(self, name)}: want at least 1")


@dataclass(frozen=True, kw_only=True)
class MixedSource:
    """How often an epoch visits the pairs of one source.

    Without such a rule it visits each once. Which pairs an epoch repeats or leaves out is drawn
    anew in every epoch; it visits as many as any other.
    """

    source: str  # of the column ``source``
    # Visits of a pair: 2 visits each twice, 0.25 a quarter of them, 2.5 each twice and half of them
    # once more.
    weight: float = 1.0
    # So many captions of an image are drawn in the place of all (of each visit, with a weight).
    captions_per_picture: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight <= MOST_VISITS:
            raise ValueError(
                f"weight={self.weight} of source {self.source}: want more than 0 and at most "
                f"{MOST_VISITS}; `sources` leaves a source out"
            )
        if self.captions_per_picture is not None and self.captions_per_picture < 1:
            raise ValueError(
                f"captions_per_picture={self.captions_per_picture} of source {self.source}: want "
                "at least 1"
            )
