"""Defines the fields of a recipe; values that a paper fixes are in the recipe that uses them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_type_hints

from vlmill.models import VARIANTS
from vlmill.models.registry import get_variant
from vlmill.schemas.errors import with_article
from vlmill.schemas.splits import split_name
from vlmill.train.settings.parts import (
    FEWEST_TOKENS,
    Feeding,
    Loading,
    Masking,
    MixedSource,
    Objectives,
    Optimizer,
    require_share,
)

LEAST_DECAY = 0.5  # of an average of weights
MAX_STEPS = 10**12  # a thousand years of a thousand steps a minute
MAX_BATCH = 1 << 24


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """Sets a stage on one type of examples, with a new optimiser and schedule: the settings that
    pretraining and fine-tuning share.
    """

    name: str
    optimizer: Optimizer
    batch_size: int  # pairs of one optimiser step
    # The parameters that are trained: their names contain one of these. All if empty.
    trained: tuple[str, ...] = ()
    # The parts of the model that are not trained: names of modules, with layers by their numbers,
    # as in freeze=[text_embedding,layers.0-5].
    freeze: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # the ``source`` values of its pairs; all if empty
    # Sources that are visited more or less often, or with fewer captions per image.
    mixture: tuple[MixedSource, ...] = ()
    # The splits that it trains on and validates on, regardless of case; pairs without a split count
    # as train. If empty: by the table of names (`vlmill.schemas.splits`).
    train_splits: tuple[str, ...] = ()
    validation_splits: tuple[str, ...] = ()
    # The share of its pairs that it visits, chosen by a hash of their ids: the same ones for every
    # seed, and a smaller share is a part of a larger one. ``max_pairs`` is the maximum of these.
    share: float = 1.0
    max_pairs: int | None = None
    # Its length: one of the two; 0 writes the untrained checkpoint.
    steps: int | None = None
    epochs: float | None = None
    # The number of steps in an epoch: as many as its pairs fill, the last one with pairs of the
    # next epoch (exact), the steps that its pairs fill completely (floor, the scripts of ViLBERT
    # and InterBERT), or one more for the remaining pairs (ceil, VL-BERT's). Pairs come from one
    # endless list in each case.
    epoch_steps: Literal["exact", "floor", "ceil"] = "exact"
    accumulation: int = 1  # parts that a step is computed in
    feeding: Feeding = Feeding()
    loading: Loading = Loading()

    def as_measured(self) -> Self:
        """Returns the stage as validation reads it: all of its pairs, each once, and nothing
        mirrored, coloured or cropped at random.
        """
        feeding = replace(self.feeding, flip=0.0, jitter=0.0, augment=False, crop=(1.0, 1.0))
        return replace(self, feeding=feeding, share=1.0, max_pairs=None, mixture=())

    def steps_of_epoch(self, pairs: int) -> float:
        """Returns the steps of an epoch of ``pairs`` pairs, at least one if there are any."""
        if self.epoch_steps == "floor":
            return max(pairs // self.batch_size, bool(pairs))
        if self.epoch_steps == "ceil":
            return -(-pairs // self.batch_size)
        return pairs / self.batch_size

    def length(self, pairs: int) -> int:
        """Returns the stage's length in steps; given as epochs, at least one if it has pairs."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return math.ceil(self.epochs * self.steps_of_epoch(pairs))

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            raise ValueError(f"stage {self.name}: give steps or epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"stage {self.name} has steps={self.steps} and epochs={self.epochs:g}; give one of "
                "them"
            )
        if not 0 <= (self.steps or 0) <= MAX_STEPS or not 0 <= (self.epochs or 0) <= MAX_STEPS:
            given = f"steps={self.steps}" if self.epochs is None else f"epochs={self.epochs:g}"
            raise ValueError(f"stage {self.name}: {given}: expected a number from 0 to {MAX_STEPS}")
        for name in ("batch_size", "accumulation"):
            if not 1 <= getattr(self, name) <= MAX_BATCH:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 to {MAX_BATCH}")
        require_share("share", self.share)
        if self.share == 0 or (self.max_pairs is not None and self.max_pairs < 1):
            raise ValueError(f"share={self.share} max_pairs={self.max_pairs}: expected more than 0")
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of "
                f"accumulation={self.accumulation}"
            )
        if self.feeding.text_rows % self.accumulation:
            raise ValueError(
                f"feeding.text_rows={self.feeding.text_rows} is not a multiple of accumulation="
                f"{self.accumulation}"
            )
        self._check_mixture()

    def _check_mixture(self) -> None:
        names = [mixed.source for mixed in self.mixture]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"mixture names {', '.join(sorted(twice))} twice; name each source once"
            )
        if self.sources and (other := [name for name in names if name not in self.sources]):
            raise ValueError(
                f"mixture names {', '.join(other)}, sources are "
                f"{', '.join(self.sources)}; name sources of the stage"
            )
        if self.feeding.kind == "text" and any(m.captions_per_picture for m in self.mixture):
            raise ValueError(
                "mixture: texts without images have no captions_per_picture; remove it"
            )


