"""Opens the inputs of a run: tables, a starting checkpoint and a vocabulary."""

from dataclasses import dataclass
from typing import Literal

from vlmill.models.registry import get_variant
from vlmill.runtime.console.command import print_status
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.joined_regions import ANNOTATED, JoinedRegions
from vlmill.runtime.readers.joining import Indexed
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint, require_detector
from vlmill.train.loading.features import are_ranked
from vlmill.train.loading.images.tokenizer import FIELD, ImageTokenizer, read_image_tokenizer
from vlmill.train.loading.store.pairs import (
    Examples,
    ImagesAlone,
    PairsSummary,
    PairTable,
    get_flag,
    summarise_pairs,
)
from vlmill.train.loading.store.prepare import RegionFacts, region_facts
from vlmill.train.loading.store.splits import SplitPlan, plan_splits
from vlmill.train.recipes import Recipe, RunSettings, require_sources

NO_REGIONS = RegionFacts(empty=frozenset(), num_classes=0, num_images=0)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Holds the tables and files of a run, as given on the command line.

    Without ``pairs``, which only runs on images alone can do without, the images are visited.
    Fine-tuning visits the ``examples`` of its task.
    """

    pairs: str | None = None
    examples: Examples | None = None
    regions: str | None = None
    annotated_regions: str | None = None
    images: str | None = None
    negatives: str | None = None
    neighbours: str | None = None
    missing: Literal["error", "skip"] = "skip"  # how pairs without their image are handled
    init: str | None = None
    vocab: str | None = None

    @property
    def visited(self) -> PairTable:
        """Returns the table whose rows are trained on."""
        if self.examples is not None:
            return self.examples
        if self.pairs is not None:
            return self.pairs
        assert self.images is not None  # `require_sources`
        return ImagesAlone(self.images)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Holds the inputs, opened and measured."""

    inputs: Inputs
    regions: RegionReader | None
    images: ImageReader | None
    facts: RegionFacts
    pairs: PairsSummary
    splits: SplitPlan
    init: LoadedCheckpoint | None
    picture_tokenizer: ImageTokenizer | None = None

    @property
    def reader(self) -> RegionReader:
        """Returns the regions of a run that reads them."""
        assert self.regions is not None
        return self.regions

    @property
    def joined_images(self) -> Indexed | None:
        """Returns the table that pairs are joined with; None for texts alone."""
        return self.images if self.regions is None else self.regions

    @property
    def annotated(self) -> RegionReader | None:
        """Returns the annotated regions that are added to detected ones, where both are read."""
        return self.regions.annotated if isinstance(self.regions, JoinedRegions) else None

    @property
    def other_tables(self) -> tuple[Indexed, ...]:
        """Returns the tables, other than the regions, that must contain a pair's image."""
        return tuple(table for table in (self.annotated, self.images) if table is not None)

    @property
    def fingerprint(self) -> str | None:
        """Returns the detector's fingerprint; None if unknown or without regions."""
        return None if self.regions is None else self.regions.detector_fingerprint


def open_sources(inputs: Inputs, recipe: Recipe) -> Sources:
    """Opens and measures the inputs. Raises InputError for inputs that do not fit together."""
    require_sources(recipe, pairs=inputs.pairs, regions=inputs.regions, images=inputs.images)
    for number, stage in enumerate(recipe.stages):
        if stage.feeding.boxes != "detected":
            raise InputError(
                f"stages.{number}.feeding.boxes={stage.feeding.boxes}: pretraining reads --regions "
                "alone; leave it at detected"
            )
    regions, images = open_images(inputs, recipe)
    facts = NO_REGIONS
    if regions is not None and inputs.regions is not None:
        facts = region_facts(inputs.regions)
        _check_classes(inputs.regions, regions, facts, recipe)
    init = load_checkpoint(inputs.init, "--init") if inputs.init else None
    if init is not None and inputs.vocab is not None and same_words(init, recipe):
        raise InputError(
            "--vocab and --init: the checkpoint has its own vocabulary; remove --vocab"
        )
    if regions is not None:
        has_seen_regions = init is not None and init.variant == recipe.variant
        check_detector(regions.detector_fingerprint, init if has_seen_regions else None)
    pairs = summarise_pairs(inputs.visited)
    return Sources(
        inputs=inputs,
        regions=regions,
        images=images,
        facts=facts,
        pairs=pairs,
        splits=plan_splits(recipe, pairs.splits, get_flag(inputs.visited)),
        init=init,
        picture_tokenizer=_open_tokenizer(recipe),
    )


def open_examples(inputs: Inputs, recipe: RunSettings, init: LoadedCheckpoint | None) -> Sources:
    """Opens and measures the inputs of fine-tuning, which starts from ``init``. Raises InputError
    for inputs that do not fit together.
    """
    for number, stage in enumerate(recipe.stages):
        feeding = stage.feeding
        needs = {
            "regions": feeding.reads_regions and feeding.boxes != "annotated",
            "annotated_regions": feeding.reads_regions and feeding.boxes != "detected",
            "images": feeding.reads_images,
        }
        for name, read in needs.items():
            if read and getattr(inputs, name) is None:
                raise InputError(
                    f"--{name.replace('_', '-')} is missing: {recipe.name} reads "
                    f"stages.{number}.feeding.kind={feeding.kind}"
                    + (f" with boxes={feeding.boxes}" if feeding.reads_regions else "")
                )
    regions, images = open_images(inputs, recipe)
    if init is not None and inputs.vocab is not None:
        raise InputError(
            "--vocab and --init: the checkpoint has its own vocabulary; remove --vocab"
        )
    facts = NO_REGIONS
    if regions is not None:
        first = inputs.annotated_regions if regions.flag == ANNOTATED else inputs.regions
        assert first is not None
        facts = region_facts(first)
        starts_anew = init is not None and init.variant in get_variant(recipe.variant).starts_from
        check_detector(regions.detector_fingerprint, None if starts_anew else init)
    pairs = summarise_pairs(inputs.visited)
    return Sources(
        inputs=inputs,
        regions=regions,
        images=images,
        facts=facts,
        pairs=pairs,
        splits=plan_splits(recipe, pairs.splits, "--examples"),
        init=init,
    )


