"""Scores image-text pairs with a checkpoint, resumable by shard (``train-vl score``).

N rows of a part, P width of the vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from vlmill.inference.search.embedding_inputs import (
    EmbeddingSetup,
    EmbedOptions,
    Part,
    collect_inputs,
    collect_settings,
    open_embedding,
)
from vlmill.inference.search.table import PAIR
from vlmill.inference.search.vectors import find_row_fault, group_by_image
from vlmill.runtime.console.command import print_reading_hint, print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.runtime.files.shards import Shard, describe_finished, shard_name, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Reason, format_rejects, reject
from vlmill.schemas.tables import PAIRS, REJECTS
from vlmill.train.tasks.retrieval.candidates import Rejects
from vlmill.train.tasks.retrieval.checks import select_ranking
from vlmill.train.tasks.retrieval.inputs import PixelImages, text_batches
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import Advance, make_scorer
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

JOB = "train-vl score"
STAGE = "score"  # in the rejects table
DIGITS = 6  # of a score
COSINE, PROBABILITY = "cosine of the contrastive head", "probability of the matching head"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Holds the scores of a part's pairs by their indices, and why other pairs have none."""

    scores: dict[int, float]
    faults: dict[int, Reason]


def score_pairs(options: EmbedOptions) -> int:
    """Writes the pairs with their scores; returns the exit status.

    Raises InputError for problems that a user can fix.
    """
    setup = open_embedding(options)
    is_cosine = select_ranking(setup.loaded) == "contrast"
    if is_cosine and setup.images is None:
        raise InputError("--images is missing: this checkpoint compares texts with images")
    inputs = collect_inputs(setup)
    kind = COSINE if is_cosine else PROBABILITY
    settings = {**collect_settings(setup, inputs), "score": kind}
    state = prepare_output(options.output, job=JOB, settings=settings, fresh=options.fresh)
    if state is not State.FINISHED:
        shards = _write_parts(setup, is_cosine, {"job": JOB, **settings})
        write_manifest(options.output, shards, job=JOB, settings=settings, inputs=inputs)
    return _finish(options, state, kind)


def _write_parts(setup: EmbeddingSetup, is_cosine: bool, producer: Row) -> list[Shard]:
    """Writes the missing parts, rejects first: the pairs' shard appears last."""
    assert setup.loaded_pairs is not None
    count, size = len(setup.loaded_pairs.pairs), setup.options.vectors_per_shard
    parts = [
        Part(kind=PAIR, start=start, stop=min(start + size, count))
        for start in range(0, count, size)
    ]
    output, shards = setup.options.output, list[Shard]()
    setup.loaded.model.to(setup.device)
    rows = _slices(str(setup.options.pairs), size)
    with Progress(total=count, unit="pair", label="score") as progress:
        for index, (part, part_rows) in enumerate(zip(parts, rows, strict=True)):
            files = [(t, output / shard_name(t, index, len(parts))) for t in (REJECTS, PAIRS)]
            finished = describe_finished(files)
            if finished:
                progress.advance(part.stop - part.start)
            else:
                pairs, rejects = _score_rows(setup, part, part_rows, is_cosine, progress)
                finished = [
                    write_shard(output, REJECTS, rejects, index, len(parts), producer=producer),
                    write_shard(output, PAIRS, pairs, index, len(parts), producer=producer),
                ]
            shards += finished
    return shards


def _slices(pairs: str, size: int) -> Iterator[pa.Table]:
    """Yields the rows of a table ``size`` at a time. Memory: those, and a batch."""
    waiting: list[pa.RecordBatch] = []
    for batch in iter_batches(pairs, PAIRS, flag="--pairs"):
        waiting.append(batch)
        table = pa.Table.from_batches(waiting)
        while table.num_rows >= size:
            yield table.slice(0, size)
            table = table.slice(size)
        waiting = table.to_batches()
    if waiting and sum(batch.num_rows for batch in waiting):
        yield pa.Table.from_batches(waiting)