@dataclass(frozen=True, kw_only=True)
class Stage(TrainingStage):
    """Sets a stage of pretraining."""

    negative_share: float = 0.5  # pairs whose caption or image is replaced
    negative_text_share: float = 0.5  # of these, the caption (ViLBERT, VL-BERT, InterBERT: all)
    hard_negative_share: float = 0.2  # of these, the share from --negatives, if the pair has some
    # Whether another caption of a pair's image is a negative of it, in contrast and among the hard
    # negatives that are sampled by the contrast (VLMo's code).
    same_picture_negatives: bool = False
    objectives: Objectives = Objectives()
    masking: Masking = Masking()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("negative_share", self.negative_share)
        require_share("negative_text_share", self.negative_text_share)
        require_share("hard_negative_share", self.hard_negative_share)
        if self.objectives.itc and self.batch_size < 2:
            raise ValueError(
                f"batch_size={self.batch_size}: objectives.itc compares a pair with the "
                "other pairs of its step; set batch_size to at least 2"
            )


def contrasts(model: Any, stage: TrainingStage) -> bool:
    """Returns whether a stage contrasts the pairs of a step (VLMo: pretraining and retrieval)."""
    if not getattr(model, "contrast", False):
        return False
    return not isinstance(stage, Stage) or bool(stage.objectives.itc or stage.objectives.itm)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Sets the options of every run, of pretraining and of fine-tuning.

    The data override ``model``'s vocabulary and feature width, and its number of classes if theirs
    is larger.
    """

    command: ClassVar[str]  # the train-vl command that runs it

    name: str
    variant: str  # a name of `vlmill.models.MODELS`
    model: Any  # the variant's configuration
    stages: tuple[TrainingStage, ...]
    about: str = ""  # describes the run and its data, in a line
    needs: str = ""  # the inputs that it needs in addition to pairs and their images
    vocabulary_size: int = 30_522  # of the vocabulary that is trained if --vocab is not given
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
    # Number of steps between validations, 0: never. Pairs of the validation splits are measured; if
    # the table has no such split, pairs that are held out by a hash. The checkpoint with the best
    # result is the run's.
    validate_every: int = 0
    validation_pairs: int = 1000  # the maximum of pairs that are measured
    # The run ends after this number of successive validations without an improvement. 0: it never
    # ends early.
    patience: int = 0
    # Share of the images that may be undecodable: others replace their pairs. More of them end the
    # run.
    max_bad: float = 0.01
    # Decay of a moving average of the weights, for evaluation: the share of its value that it keeps
    # in a step. 0: no average.
    average: float = 0.0
    # torch.compile translates the step: whole (true), or each block separately (blocks).
    compile: Literal[False, True, "blocks"] = False
    # Steps are replayed as CUDA graphs, for batches that are padded to a few shapes: one process
    # with one GPU, regions, no accumulation.
    cuda_graph: bool = False
    # On a GPU: the update and the copies of the next batch are queued before the host reads the
    # losses of a step. It changes no number.
    run_ahead: bool = False
    # On a GPU with Triton: attention with relative positions (VLMo, BEiT) reads their bias once for
    # all pairs.
    attention_kernel: bool = False
    # On a GPU with Triton, where blocks are not compiled: gradients of residual sums with layer
    # scale (VLMo, BEiT) in one pass.
    residual_kernel: bool = False
    # Layer norms return half precision (with precision=bf16 or fp16), and so does the residual
    # stream of BERT's layers: a quarter less element-wise work, and numbers that are rounded once
    # more.
    half_norms: bool = False
    # The rows that a device computes together, at most: steps are divided into as many parts. auto:
    # as many as its memory holds. 0: by the stages' accumulation.
    device_batch: int | Literal["auto"] = 0
    # Each layer is computed again in the backward pass instead of keeping its activations.
    checkpoint_activations: bool = False
    # Weights, gradients and moments are sharded among the processes (FSDP).
    shard: bool = False

    @property
    def samples_of_pair(self) -> int:
        """Returns the number of texts with an image that a pair or example becomes in a step."""
        return 1

    @property
    def job(self) -> str:
        """Returns the job that the manifest of a run's output records."""
        return f"train-vl {self.command}"

    @property
    def max_text_tokens(self) -> int:
        """Returns the model's maximum number of tokens; a model of images takes no text."""
        variant = get_variant(self.variant)
        if not variant.reads_text:
            return FEWEST_TOKENS
        return int(variant.get_body(self.model).max_text_tokens)

    def __post_init__(self) -> None:
        self._check_average()
        require_share("max_bad", self.max_bad)
        if self.validate_every < 0 or self.validation_pairs < 1:
            raise ValueError("expected validate_every of at least 0 and validation_pairs above 0")
        if not self.stages:
            raise ValueError(f"recipe {self.name} has no stage")
        self._check_splits()
        self._check_compiled()
        self._check_graph()
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError(f"recipe {self.name}: two stages have the same name")
        for name in ("vocabulary_size", "save_every", "keep_checkpoints", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        if min(self.workers, self.seed, self.patience) < 0:
            raise ValueError("workers, seed and patience cannot be negative")
        if self.device_batch != "auto" and self.device_batch < 0:
            raise ValueError(f"device_batch={self.device_batch}: expected 1 or more, auto, or 0")
        if self.device_batch != 0 and self.cuda_graph:
            raise ValueError("cuda_graph=true computes each step in one part; set device_batch=0")
        if self.patience and not self.validate_every:
            raise ValueError(
                f"patience={self.patience}: validate_every=0 measures nothing; set validate_every"
            )

    def _check_average(self) -> None:
        """Checks the decay: an average that keeps little of its value per step equals the weights,
        and one that keeps everything never changes.
        """
        if self.average != 0 and not LEAST_DECAY <= self.average < 1:
            raise ValueError(
                f"average={self.average:g}: expected the decay of the moving average, from "
                f"{LEAST_DECAY} to below 1 (InterBERT: 0.9999), or 0 for none"
            )

    def _check_compiled(self) -> None:
        """Checks dropout: a contrast in parts has to repeat it, which compiled steps cannot."""
        for number, stage in enumerate(self.stages):
            in_parts = stage.accumulation > 1 and contrasts(self.model, stage)
            if self.compile and in_parts and self.model.drop_path:
                raise ValueError(
                    f"compile={str(self.compile).lower()}: "
                    f"stages.{number}.accumulation={stage.accumulation} computes the "
                    f"contrast twice with the same model.drop_path={self.model.drop_path:g}, which "
                    "a compiled step does not repeat; set one of compile=false, accumulation=1, "
                    "model.drop_path=0"
                )

    def _check_graph(self) -> None:
        """Checks that nothing changes shapes between steps: a CUDA graph has fixed shapes."""
        if not self.cuda_graph:
            return
        if self.command != "pretrain" or self.compile is True or self.precision == "fp16":
            raise ValueError(
                "cuda_graph=true is for pretraining with compile=false or compile=blocks, and "
                "precision=no or bf16; change these, or set cuda_graph=false"
            )
        for number, stage in enumerate(self.stages):
            if stage.accumulation > 1 or stage.feeding.kind != "regions":
                raise ValueError(
                    f"cuda_graph=true: stages.{number} has accumulation={stage.accumulation} and "
                    f"feeding.kind={stage.feeding.kind}; it needs accumulation=1 and regions"
                )

    def _check_splits(self) -> None:
        """Checks that no pair is both trained on and validated on, in any two stages."""
        learnt = {split_name(name) for stage in self.stages for name in stage.train_splits}
        measured = {split_name(name) for stage in self.stages for name in stage.validation_splits}
        if both := sorted(learnt & measured):
            raise ValueError(
                f"train_splits and validation_splits both name {', '.join(both)}: a "
                "split is either trained on or validated on; remove it from one of them"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe(RunSettings):
    """Sets a pretraining run of a variant (`vlmill.models.VARIANTS`)."""

    command = "pretrain"

    stages: tuple[Stage, ...]
    # The file of the network whose tokens masked image modelling predicts.
    picture_tokenizer: str | None = None

    @classmethod
    def field_types(cls, values: Mapping[Any, Any]) -> dict[str, Any]:
        """Returns the fields' types, given the others' values: the variant decides the model's."""
        hints = get_type_hints(cls)
        variant = values.get("variant")
        if variant not in VARIANTS:
            raise ValueError(f"variant: {variant!r} is not one of {', '.join(VARIANTS)}")
        return hints | {"model": VARIANTS[variant].config}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_variant()
        self._check_classes()

    def _check_variant(self) -> None:
        """Checks that every stage has inputs that the variant reads and objectives of its heads."""
        variant = get_variant(self.variant)
        for number, stage in enumerate(self.stages):
            if variant.kind and stage.feeding.kind != variant.kind:
                raise ValueError(
                    f"stages.{number}.feeding.kind={stage.feeding.kind}: "
                    f"{with_article(self.variant)} reads only {variant.kind}; set it to "
                    f"{variant.kind}"
                )
            for name, weight in vars(stage.objectives).items():
                if weight and variant.objectives and name not in variant.objectives:
                    known = ", ".join(variant.objectives)
                    raise ValueError(
                        f"stages.{number}.objectives.{name}={weight:g}: "
                        f"{with_article(self.variant)} learns only {known}; set it to 0"
                    )

    def _check_classes(self) -> None:
        """Checks that a head's classes have one numbering: with distributions 0 is background."""
        kinds = {s.feeding.region_targets: s.name for s in self.stages if s.feeding.reads_regions}
        if len(kinds) > 1:
            kinds_text = " and ".join(
                f"{kind} in stage {name}" for kind, name in sorted(kinds.items())
            )
            raise ValueError(
                f"feeding.region_targets is {kinds_text}: one head cannot number classes both "
                "with and "
                "without background; set the same value in all stages"
            )
