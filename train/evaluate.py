"""``train-vl evaluate``: a checkpoint and a task to metrics, neighbours and a page."""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.schemas.atomic import write_json
from vlmill.schemas.commands import InputError
from vlmill.schemas.manifest import write_manifest
from vlmill.schemas.outputs import State, prepare_output
from vlmill.schemas.progress import Progress
from vlmill.schemas.reading import find_shards
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.report import write_page
from vlmill.schemas.shards import write_shard
from vlmill.schemas.tables import IMAGES, REJECTS
from vlmill.train.checkpoint import MODEL, LoadedCheckpoint, load_checkpoint
from vlmill.train.collate import regions_of
from vlmill.train.data import pairs_digest
from vlmill.train.metrics import (
    KS,
    image_to_text_ranks,
    mean_of_folds,
    retrieval_metrics,
    text_to_image_ranks,
)
from vlmill.train.tasks.retrieval import (
    Candidates,
    encode_texts,
    found_images,
    found_texts,
    neighbours_json,
    score_matrix,
    select_candidates,
)
from vlmill.train.tasks.retrieval_checks import (
    check_candidates,
    check_matching_head,
    notes_on_data,
    notes_on_ties,
    read_pairs,
)
from vlmill.train.tasks.retrieval_report import DIRECTIONS, percent, sections

JOB = "train-vl evaluate retrieval"
METRICS = "metrics.json"
MAX_REGIONS = 100  # as in pretraining (ImageBERT, arXiv:2001.07966, sec. 5.2)
NEIGHBOURS = 5

EPILOG = """\
example:
  train-vl evaluate retrieval --checkpoint runs/imagebert-small --pairs demo/test \\
      --regions demo/regions --images demo/test --output demo/after

writes metrics.json, report.html, neighbours.json (the first five of every query) and rejects.
All pictures are scored against all texts: time grows with their product. Memory: the scores (4
bytes a pair), the texts and one batch.
"""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """What ``train-vl evaluate retrieval`` is told; tables are folders, files or globs."""

    checkpoint: Path
    pairs: str
    regions: str
    output: Path
    images: str | None = None
    split: str | None = None
    device: str = "cpu"
    batch_size: int = 64
    fold_images: int | None = None
    fresh: bool = False


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``train-vl evaluate`` on a subcommand's parser."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("task", choices=["retrieval"], help="what to evaluate")
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="output of `train-vl pretrain`"
    )
    parser.add_argument("--pairs", required=True, help="image-text pairs: folder, file or glob")
    parser.add_argument("--regions", required=True, help="region features of their pictures")
    parser.add_argument("--images", help="their pictures, for the report only")
    parser.add_argument("--split", help="only the pairs of this split (default: all)")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument(
        "--batch-size", type=int, default=64, help="pairs scored at once (default: 64)"
    )
    parser.add_argument(
        "--fold-images",
        type=int,
        metavar="N",
        help="also the mean over consecutive blocks of N pictures (COCO 1K: 1000)",
    )
    parser.add_argument("--fresh", action="store_true", help="replace an earlier evaluation")


def run_evaluate(args: argparse.Namespace) -> int:
    """Run the subcommand that :func:`add_evaluate_arguments` declares; gives the exit status."""
    values = {name: value for name, value in vars(args).items() if name in _FIELDS}
    evaluate_retrieval(RetrievalOptions(**values))
    return 0


_FIELDS = RetrievalOptions.__dataclass_fields__


def evaluate_retrieval(options: RetrievalOptions) -> dict[str, float]:
    """Rank all pictures against all texts, write the output folder, and return the metrics.

    A finished output of the same inputs is left as it is (its metrics are computed anew only with
    ``fresh``). Raises InputError for what a user can mend.
    """
    device = _device(options.device)
    if options.batch_size < 1:
        raise InputError(f"--batch-size {options.batch_size}: want at least 1")
    loaded = load_checkpoint(options.checkpoint)
    check_matching_head(loaded)
    regions = RegionReader(options.regions)
    if options.images is not None:
        find_shards(options.images, IMAGES, "--images")  # a typing error shows before the work
    pairs = read_pairs(options.pairs, options.split)
    notes = notes_on_data(loaded, regions, options.pairs, pairs)
    settings = _settings(options, loaded, regions)
    candidates, rejects = select_candidates(pairs, regions)
    check_candidates(candidates, rejects, options.fold_images)
    state = prepare_output(options.output, job=JOB, settings=settings, fresh=options.fresh)
    if state is State.FINISHED:
        print(f"{options.output} is finished; --fresh evaluates again")
        return read_metrics(options.output)
    scores = _scores(options, loaded, regions, candidates, device)
    metrics = _metrics(scores, candidates, len(rejects), options.fold_images)
    notes += notes_on_ties(metrics)
    _write(options, scores, candidates, metrics, rejects, settings, notes)
    _print_summary(options.output, metrics, notes)
    return metrics