def _score_rows(
    setup: EmbeddingSetup, part: Part, rows: pa.Table, is_cosine: bool, progress: Progress
) -> tuple[list[Row], Rejects]:
    """Returns the part's rows with their scores, and the rejects of the others."""
    faults: dict[int, Reason] = {}
    for index in range(part.start, part.stop):
        if (reason := find_row_fault(setup, index, PAIR)) is not None:
            faults[index] = reason
    chosen = [index for index in range(part.start, part.stop) if index not in faults]
    progress.advance(len(faults))
    compute = _cosines if is_cosine else _probabilities
    try:
        scored = compute(setup, chosen, progress.advance)
    except torch.OutOfMemoryError:
        raise InputError(
            f"--batch-size {setup.options.batch_size} does not fit into the memory of --device "
            f"{setup.options.device}; give a smaller one"
        ) from None
    faults |= scored.faults
    pairs, rejects = list[Row](), list[dict[str, object]]()
    for index, row in enumerate(rows.to_pylist(), start=part.start):
        score = scored.scores.get(index, np.nan)
        if np.isfinite(score):
            pairs.append(row | {"score": round(score, DIGITS)})
        else:
            reason = faults.get(index, Reason.NOT_FINITE)
            rejects.append(reject(STAGE, row["pair_id"], reason, f"image {row['image_id']}"))
    progress.advance(0, rejects=len(rejects))
    return pairs, rejects


@torch.inference_mode()
def _probabilities(setup: EmbeddingSetup, chosen: Sequence[int], advance: Advance) -> Scored:
    """Scores each text with its image, which is read once for all of its texts in the part."""
    assert setup.texts is not None
    groups, images = group_by_image(setup, chosen), setup.image_inputs()
    scorer = make_scorer(setup.loaded.model, get_max_elements(setup.feeding))
    scores, faults = dict[int, float](), dict[int, Reason]()
    missing = images.missing(list(groups))
    for image_id, rows in groups.items():
        if (fault := missing.get(image_id) or images.fault(image_id)) is not None:
            faults |= dict.fromkeys(rows, fault)
            advance(len(rows))
            continue
        image = scorer.read_image(images.batch([image_id]).to(setup.device))
        texts = [setup.texts.tokens[index] for index in rows]
        columns = np.array(rows, dtype=np.int64)
        for batch in text_batches(texts, setup.options.batch_size, setup.device, columns):
            logits = scorer.match(scorer.read_texts(batch), image).double()
            values = logits.sigmoid().cpu().tolist()
            scores |= dict(zip(batch.columns.tolist(), values, strict=True))
            advance(len(values))
    return Scored(scores=scores, faults=faults)


def _cosines(setup: EmbeddingSetup, chosen: Sequence[int], advance: Advance) -> Scored:
    """Returns the inner product of each text's and its image's unit vectors."""
    assert setup.texts is not None
    groups, images = group_by_image(setup, chosen), setup.image_inputs()
    assert isinstance(images, PixelImages)
    model, device, batch_size = setup.loaded.model, setup.device, setup.options.batch_size
    missing = dict(images.missing(list(groups)))
    there = [name for name in groups if name not in missing]
    embedded = image_vectors(model, there, images, device=device, batch_size=batch_size)
    tokens = [setup.texts.tokens[index] for index in chosen]
    texts: NDArray[np.float32] = text_vectors(
        model, tokens, device=device, batch_size=batch_size, advance=advance
    )
    by_row = dict(zip(chosen, texts, strict=True))
    scores, faults = dict[int, float](), dict[int, Reason]()
    for image_id, rows in groups.items():
        vector = embedded.vectors.get(image_id)
        if vector is None:
            fault = missing.get(image_id) or embedded.faults.get(image_id) or Reason.NO_IMAGE
            faults |= dict.fromkeys(rows, fault)
        else:
            scores |= {row: float(by_row[row] @ vector) for row in rows}
    return Scored(scores=scores, faults=faults)


def _finish(options: EmbedOptions, state: State, kind: str) -> int:
    shards: list[Shard] = read_manifest(options.output)["shards"]
    count = sum(shard.rows for shard in shards if shard.table == PAIRS.name)
    if not count:
        print_status(f"warning: no pair has a score; train-vl show {options.output} --rejects")
    print_reading_hint(options.output, PAIRS.name)
    done = "finished before" if state is State.FINISHED else "done"
    counts = format_rejects(reject_counts(options.output))
    print(f"{done}: {format_count(count, 'pair')} scored ({kind}), {counts}: {options.output}")
    return 0
