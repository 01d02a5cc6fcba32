"""Opens the inputs of a retrieval evaluation, checks that they fit together, and scores them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, REGIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.vocabulary import Texts, encode_texts
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.candidates import (
    Candidates,
    LoadedPairs,
    Rejects,
    check_candidates,
    read_pairs,
    select_candidates,
)
from vlmill.train.tasks.retrieval.checks import (
    Ranking,
    find_feeding,
    longest_text,
    notes_on_many,
    notes_on_regions,
    select_ranking,
)
from vlmill.train.tasks.retrieval.first_stage import (
    FirstStage,
    first_stage_settings,
    open_first_stage,
)
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores
from vlmill.train.tasks.retrieval.score_store import open_score_cache
from vlmill.train.tasks.retrieval.vectors import (
    ImageVectors,
    RankScores,
    Shortlists,
    image_vectors,
    rerank_scores,
    text_vectors,
)

# The fields of a feeding that have an effect without training.
FED = {
    "regions": ("max_tokens", "max_regions", "region_order", "whole_image", "max_elements"),
    "pixels": ("max_tokens", "image_size"),
    "text": ("max_tokens",),
}


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Holds the options of ``train-vl evaluate retrieval``; tables are folders, files or globs."""

    checkpoint: Path
    pairs: str
    output: Path
    regions: str | None = None
    images: str | None = None
    split: str | None = None
    device: str = "cpu"
    batch_size: int = 64
    max_regions: int | None = None
    rerank: int | None = None
    first_stage: str | None = None
    class_names: str | None = None
    fold_images: int | None = None
    fresh: bool = False


@dataclass(kw_only=True)
class RetrievalSetup:
    """Holds the inputs of an evaluation, opened and checked to fit together."""

    options: RetrievalOptions
    device: torch.device
    loaded: LoadedCheckpoint
    ranking: Ranking
    feeding: Feeding
    regions: RegionReader | None
    images: ImageReader | None
    loaded_pairs: LoadedPairs
    texts: Texts
    first: FirstStage | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def image_inputs(self) -> RegionImages | PixelImages:
        """Returns the model's inputs for images."""
        if self.regions is not None:
            return RegionImages(
                self.regions, self.feeding, global_features=self.loaded.takes_global_features
            )
        assert self.images is not None
        return PixelImages(self.images, self.feeding)


def open_inputs(options: RetrievalOptions) -> RetrievalSetup:
    """Opens all inputs of a ranking. Raises InputError for inputs that do not fit together."""
    device = device_named(options.device)
    if options.batch_size < 1:
        raise InputError(f"--batch-size {options.batch_size}: expected at least 1")
    if options.rerank is not None and options.fold_images is not None:
        raise InputError(
            "--rerank and --fold-images: shortlists cover all images; remove one of the two"
        )
    loaded = load_checkpoint(options.checkpoint)
    ranking = select_ranking(loaded, options.rerank, options.first_stage)
    feeding = find_feeding(loaded, options.max_regions)
    regions, images, notes = _open_images(options, loaded, feeding)
    loaded_pairs = read_pairs(options.pairs, options.split)
    first = open_first_stage(
        options.first_stage,
        class_names=options.class_names,
        images=options.images,
        regions=regions,
        device=device,
        batch_size=options.batch_size,
    )
    longest = longest_text(loaded, feeding)
    texts = encode_texts(loaded.tokenizer, [pair.text for pair in loaded_pairs.pairs], longest)
    return RetrievalSetup(
        options=options,
        device=device,
        loaded=loaded,
        ranking=ranking,
        feeding=feeding,
        regions=regions,
        images=images,
        loaded_pairs=loaded_pairs,
        texts=texts,
        first=first,
        notes=notes,
    )


def _open_images(
    options: RetrievalOptions, loaded: LoadedCheckpoint, feeding: Feeding
) -> tuple[RegionReader | None, ImageReader | None, list[str]]:
    """Opens the table that the model reads, and returns it with the notes on it."""
    if feeding.kind == "pixels":
        if options.images is None:
            raise InputError(f"--images is missing: {with_article(loaded.variant)} reads images")
        return None, ImageReader(options.images), []
    if options.regions is None:
        raise InputError(f"--regions is missing: {with_article(loaded.variant)} reads regions")
    if options.images is not None:
        ImageReader(options.images)  # the report's table: errors in it show before the work
    regions = RegionReader(options.regions)
    return regions, None, notes_on_regions(loaded, regions, feeding)


def select(setup: RetrievalSetup, faults: Mapping[str, Reason]) -> tuple[Candidates, Rejects]:
    """Selects the ranked candidates, and the excluded pairs; ``faults`` are the images' reasons."""
    candidates, rejects = select_candidates(setup.loaded_pairs.pairs, setup.texts.tokens, faults)
    ids = [pair.image_id for pair in setup.loaded_pairs.pairs if pair.image_id is not None]
    samples = setup.image_inputs.join.samples(ids)
    check_candidates(candidates, rejects, setup.options.fold_images, samples)
    return candidates, rejects