def read_metrics(folder: str | Path) -> dict[str, float]:
    """The ``metrics.json`` of a finished evaluation."""
    metrics: dict[str, float] = json.loads((Path(folder) / METRICS).read_text(encoding="utf-8"))
    return metrics


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: want cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InputError(f"--device {name}: PyTorch sees {count} such devices; use --device cpu")
    return device


def _settings(
    options: RetrievalOptions, loaded: LoadedCheckpoint, regions: RegionReader
) -> dict[str, Any]:
    """What decides the figures, contents included: the same settings give the same output."""
    with (loaded.path / MODEL).open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "checkpoint": str(options.checkpoint),
        "recipe": loaded.training.recipe,
        "step": loaded.training.step,
        "weights_sha256": weights,
        "pairs": options.pairs,
        "pairs_sha256": pairs_digest(options.pairs)[1],
        "split": options.split,
        "regions": options.regions,
        "regions_bytes": [path.stat().st_size for path in regions.paths],
        "detector_fingerprint": regions.detector_fingerprint,
        "detector_weights": regions.producer.get("weights"),
        "images": options.images,
        "max_regions": MAX_REGIONS,
        "fold_images": options.fold_images,
        "batch_size": options.batch_size,
        "device": options.device,
    }


def _scores(
    options: RetrievalOptions,
    loaded: LoadedCheckpoint,
    regions: RegionReader,
    candidates: Candidates,
    device: torch.device,
) -> NDArray[np.float32]:
    texts = encode_texts(
        loaded.tokenizer, [pair.text for pair in candidates.pairs], loaded.config.max_text_tokens
    )
    pictures = (regions_of(regions[image_id], MAX_REGIONS) for image_id in candidates.image_ids)
    total = len(candidates.image_ids) * len(texts)
    with Progress(total=total, unit="pair", label="retrieval") as progress:
        return score_matrix(
            loaded.model.to(device),
            texts,
            pictures,
            device=device,
            batch_size=options.batch_size,
            advance=progress.advance,
        )


def _metrics(
    scores: NDArray[np.float32], candidates: Candidates, num_rejects: int, fold_images: int | None
) -> dict[str, float]:
    metrics = retrieval_metrics(scores, candidates.owners)
    metrics |= {
        "pairs": len(candidates.pairs),
        "images": len(candidates.image_ids),
        "rejected_pairs": num_rejects,
    }
    if fold_images is not None:
        folds = mean_of_folds(scores, candidates.owners, fold_images)
        metrics |= {f"folds/{name}": value for name, value in folds.items()}
    return metrics


def _write(
    options: RetrievalOptions,
    scores: NDArray[np.float32],
    candidates: Candidates,
    metrics: dict[str, float],
    rejects: list[dict[str, object]],
    settings: dict[str, Any],
    notes: list[str],
) -> None:
    owners, folder = candidates.owners, options.output
    by_text = found_images(scores, owners, text_to_image_ranks(scores, owners), NEIGHBOURS)
    by_image = found_texts(scores, owners, image_to_text_ranks(scores, owners), NEIGHBOURS)
    shard = write_shard(folder, REJECTS, rejects, producer={"job": JOB})
    write_json(folder / "neighbours.json", neighbours_json(candidates, by_text, by_image))
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
            images=options.images,
        ),
        subtitle=f"{len(candidates.image_ids)} pictures, {len(candidates.pairs)} captions, "
        f"{settings['recipe']} after {settings['step']} steps",
        notice=" ".join(notes),
    )
    write_json(folder / METRICS, metrics)
    write_manifest(folder, [shard], job=JOB, settings=settings)


def _print_summary(folder: Path, metrics: Mapping[str, float], notes: list[str]) -> None:
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
        f"{folder}: {metrics['pairs']} pairs of {metrics['images']} pictures, "
        f"{metrics['rejected_pairs']} pairs rejected"
    )