def _open_tokenizer(recipe: Recipe) -> ImageTokenizer | None:
    if not any(stage.objectives.mim for stage in recipe.stages):
        return None
    if recipe.picture_tokenizer is None:
        raise InputError(
            f"{FIELD} is missing: {recipe.name} predicts tokens of images; add {FIELD}=FILE with "
            "the weights of DALL-E's encoder or of BEiT's tokenizer"
        )
    return read_image_tokenizer(recipe.picture_tokenizer)


def same_words(init: LoadedCheckpoint, recipe: RunSettings) -> bool:
    """Returns whether the run reads text by the checkpoint's vocabulary; BEiT has read none."""
    return get_variant(init.variant).reads_text or init.variant == recipe.variant


def open_images(
    inputs: Inputs, recipe: RunSettings
) -> tuple[RegionReader | None, ImageReader | None]:
    """Opens the tables that the stages read, of the given ones."""
    feeds = [stage.feeding for stage in recipe.stages]
    regions = images = None
    region_feeds = [feeding for feeding in feeds if feeding.reads_regions]
    if region_feeds:
        regions = open_regions(inputs, region_feeds[0].boxes)
    if inputs.images is not None and any(feeding.reads_images for feeding in feeds):
        images = ImageReader(inputs.images)
    return regions, images


def open_regions(inputs: Inputs, boxes: str) -> RegionReader | None:
    """Opens the table or tables of regions that ``Feeding.boxes`` names; None if not given."""
    detected, annotated = inputs.regions, inputs.annotated_regions
    if boxes == "annotated":
        return None if annotated is None else RegionReader(annotated, flag=ANNOTATED)
    if detected is None:
        return None
    if boxes == "detected" or annotated is None:
        return RegionReader(detected)
    return JoinedRegions(detected, annotated)


def _check_classes(where: str, regions: RegionReader, facts: RegionFacts, recipe: Recipe) -> None:
    if not facts.num_classes and any(stage.objectives.moc for stage in recipe.stages):
        raise InputError(
            f"--regions {where} has no class ids, which objectives.moc needs; "
            "extract them with classes, or add objectives.moc=0"
        )
    by_distribution = [
        i for i, s in enumerate(recipe.stages) if s.feeding.region_targets == "distribution"
    ]
    if by_distribution and regions.arrays.get("class_probs", {}).get("background") == "none":
        changes = " ".join(f"stages.{i}.feeding.region_targets=class" for i in by_distribution)
        raise InputError(
            f"--regions {where}: the class distributions have no background, which "
            f"{recipe.name} counts as a class; add {changes}"
        )
    if by_distribution and "class_probs" not in regions.arrays:
        print_status(
            f"warning: --regions {where} has no distribution over classes; the class id "
            "is used as the target (extract with --class-probs full or topk:K for the distribution)"
        )
    ranked = any(stage.feeding.region_order == "confidence" for stage in recipe.stages)
    if ranked and not are_ranked(regions):
        print_status(
            f"warning: --regions {where} has no class scores; regions are used in the "
            "table's order (extract with --class-probs, or feeding.region_order=table)"
        )


def check_detector(fingerprint: str | None, init: LoadedCheckpoint | None) -> None:
    """Raises InputError for regions of another detector than ``init``'s; warns of unknown ones."""
    if init is not None:
        require_detector(fingerprint, init, "--init")
    if fingerprint is None or (init is not None and init.detector_fingerprint is None):
        who = "--regions" if fingerprint is None else "--init"
        print_status(f"warning: {who} has no detector fingerprint; the detector counts as unknown")


def say_what_is_missing(recipe: Recipe, inputs: Inputs) -> None:
    """Warns of inputs that a recipe lacks but can do without, and of inputs that it does not
    read.
    """
    feeds = [stage.feeding for stage in recipe.stages]
    for flag, argument in (("--init", inputs.init), ("--negatives", inputs.negatives)):
        if argument is None and flag in recipe.needs:
            instead = (
                "weights are random" if flag == "--init" else "negatives are sampled at random"
            )
            print_status(
                f"warning: {recipe.name} needs {flag} (see `train-vl recipes`); without "
                f"it, {instead}"
            )
    read = {
        "--regions": (inputs.regions, any(feed.reads_regions for feed in feeds)),
        "--images": (inputs.images, any(feed.reads_images for feed in feeds)),
        "--negatives": (inputs.negatives, _draws_hard_negatives(recipe)),
    }
    for flag, (argument, used) in read.items():
        if argument is not None and not used:
            print_status(f"note: {flag} is not read; {recipe.name} does not use it")


def _draws_hard_negatives(recipe: Recipe) -> bool:
    return any(stage.negative_share and stage.hard_negative_share for stage in recipe.stages)