def collect_settings(setup: RetrievalSetup) -> dict[str, Any]:
    """Returns the settings that decide the figures, contents included: the same settings give the
    same output, up to rounding on another device or in batches of another size.
    """
    options, loaded, reader = setup.options, setup.loaded, setup.regions or setup.images
    assert reader is not None
    weights = hash_file(loaded.path / MODEL)
    about: dict[str, Any] = {}
    if setup.regions is not None:
        about["detector_fingerprint"] = setup.regions.detector_fingerprint
        about["detector_weights"] = setup.regions.producer.get("weights")
    if options.first_stage is not None:
        about |= first_stage_settings(options.first_stage, options.class_names)
    return {
        "checkpoint": str(options.checkpoint),
        "variant": loaded.variant,
        "recipe": loaded.training.recipe,
        "step": loaded.training.step,
        "weights_sha256": weights,
        "ranking": setup.ranking,
        "rerank": options.rerank,
        "pairs": options.pairs,
        "pairs_sha256": setup.loaded_pairs.digest,
        "split": options.split,
        "regions": options.regions,
        "images": options.images,
        "pictures_bytes": [path.stat().st_size for path in reader.paths],
        **about,
        **{f"feeding.{name}": getattr(setup.feeding, name) for name in FED[setup.feeding.kind]},
        "fold_images": options.fold_images,
    }


def prepare_images(
    setup: RetrievalSetup, candidates: Candidates, faults: dict[str, Reason]
) -> ImageVectors | None:
    """Reads every image once; returns the vectors of the images if the model ranks by vectors.

    Adds unusable images to ``faults``.
    """
    images, ids = setup.image_inputs, candidates.image_ids
    with Progress(total=len(ids), unit="image", label="images") as progress:
        if setup.ranking == "contrast" and isinstance(images, PixelImages):
            vectors = image_vectors(
                setup.loaded.model,
                ids,
                images,
                device=setup.device,
                batch_size=setup.options.batch_size,
                advance=progress.advance,
            )
            faults |= vectors.faults
            return vectors
        for image_id in ids:
            fault = images.fault(image_id)
            if fault is not None:
                faults[image_id] = fault
            progress.advance(rejects=int(fault is not None))
    if setup.first is not None:
        faults |= setup.first.prepare_images(
            [readable_id for readable_id in ids if readable_id not in faults]
        )
    return None


def rank(setup: RetrievalSetup, candidates: Candidates, vectors: ImageVectors | None) -> RankScores:
    """Returns the scores of all pairs, or with ``--rerank`` of a first stage and then of the
    best.
    """
    options, size = setup.options, setup.options.batch_size
    if setup.first is not None:
        texts = [pair.text for pair in candidates.pairs]
        scores = setup.first.scores(texts, candidates.image_ids)
    elif vectors is None:
        scores = compute_match_logits(setup, candidates)
    else:
        with Progress(total=len(candidates.tokens), unit="text", label="texts") as progress:
            text_matrix = text_vectors(
                setup.loaded.model,
                candidates.tokens,
                device=setup.device,
                batch_size=size,
                advance=progress.advance,
            )
        scores = vectors.stack(candidates.image_ids) @ text_matrix.T
    if options.rerank is None:
        return RankScores(by_text=scores, by_image=scores)
    setup.notes += notes_on_many(options.rerank, scores.shape)
    shortlists = Shortlists.from_scores(scores, options.rerank)
    return rerank_scores(
        scores, shortlists, compute_match_logits(setup, candidates, shortlists.listed_pairs)
    )


def compute_match_logits(
    setup: RetrievalSetup, candidates: Candidates, chosen: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """Returns logits [I, T] of the matching head, of all pairs or of the ``chosen`` ones.

    They are stored in the output as they are computed, and read from there after a killed run.
    """
    options = setup.options
    count = len(candidates.image_ids) * len(candidates.tokens)
    if chosen is not None:
        count = int(chosen.sum())
    table, spec = options.regions, REGIONS
    if setup.regions is None:
        table, spec = options.images, IMAGES
    assert table is not None
    cache = open_score_cache(
        options.output,
        candidates,
        chosen,
        settings=collect_settings(setup),
        images=table_input(f"--{spec.name}", table, spec).digest,
        batch_size=options.batch_size,  # the last bits depend on it
        device=str(setup.device),
    )
    done = len(cache.known)
    with Progress(total=count, unit="pair", label="retrieval", done=done) as progress:
        return match_scores(
            make_scorer(setup.loaded.model, get_max_elements(setup.feeding)),
            candidates.tokens,
            candidates.image_ids,
            setup.image_inputs,
            device=setup.device,
            batch_size=options.batch_size,
            advance=progress.advance,
            chosen=chosen,
            cache=cache,
        )


def get_max_elements(feeding: Feeding) -> int | None:
    """Returns the number of elements that a text and regions share; None where they do not."""
    return feeding.max_elements if feeding.reads_regions else None
