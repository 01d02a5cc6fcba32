"""Computes features of labelled pairs, and fits a model on them."""

import argparse
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from vlmill.pipelines.filters import scorer
from vlmill.pipelines.filters.facts import COLUMNS, FactsReader, Sources, open_sources
from vlmill.pipelines.filters.fit_report import fit_model
from vlmill.pipelines.filters.fitting import LabelledRows
from vlmill.pipelines.filters.labels import read_labels, require_rows
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.tables import PAIRS

MOST_TEXTS = 1_000_000  # of the pairs: their words are counted
AT_ONCE = 256


def run(args: argparse.Namespace) -> int:
    """Fits the scorer, prints the report, and writes the model with its report page."""
    labels = read_labels(args.labels)
    sources = open_sources(args.images, args.regions, args.classes, args.attributes)
    pairs = labelled_pairs(args.pairs, labels)
    frequency = scorer.HashedShares.from_texts(islice(read_texts(args.pairs), MOST_TEXTS))
    rows = labelled_rows(pairs, labels, sources, frequency)
    names = ("pairs", "labels", "images", "regions", "classes", "attributes", "threshold", "seed")
    return fit_model(
        args,
        rows,
        kind=scorer.SCORER,
        title="Scorer of pairs",
        settings={name: getattr(args, name) for name in names},
        arrays={scorer.FREQUENCIES: frequency.table},
    )


def read_texts(pairs: str) -> Iterator[tuple[str, str | None]]:
    """Yields each text with its language."""
    for batch in iter_batches(pairs, PAIRS, columns=["text", "language"], flag="--pairs"):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def labelled_pairs(pairs: str, labels: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Returns the labelled rows of a table, sorted by id. Raises InputError for a missing one."""
    rows: dict[str, dict[str, Any]] = {}
    for batch in iter_batches(pairs, PAIRS, columns=COLUMNS, flag="--pairs"):
        ids = batch.column(0).to_pylist()
        indices = [index for index, pair_id in enumerate(ids) if pair_id in labels]
        rows |= {
            row["pair_id"]: row for row in batch.take(pa.array(indices, pa.int64())).to_pylist()
        }
    require_rows(labels, rows, f"--pairs {pairs}")
    return [rows[pair_id] for pair_id in sorted(labels)]


def labelled_rows(
    pairs: list[dict[str, Any]],
    labels: Mapping[str, bool],
    sources: Sources,
    frequency: scorer.HashedShares,
) -> LabelledRows:
    """Returns the features of labelled pairs; pairs of an image are one unit."""
    reader = FactsReader(sources)
    words = scorer.Vocabularies(
        classes=sources.classes, attributes=sources.attributes, frequency=frequency
    )
    values: list[list[float]] = []
    with Progress(total=len(pairs), unit="pair", label="features") as progress:
        for start in range(0, len(pairs), AT_ONCE):
            for facts in reader.facts(pairs[start : start + AT_ONCE]):
                values.append(scorer.pair_features(facts, words))
                progress.advance()
    if summary := reader.summary(len(pairs)):
        print_status(summary)
    features = np.array(values, dtype=np.float32)
    known = {
        name
        for name, column in zip(scorer.NAMES, features.T, strict=True)
        if not np.isnan(column).all()
    }
    return LabelledRows(
        features=features,
        labels=np.array([labels[pair["pair_id"]] for pair in pairs]),
        units=[pair["image_id"] or pair["pair_id"] for pair in pairs],
        names=scorer.NAMES,
        groups={group: names for group, names in scorer.GROUPS.items() if known & set(names)},
    )
