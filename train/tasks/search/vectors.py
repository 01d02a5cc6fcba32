"""Computes the vectors of a part: of pictures and texts by a dual encoder, else of pairs.

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

from vlmill.schemas.files.shards import FINITE
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import VECTORS
from vlmill.train.tasks.retrieval.candidates import SPECIALS, Pair, Rejects
from vlmill.train.tasks.retrieval.inputs import PixelPictures, text_batches
from vlmill.train.tasks.retrieval.job import room_of
from vlmill.train.tasks.retrieval.matching import Advance, scorer_of, silent
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors
from vlmill.train.tasks.search.kinds import IMAGE, PAIR, TEXT
from vlmill.train.tasks.search.opened import Embedded, Part

STAGE = "embed"  # in the rejects table
Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PartRows:
    """Holds the rows of a part, and why some of what it was made of has none."""

    table: pa.Table
    rejects: Rejects


Faults = dict[str, Reason]


def part_rows(opened: Embedded, part: Part, advance: Advance = silent) -> PartRows:
    """Embeds a part; ``advance`` is told how many of it are done."""
    if part.kind == IMAGE:
        return _image_rows(opened, opened.image_ids[part.start : part.stop], advance)
    assert opened.read is not None
    pairs, rejects = opened.read.pairs, list[dict[str, object]]()
    chosen = []
    for at in range(part.start, part.stop):
        reason = _fault(opened, at, part.kind)
        if reason is None:
            chosen.append(at)
        else:
            rejects.append(reject(STAGE, pairs[at].pair_id, reason, f"image {pairs[at].image_id}"))
    advance(len(rejects))
    embed = _text_vectors if part.kind == TEXT else _pair_vectors
    vectors, faults = embed(opened, chosen, advance)
    rejects += [
        reject(STAGE, pairs[at].pair_id, fault, f"image {pairs[at].image_id}")
        for at in chosen
        if (fault := faults.get(pairs[at].image_id or "")) is not None
    ]
    rows = [_row_of(part.kind, pairs[at]) for at in chosen if at in vectors]
    return _rows(rows, [vectors[at] for at in chosen if at in vectors], rejects)


def _fault(opened: Embedded, at: int, kind: str) -> Reason | None:
    """Says why a row of the pairs has no vector, by the pair alone."""
    assert opened.read is not None and opened.texts is not None
    if at in opened.repeated:
        return Reason.DUPLICATE
    if kind == PAIR and opened.read.pairs[at].image_id is None:
        return Reason.NO_PICTURE
    return None if len(opened.texts.tokens[at]) > SPECIALS else Reason.NO_TEXT


def _image_rows(opened: Embedded, image_ids: Sequence[str], advance: Advance) -> PartRows:
    pictures = opened.pictures()
    assert isinstance(pictures, PixelPictures)
    embedded = image_vectors(
        opened.loaded.model,
        image_ids,
        pictures,
        device=opened.device,
        batch_size=opened.options.batch_size,
        advance=advance,
    )
    rejects = [reject(STAGE, name, reason) for name, reason in embedded.faults.items()]
    rows = [{"kind": IMAGE, "image_id": name} for name in embedded.vectors]
    return _rows(rows, list(embedded.vectors.values()), rejects)


def _text_vectors(
    opened: Embedded, chosen: Sequence[int], advance: Advance
) -> tuple[dict[int, Vector], Faults]:
    """Embeds the texts of these rows by themselves."""
    assert opened.texts is not None
    vectors = text_vectors(
        opened.loaded.model,
        [opened.texts.tokens[at] for at in chosen],
        device=opened.device,
        batch_size=opened.options.batch_size,
        advance=advance,
    )
    return dict(zip(chosen, vectors, strict=True)), {}


@torch.inference_mode()
def _pair_vectors(
    opened: Embedded, chosen: Sequence[int], advance: Advance
) -> tuple[dict[int, Vector], Faults]:
    """Embeds each text with its picture, which is read once for all of its texts in the part."""
    assert opened.read is not None and opened.texts is not None
    of_image = dict[str, list[int]]()
    for at in chosen:
        of_image.setdefault(str(opened.read.pairs[at].image_id), []).append(at)
    pictures = opened.pictures()
    scorer = scorer_of(opened.loaded.model, room_of(opened.feeding))
    vectors, faults = dict[int, Vector](), dict(pictures.missing(list(of_image)))
    for image_id, rows in of_image.items():
        fault = faults.get(image_id) or pictures.fault(image_id)
        if fault is not None:
            faults[image_id] = fault
            advance(len(rows))
            continue
        picture = scorer.read_picture(pictures.batch([image_id]).to(opened.device))
        texts, columns = [opened.texts.tokens[at] for at in rows], np.array(rows, dtype=np.int64)
        for batch in text_batches(texts, opened.options.batch_size, opened.device, columns):
            pooled = scorer.pool(scorer.read_texts(batch), picture).float()
            units = functional.normalize(pooled, dim=-1).cpu().numpy()
            vectors |= dict(zip(batch.columns.tolist(), units, strict=True))
            advance(len(batch.columns))
    return vectors, faults


def _row_of(kind: str, pair: Pair) -> dict[str, Any]:
    return {"kind": kind, "image_id": pair.image_id, "pair_id": pair.pair_id, "text": pair.text}


def _rows(rows: list[dict[str, Any]], vectors: Sequence[Vector], rejects: Rejects) -> PartRows:
    """Puts rows and vectors together; those that are not finite are rejects."""
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
