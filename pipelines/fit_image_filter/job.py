"""Computes features of labelled images, and fits a model on them."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from vlmill.pipelines.filters import statistics
from vlmill.pipelines.filters.fit_report import fit_model
from vlmill.pipelines.filters.fitting import LabelledRows
from vlmill.pipelines.filters.image import (
    ANY,
    BACKBONE,
    Vector,
    backbone_names,
    compute_features,
    decode_side,
)
from vlmill.pipelines.filters.labels import read_labels, require_rows
from vlmill.pipelines.filters.statistics import MAX_PIXELS, small_copy
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.reading import find_shards, iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds, load, open_image
from vlmill.schemas.rejects import Rejected
from vlmill.schemas.tables import IMAGES

MAX_BYTES = 64 << 20
BOUNDS = Bounds(max_pixels=MAX_PIXELS, max_bytes=None)


def run(args: argparse.Namespace) -> int:
    """Fits the filter, prints the report, and writes the model with its report page."""
    labels = read_labels(args.labels)
    weights = {}
    if args.backbone is not None:
        from vlmill.pipelines.filters.backbone import read_backbone

        weights = read_backbone(args.backbone)
    rows = labelled_rows(args.images, labels, weights)
    kind, names = args.kind or ANY, ("images", "labels", "backbone", "threshold", "seed")
    return fit_model(
        args,
        rows,
        kind=kind,
        title="Image filter",
        settings={"kind": kind, **{name: getattr(args, name) for name in names}},
        arrays={f"{BACKBONE}{name}": array for name, array in weights.items()},
    )


def labelled_rows(
    images: str, labels: Mapping[str, bool], weights: Mapping[str, Vector]
) -> LabelledRows:
    """Returns the features of all labelled images, in the order of their ids.

    Raises InputError for an id without an image, and for an image that cannot be decoded.
    """
    network: Callable[[Image.Image], Vector] | None = None
    groups = dict(statistics.GROUPS)
    if weights:
        from vlmill.pipelines.filters.backbone import get_vector_width, vector_function

        network = vector_function(weights, source="--backbone")
        groups["backbone"] = backbone_names(get_vector_width(weights))
    vectors: dict[str, Vector] = {}
    with Progress(total=len(labels), unit="image", label="measured") as progress:
        for name, data in labelled_images(images, labels):
            try:
                with open_image(data, BOUNDS) as image:
                    load(image, BOUNDS)
                    small = small_copy(image, decode_side(bool(weights)))
                vectors[name] = compute_features(small, network)
            except Rejected as why:
                raise InputError(
                    f"--images {images}: {name} cannot be read ({why.reason}: {why}); remove its "
                    "line from --labels"
                ) from None
            progress.advance()
    require_rows(labels, vectors, f"--images {images}")
    ids = sorted(labels)
    return LabelledRows(
        features=np.stack([vectors[name] for name in ids]),
        labels=np.array([labels[name] for name in ids]),
        units=ids,
        names=tuple(name for names in groups.values() for name in names),
        groups=groups,
    )


def labelled_images(images: str, labels: Mapping[str, bool]) -> Iterator[tuple[str, bytes]]:
    """Yields (id, bytes) of the labelled images of a table or a folder.

    In a folder without a table an id is a file's path below it.
    """
    folder = Path(images)
    if folder.is_dir() and not any(folder.glob(f"{IMAGES.name}-*.parquet")):
        yield from _files(folder, labels)
        return
    find_shards(images, IMAGES, "--images")
    columns = ["image_id", "bytes"]
    for batch in iter_batches(images, IMAGES, columns=columns, batch_rows=64, flag="--images"):
        for name, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if name in labels:
                yield name, data or b""


def _files(folder: Path, labels: Mapping[str, bool]) -> Iterator[tuple[str, bytes]]:
    for name in sorted(labels):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"--labels: {name} leads out of --images {folder}; give paths below it"
            )
        if path.is_file():
            if path.stat().st_size > MAX_BYTES:
                raise InputError(f"--images: {path} has more than {MAX_BYTES} bytes; give images")
            yield name, path.read_bytes()
