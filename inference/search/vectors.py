"""Computes the vectors of a part: of images and texts with a dual encoder, else of pairs.

N rows of a part, P width of the vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.nn import functional

from vlmill.inference.search.embedding_inputs import EmbeddingSetup, Part
from vlmill.inference.search.table import IMAGE, PAIR, TEXT
from vlmill.runtime.files.shards import FINITE
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import VECTORS
from vlmill.train.loading.vocabulary import SPECIALS
from vlmill.train.tasks.retrieval.candidates import Pair, Rejects
from vlmill.train.tasks.retrieval.inputs import PixelImages, text_batches
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import Advance, ignore_progress, make_scorer
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

STAGE = "embed"  # in the rejects table
Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PartRows:
    """Holds the rows of a part, and the reasons for missing ones."""

    table: pa.Table
    rejects: Rejects


Faults = dict[str, Reason]


def part_rows(setup: EmbeddingSetup, part: Part, advance: Advance = ignore_progress) -> PartRows:
    """Encodes a part; ``advance`` is called with the number of finished rows."""
    if part.kind == IMAGE:
        return _image_rows(setup, setup.image_ids[part.start : part.stop], advance)
    assert setup.loaded_pairs is not None
    pairs, rejects = setup.loaded_pairs.pairs, list[dict[str, object]]()
    chosen = []
    for index in range(part.start, part.stop):
        reason = find_row_fault(setup, index, part.kind)
        if reason is None:
            chosen.append(index)
        else:
            rejects.append(
                reject(STAGE, pairs[index].pair_id, reason, f"image {pairs[index].image_id}")
            )
    advance(len(rejects))
    embed = _text_vectors if part.kind == TEXT else _pair_vectors
    vectors, faults = embed(setup, chosen, advance)
    rejects += [
        reject(STAGE, pairs[index].pair_id, fault, f"image {pairs[index].image_id}")
        for index in chosen
        if (fault := faults.get(pairs[index].image_id or "")) is not None
    ]
    rows = [_make_row(part.kind, pairs[index]) for index in chosen if index in vectors]
    return _rows(rows, [vectors[index] for index in chosen if index in vectors], rejects)


def find_row_fault(setup: EmbeddingSetup, index: int, kind: str) -> Reason | None:
    """Returns why a row of the pairs has no vector, from the pair alone."""
    assert setup.loaded_pairs is not None and setup.texts is not None
    if index in setup.repeated:
        return Reason.DUPLICATE
    if kind == PAIR and setup.loaded_pairs.pairs[index].image_id is None:
        return Reason.NO_IMAGE
    return None if len(setup.texts.tokens[index]) > SPECIALS else Reason.NO_TEXT


def _image_rows(setup: EmbeddingSetup, image_ids: Sequence[str], advance: Advance) -> PartRows:
    images = setup.image_inputs()
    assert isinstance(images, PixelImages)
    embedded = image_vectors(
        setup.loaded.model,
        image_ids,
        images,
        device=setup.device,
        batch_size=setup.options.batch_size,
        advance=advance,
    )
    rejects = [reject(STAGE, name, reason) for name, reason in embedded.faults.items()]
    rows = [{"kind": IMAGE, "image_id": name} for name in embedded.vectors]
    return _rows(rows, list(embedded.vectors.values()), rejects)


def _text_vectors(
    setup: EmbeddingSetup, chosen: Sequence[int], advance: Advance
) -> tuple[dict[int, Vector], Faults]:
    """Encodes the texts of these rows separately."""
    assert setup.texts is not None
    vectors = text_vectors(
        setup.loaded.model,
        [setup.texts.tokens[index] for index in chosen],
        device=setup.device,
        batch_size=setup.options.batch_size,
        advance=advance,
    )
    return dict(zip(chosen, vectors, strict=True)), {}


def group_by_image(setup: EmbeddingSetup, chosen: Sequence[int]) -> dict[str, list[int]]:
    """Returns the rows of the pairs by their image."""
    assert setup.loaded_pairs is not None
    groups = dict[str, list[int]]()
    for index in chosen:
        groups.setdefault(str(setup.loaded_pairs.pairs[index].image_id), []).append(index)
    return groups


@torch.inference_mode()
def _pair_vectors(
    setup: EmbeddingSetup, chosen: Sequence[int], advance: Advance
) -> tuple[dict[int, Vector], Faults]:
    """Embeds each text with its image, which is read once for all of its texts in the part."""
    assert setup.texts is not None
    indices_by_image, images = group_by_image(setup, chosen), setup.image_inputs()
    scorer = make_scorer(setup.loaded.model, get_max_elements(setup.feeding))
    vectors, faults = dict[int, Vector](), dict(images.missing(list(indices_by_image)))
    for image_id, rows in indices_by_image.items():
        fault = faults.get(image_id) or images.fault(image_id)
        if fault is not None:
            faults[image_id] = fault
            advance(len(rows))
            continue
        image = scorer.read_image(images.batch([image_id]).to(setup.device))
        texts, columns = (
            [setup.texts.tokens[index] for index in rows],
            np.array(rows, dtype=np.int64),
        )
        for batch in text_batches(texts, setup.options.batch_size, setup.device, columns):
            pooled = scorer.pool(scorer.read_texts(batch), image).float()
            units = functional.normalize(pooled, dim=-1).cpu().numpy()
            vectors |= dict(zip(batch.columns.tolist(), units, strict=True))
            advance(len(batch.columns))
    return vectors, faults


def _make_row(kind: str, pair: Pair) -> dict[str, Any]:
    return {"kind": kind, "image_id": pair.image_id, "pair_id": pair.pair_id, "text": pair.text}


def _rows(rows: list[dict[str, Any]], vectors: Sequence[Vector], rejects: Rejects) -> PartRows:
    """Combines rows and vectors; vectors that are not finite are rejects."""
    finite = [bool(np.isfinite(vector).all()) for vector in vectors]
    good = [
        {**dict.fromkeys(VECTORS.schema.names), **row, "vector": vector.astype("<f4").tobytes()}
        for row, vector, fine in zip(rows, vectors, finite, strict=True)
        if fine
    ]
    broken = [
        reject(STAGE, row.get("pair_id") or row["image_id"], Reason.NOT_FINITE, "its vector")
        for row, fine in zip(rows, finite, strict=True)
        if not fine
    ]
    schema = VECTORS.schema.with_metadata({FINITE: "true"})
    table = pa.Table.from_pylist(good, schema=schema)
    return PartRows(table=table, rejects=[*rejects, *broken])
