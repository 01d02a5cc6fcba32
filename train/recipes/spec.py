"""What a recipe is made of; what a paper fixes is stated in the recipe that uses it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_type_hints

from vlmill.models import VARIANTS
from vlmill.schemas.splits import split_name
from vlmill.train.recipes.variants import training_of

MOST_VISITS = 1000  # of a pair in an epoch
FEWEST_TOKENS = 3  # [CLS], a word, [SEP]


def _share(name: str, value: float) -> None:
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
                _share(f"masking.{name}", value)
        _share("masking.word_to_mask + word_to_random", self.word_to_mask + self.word_to_random)


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """What a stage's model is fed of a pair; the papers' numbers stand in ``feeding.py``."""

    # Text with regions, text with pixels, text alone, pictures alone, or text with pictures and the
    # boxes of their regions (VL-BERT end to end).
    kind: Literal["regions", "pixels", "text", "pictures", "picture-regions"] = "regions"
    max_tokens: int | None = None  # [CLS] and [SEP] counted; null: as many as the model takes
    max_regions: int = 100  # the first of a picture in ``region_order``
    # Whose boxes they are: ``--regions``, ``--annotated-regions``, or both, the annotated ones
    # behind the detected ones and first to stay (``max_regions``); ``joined-in-training`` has the
    # detected ones alone wherever it is measured, and for the whole picture's feature (RefCOCO+).
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
    flip: float = 0.0  # share of pictures that are mirrored; of regions, their boxes alone
    text_rows: int = 0  # texts without a picture that come with the pairs of a step (VL-BERT)
    text_row_tokens: int = 64  # their length in pieces, without [CLS] and [SEP]
    # Pixels: side, share of the area that a crop takes, RandAugment, jitter of colours, and the
    # side of the second picture, for the tokenizer of pictures (null: none).
    image_size: int = 224
    crop: tuple[float, float] = (0.5, 1.0)
    augment: bool = True
    jitter: float = 0.0
    token_size: int | None = None
    # Pictures with regions keep their shape: so many pixels, unless the other side passed the most.
    short_side: int = 600
    long_side: int = 1000

    @property
    def has_regions(self) -> bool:
        """Whether a picture comes with regions, from whichever table."""
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
    def reads_pictures(self) -> bool:
        """Whether the table of images is read."""
        return self.kind in ("pixels", "pictures", "picture-regions")

    def __post_init__(self) -> None:
        _share("feeding.flip", self.flip)
        _share("feeding.jitter", self.jitter)
        if self.boxes == "examples" and self.kind != "picture-regions":
            raise ValueError(
                f"feeding.kind={self.kind}, boxes=examples: boxes of examples have no stored "
                "features; set kind=picture-regions, or boxes=annotated"
            )
        sides = (("image_size", 1), ("short_side", 1), ("long_side", 1))
        for name, least in (("max_regions", 1), ("text_rows", 0), *sides):
            if getattr(self, name) < least:
                raise ValueError(f"feeding.{name}={getattr(self, name)}: want at least {least}")
        for name, least in (("max_tokens", FEWEST_TOKENS), ("max_elements", 4), ("token_size", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"feeding.{name}={value}: want at least {least}")
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
    text_mlm: float = 0.0  # the same on texts without a picture, a mean of its own
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
    warmup: float = 0.1  # share of the steps, without its fraction
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
            _share(f"optimizer.{name}", getattr(self, name))
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
    # should fit into memory beside the model (16,384 pictures of 100 float16 regions are 6.7 GB),
    # or is read picture by picture.
    window: int = 16_384
    # Larger data are cut into runs of so many pairs whose pictures lie side by side; a window is as
    # many runs from anywhere.
    block: int = 64
    # So many batches are formed at once, of pairs of like lengths, and shuffled. For VLMo on GPUs,
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
    # So many captions of a picture are drawn in the place of all (of each visit, with a weight).
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


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass over one kind of examples, with a fresh optimiser and schedule: what pretraining and
    fine-tuning say of it alike.
    """

    name: str
    optimizer: Optimizer
    batch_size: int  # pairs of one optimiser step
    # The parameters that are trained: their names hold one of these. All if empty.
    trained: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # the ``source`` values of its pairs; all if empty
    # Sources that are visited more or less often, or with fewer captions of a picture.
    mixture: tuple[MixedSource, ...] = ()
    # The splits that it trains on and validates on, whatever their case; pairs without a split
    # count as train. If empty: by the table of names (`vlmill.schemas.splits`).
    train_splits: tuple[str, ...] = ()
    validation_splits: tuple[str, ...] = ()
    # The share of its pairs that it visits, chosen by a hash of their ids: the same ones for every
    # seed, and a smaller share is a part of a larger one. ``max_pairs`` is the most of these.
    share: float = 1.0
    max_pairs: int | None = None
    steps: int | None = None  # its length; null: ``epochs`` says it
    epochs: float | None = None
    # An epoch's steps: as many as its pairs fill, the last one with the next epoch's (exact), those
    # that they fill alone (floor, the scripts of ViLBERT and InterBERT), or one more for the rest
    # (ceil, VL-BERT's). Pairs come in one endless list either way.
    epoch_steps: Literal["exact", "floor", "ceil"] = "exact"
    accumulation: int = 1  # parts that a step is computed in
    feeding: Feeding = Feeding()
    loading: Loading = Loading()

    def steps_of_epoch(self, pairs: int) -> float:
        """The steps of an epoch of so many pairs, one at least of any."""
        if self.epoch_steps == "floor":
            return max(pairs // self.batch_size, bool(pairs))
        if self.epoch_steps == "ceil":
            return -(-pairs // self.batch_size)
        return pairs / self.batch_size

    def length(self, pairs: int) -> int:
        """Its steps with so many pairs: ``steps``, or those of its epochs, one at least of any."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return math.ceil(self.epochs * self.steps_of_epoch(pairs))

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            raise ValueError(f"stage {self.name}: give steps or epochs")
        if (self.steps or 0) < 0 or (self.epochs or 0) < 0:
            raise ValueError(f"stage {self.name}: steps and epochs cannot be negative")
        for name in ("batch_size", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: want at least 1")
        _share("share", self.share)
        if self.share == 0 or (self.max_pairs is not None and self.max_pairs < 1):
            raise ValueError(f"share={self.share} max_pairs={self.max_pairs}: want more than 0")
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size={self.batch_size} is no multiple of accumulation={self.accumulation}"
            )
        if self.feeding.text_rows % self.accumulation:
            raise ValueError(
                f"feeding.text_rows={self.feeding.text_rows} is no multiple of accumulation="
                f"{self.accumulation}"
            )
        self._check_mixture()

    def _check_mixture(self) -> None:
        names = [mixed.source for mixed in self.mixture]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"mixture names {', '.join(sorted(twice))} twice; say it once")
        if self.sources and (other := [name for name in names if name not in self.sources]):
            raise ValueError(
                f"mixture names {', '.join(other)}, sources are {', '.join(self.sources)}; name "
                "what the stage reads"
            )
        if self.feeding.kind == "text" and any(m.captions_per_picture for m in self.mixture):
            raise ValueError("mixture: texts alone have no captions_per_picture; leave it out")


@dataclass(frozen=True, kw_only=True)
class Stage(Pass):
    """A stage of pretraining."""

    negative_share: float = 0.5  # pairs whose caption or picture is replaced
    negative_text_share: float = 0.5  # of those, the caption (ViLBERT, VL-BERT, InterBERT: all)
    hard_negative_share: float = 0.2  # of those, drawn from --negatives where the pair has some
    # Whether another caption of a pair's picture is a negative of it, in contrast and among the
    # hard negatives that are drawn by it (VLMo's code).
    same_picture_negatives: bool = False
    objectives: Objectives = Objectives()
    masking: Masking = Masking()

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("negative_share", self.negative_share)
        _share("negative_text_share", self.negative_text_share)
        _share("hard_negative_share", self.hard_negative_share)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What any run says, pretraining and fine-tuning alike. ``model``'s vocabulary and feature
    width give way to those of the data, its number of classes to a larger one.
    """

    command: ClassVar[str]  # of train-vl, that runs it

    name: str
    variant: str  # a name of `vlmill.models.MODELS`
    model: Any  # a configuration of its class
    stages: tuple[Pass, ...]
    about: str = ""  # what the run is and on what data, in a line
    needs: str = ""  # what has to be given for it beyond pairs and their pictures
    vocabulary_size: int = 30_522  # of the vocabulary that is trained where no --vocab is given
    # Starts new weights as if the regions' features had mean 0 and variance 1
    # (`ImageBert.standardise_regions`).
    standardise_features: bool = False
    seed: int = 0
    save_every: int = 1000  # steps between checkpoints; each stage ends with one
    keep_checkpoints: int = 2  # the last ones, and the best
    log_every: int = 10
    # Where its curves are shown; the log has all of them.
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    workers: int = 0  # processes that load batches; any number gives the same batches
    precision: Literal["no", "bf16", "fp16"] = "no"
    # Steps after which pairs of the validation splits are measured, 0: never; of a table without
    # such a split, some that are held out by a hash. The checkpoint that is best at these is the
    # run's.
    validate_every: int = 0
    validation_pairs: int = 1000  # the most that are measured
    # Validations in turn that may be no better than the best before them: then the run ends. 0: it
    # never ends early.
    patience: int = 0
    # Share of the pictures that may be undecodable: others take their pairs' places. More of them
    # end the run.
    max_bad: float = 0.01
    average: float = 0.0  # rate of a moving average of the weights, for evaluation; 0: none
    compile: bool = False  # torch.compile translates the step
    # Each layer is computed again in the backward pass instead of keeping what it needs.
    checkpoint_activations: bool = False
    # Weights, gradients and moments are divided among the processes (FSDP).
    shard: bool = False

    @property
    def samples_of_pair(self) -> int:
        """How many texts with a picture a pair, or an example, becomes in a step."""
        return 1

    @property
    def job(self) -> str:
        """What made a run's output, as its manifest says."""
        return f"train-vl {self.command}"

    @property
    def max_text_tokens(self) -> int:
        """Tokens that the model takes; a model of pictures alone takes no text, however short."""
        training = training_of(self.variant)
        if not training.reads_text:
            return FEWEST_TOKENS
        return int(training.body_of(self.model).max_text_tokens)

    def __post_init__(self) -> None:
        _share("average", self.average)
        _share("max_bad", self.max_bad)
        if self.validate_every < 0 or self.validation_pairs < 1:
            raise ValueError("want validate_every from 0 up and validation_pairs above 0")
        if not self.stages:
            raise ValueError(f"recipe {self.name} has no stage")
        self._check_splits()
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError(f"recipe {self.name}: two stages have the same name")
        for name in ("vocabulary_size", "save_every", "keep_checkpoints", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: want at least 1")
        if min(self.workers, self.seed, self.patience) < 0:
            raise ValueError("workers, seed and patience cannot be negative")
        if self.patience and not self.validate_every:
            raise ValueError(f"patience={self.patience}: validate_every=0 measures nothing; set it")

    def _check_splits(self) -> None:
        """No pair is both trained on and validated on, be it in another stage."""
        learnt = {split_name(name) for stage in self.stages for name in stage.train_splits}
        measured = {split_name(name) for stage in self.stages for name in stage.validation_splits}
        if both := sorted(learnt & measured):
            raise ValueError(
                f"train_splits and validation_splits both name {', '.join(both)}: a split is "
                "trained on or validated on; take it out of one of them"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe(RunSettings):
    """A pretraining run of a variant (`vlmill.models.VARIANTS`)."""

    command = "pretrain"

    stages: tuple[Stage, ...]
    # The file of the network whose tokens masked picture modelling guesses.
    picture_tokenizer: str | None = None

    @classmethod
    def field_types(cls, values: Mapping[Any, Any]) -> dict[str, Any]:
        """The types of the fields, given the others' values: the variant decides the model's."""
        hints = get_type_hints(cls)
        variant = values.get("variant")
        if variant not in VARIANTS:
            raise ValueError(f"variant: {variant!r} is none of {', '.join(VARIANTS)}")
        return hints | {"model": VARIANTS[variant].config}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_variant()
        self._check_classes()

    def _check_variant(self) -> None:
        """Every stage feeds and asks what the variant reads and has heads for."""
        training = training_of(self.variant)
        for number, stage in enumerate(self.stages):
            if training.kind and stage.feeding.kind != training.kind:
                raise ValueError(
                    f"stages.{number}.feeding.kind={stage.feeding.kind}: a {self.variant} reads "
                    f"{training.kind} alone; set it to {training.kind}"
                )
            for name, weight in vars(stage.objectives).items():
                if weight and training.objectives and name not in training.objectives:
                    known = ", ".join(training.objectives)
                    raise ValueError(
                        f"stages.{number}.objectives.{name}={weight:g}: a {self.variant} learns "
                        f"{known} alone; set it to 0"
                    )

    def _check_classes(self) -> None:
        """A head's classes have one number in all stages: with distributions 0 is background."""
        kinds = {s.feeding.region_targets: s.name for s in self.stages if s.feeding.reads_regions}
        if len(kinds) > 1:
            said = " and ".join(f"{kind} in stage {name}" for kind, name in sorted(kinds.items()))
            raise ValueError(
                f"feeding.region_targets is {said}: one head cannot number classes both with and "
                "without background; set the same in all stages"
            )
