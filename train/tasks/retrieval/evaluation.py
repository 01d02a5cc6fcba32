"""Runs ``train-vl evaluate retrieval``: writes metrics, neighbours and a page of a checkpoint.

The page also shows the regions that the matching head's score of a caption rests on.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlmill.runtime.console.report import write_page
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS, REJECTS
from vlmill.train.run.lineage import checkpoint_input
from vlmill.train.tasks.report import WeightedImage
from vlmill.train.tasks.retrieval import job
from vlmill.train.tasks.retrieval.candidates import Candidates, Rejects
from vlmill.train.tasks.retrieval.checks import (
    count_overlap,
    notes_on_shortlists,
    notes_on_ties,
    notes_on_training,
)
from vlmill.train.tasks.retrieval.examples import (
    Outcome,
    nearest_images,
    nearest_texts,
    neighbours_json,
)
from vlmill.train.tasks.retrieval.first_stage import WORDS
from vlmill.train.tasks.retrieval.inputs import RegionImages, text_batches
from vlmill.train.tasks.retrieval.matching import make_scorer
from vlmill.train.tasks.retrieval.metrics import (
    KS,
    image_to_text_ranks,
    mean_of_folds,
    retrieval_metrics,
    text_to_image_ranks,
)
from vlmill.train.tasks.retrieval.report import DIRECTIONS, sections
from vlmill.train.tasks.retrieval.vectors import RankScores
from vlmill.train.tasks.scores import percent
from vlmill.train.tasks.weights import RegionMask, occlusion_weights, only_rows


@torch.inference_mode()
def weigh_best_image(
    setup: job.RetrievalSetup, candidates: Candidates, text: int
) -> WeightedImage | None:
    """Weighs the regions of a caption's own image, by its number among the candidates.

    None for a model that reads pixels. It costs a pass of one pair for each region.
    """
    images = setup.image_inputs
    if not isinstance(images, RegionImages):
        return None
    pair = candidates.pairs[text]
    image_id = candidates.image_ids[candidates.owners[text]]
    batch = images.batch([image_id]).to(setup.device)
    scorer = make_scorer(setup.loaded.model, job.get_max_elements(setup.feeding))
    (words,) = text_batches([candidates.tokens[text]], 1, setup.device)
    texts = scorer.read_texts(words)
    num_whole = int(setup.feeding.whole_image != "none")

    def score(region_mask: RegionMask) -> float:
        rows = np.concatenate([np.ones(num_whole, dtype=np.bool_), region_mask])
        return float(scorer.match(texts, scorer.read_image(only_rows(batch, rows)))[0])

    boxes, width, height = images.fed_boxes(image_id)
    return WeightedImage(
        image_id=image_id,
        width=width,
        height=height,
        boxes=boxes,
        weights=occlusion_weights(score, len(boxes)),
        caption=pair.text,
    )


JOB = "train-vl evaluate retrieval"
METRICS = "metrics.json"
NEIGHBOURS = 5


def evaluate_retrieval(options: job.RetrievalOptions) -> dict[str, float]:
    """Ranks all images against all texts, writes the output folder, and returns the metrics.

    A finished output of the same inputs is left as it is (its metrics are recomputed only with
    ``fresh``). Raises InputError for errors that a user can fix.
    """
    setup = job.open_inputs(options)
    ids = sorted({pair.image_id for pair in setup.loaded_pairs.pairs if pair.image_id is not None})
    images = setup.image_inputs
    faults = dict(images.missing(ids))
    if setup.first is not None:
        faults = dict(setup.first.missing(ids)) | faults
    if summary := images.join.summary():
        setup.notes.append(f"{summary}.")
    candidates, rejects = job.select(setup, faults)
    settings = job.collect_settings(setup)
    state = prepare_output(options.output, job=JOB, settings=settings, fresh=options.fresh)
    if state is State.FINISHED:
        print(f"{options.output} is finished; --fresh evaluates again")
        return read_metrics(options.output)
    try:
        setup.loaded.model.to(setup.device)
        vectors = job.prepare_images(setup, candidates, faults)
        candidates, rejects = job.select(setup, faults)
        ranked = job.rank(setup, candidates, vectors)
        metrics = _metrics(setup, ranked, candidates, rejects)
    except torch.OutOfMemoryError:
        raise InputError(
            f"--batch-size {options.batch_size} does not fit into the memory of "
            f"--device {options.device}; give a smaller batch size"
        ) from None
    overlap = count_overlap(setup.loaded.trained_on, candidates)
    metrics |= {} if overlap is None else overlap.metrics
    setup.notes += notes_on_training(setup.loaded, overlap, candidates)
    setup.notes += notes_on_ties(metrics) + notes_on_shortlists(metrics)
    _write(setup, ranked, candidates, metrics, rejects, settings)
    _print_summary(options.output, metrics, rejects, setup.notes)
    return metrics


def read_metrics(folder: str | Path) -> dict[str, float]:
    """Reads the ``metrics.json`` of a finished evaluation."""
    metrics: dict[str, float] = read_json(to_path(folder) / METRICS)
    return metrics


def _metrics(
    setup: job.RetrievalSetup, ranked: RankScores, candidates: Candidates, rejects: Rejects
) -> dict[str, float]:
    owners, fold_images = candidates.owners, setup.options.fold_images
    try:
        metrics = retrieval_metrics(ranked.by_text, owners, by_image=ranked.by_image)
    except ValueError as error:  # the fault is in the model's weights: all inputs were finite
        raise InputError(f"--checkpoint {setup.loaded.path}: {error}; use another") from None
    metrics |= {
        "pairs": len(candidates.pairs),
        "images": len(candidates.image_ids),
        "rejected_pairs": len(rejects),
        "cut_texts": setup.texts.cut,
    }
    if ranked.shortlists is not None:
        metrics |= ranked.shortlists.shares(owners)
    if fold_images is not None:
        folds = mean_of_folds(ranked.by_text, owners, fold_images)
        metrics |= {f"folds/{name}": value for name, value in folds.items()}
    return metrics


def _write(
    setup: job.RetrievalSetup,
    ranked: RankScores,
    candidates: Candidates,
    metrics: dict[str, float],
    rejects: Rejects,
    settings: dict[str, Any],
) -> None:
    owners, folder = candidates.owners, setup.options.output
    text_ranks = text_to_image_ranks(ranked.by_text, owners)
    image_ranks = image_to_text_ranks(ranked.by_image, owners)
    by_text = nearest_images(ranked.by_text, owners, text_ranks, NEIGHBOURS)
    by_image = nearest_texts(ranked.by_image, owners, image_ranks, NEIGHBOURS)
    shard = write_shard(folder, REJECTS, rejects, producer={"job": JOB})
    write_json(folder / "neighbours.json", neighbours_json(candidates, by_text, by_image))
    cosines = setup.ranking == "contrast" and setup.options.rerank is None
    write_page(
        folder / "report.html",
        "Retrieval",
        sections(
            metrics=metrics,
            candidates=candidates,
            by_text=by_text,
            by_image=by_image,
            rejects=Counter(str(row["reason"]) for row in rejects),
            settings=settings,
            images=setup.options.images,
            score="cosines" if cosines else "logits of the matching head",
            weighted=_weigh_images(setup, candidates, by_text),
        ),
        subtitle=f"{len(candidates.image_ids)} images, {len(candidates.pairs)} captions, "
        f"{settings['recipe']} after {settings['step']} steps",
        notice=" ".join(setup.notes),
    )
    write_json(folder / METRICS, metrics)
    write_manifest(folder, [shard], job=JOB, settings=settings, inputs=collect_inputs(setup))
    remove_work(folder)  # the scores of pairs, from which a killed run would continue


def _weigh_images(
    setup: job.RetrievalSetup, candidates: Candidates, by_text: Sequence[Outcome]
) -> list[WeightedImage]:
    """Weighs the image of the most certain right caption, or else of the most certain one."""
    best = min(by_text, key=lambda outcome: (outcome.rank, -outcome.margin, outcome.query))
    weighted = weigh_best_image(setup, candidates, best.query)
    return [] if weighted is None else [weighted]


def collect_inputs(setup: job.RetrievalSetup) -> list[Input]:
    """Records what an evaluation has read, for its manifest."""
    options = setup.options
    tables = (("--regions", options.regions, REGIONS), ("--images", options.images, IMAGES))
    first = options.first_stage
    return [
        checkpoint_input("--checkpoint", setup.loaded.path),
        *([] if first in (None, WORDS) else [checkpoint_input("--first-stage", Path(first))]),
        table_input("--pairs", options.pairs, PAIRS),
        *(table_input(flag, path, table) for flag, path, table in tables if path is not None),
    ]


def _print_summary(
    folder: Path, metrics: Mapping[str, float], rejects: Rejects, notes: list[str]
) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    for direction, name in DIRECTIONS.items():
        figures = ", ".join(
            f"R@{k} {percent(metrics[f'{direction}/r{k}'])} % "
            f"(chance {percent(metrics[f'{direction}/r{k}_chance'])} %)"
            for k in KS
        )
        print(f"{name}: {figures}")
    print(
        f"{folder}: {metrics['pairs']} pairs of {metrics['images']} images, "
        f"{format_rejects(Counter(str(row['reason']) for row in rejects))}"
    )
