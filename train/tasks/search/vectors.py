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
from vlmill.train.loading.arrays import Ids
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


def part_rows(opened: Embedded, part: Part, advance: Advance = silent) -> PartRows:
    """Embeds a part; ``advance`` is told how many of it are done."""
    if part.kind == IMAGE:
        return _image_rows(opened, opened.image_ids[part.start : part.stop], advance)
    assert opened.read is not None and opened.texts is not None
    pairs = opened.read.pairs[part.start : part.stop]
    tokens = opened.texts.tokens[part.start : part.stop]
    embed = _text_rows if part.kind == TEXT else _pair_rows
    return embed(opened, pairs, tokens, advance)


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
    faults = {name: (reason, None) for name, reason in embedded.faults.items()}
    rows = [{"kind": IMAGE, "image_id": name} for name in embedded.vectors]
    return _rows(rows, list(embedded.vectors.values()), _rejects(faults))


def _text_rows(
    opened: Embedded, pairs: Sequence[Pair], tokens: Sequence[Ids], advance: Advance
) -> PartRows:
    has_words = [len(text) > SPECIALS for text in tokens]
    chosen = [at for at, words in enumerate(has_words) if words]
    vectors = text_vectors(
        opened.loaded.model,
        [tokens[at] for at in chosen],
        device=opened.device,
        batch_size=opened.options.batch_size,
        advance=advance,
    )
    faults = {
        pair.pair_id: (Reason.NO_TEXT, None)
        for pair, words in zip(pairs, has_words, strict=True)
        if not words
    }
    advance(len(faults))
    return _rows([_row_of(TEXT, pairs[at]) for at in chosen], list(vectors), _rejects(faults))


@torch.inference_mode()
def _pair_rows(
    opened: Embedded, pairs: Sequence[Pair], tokens: Sequence[Ids], advance: Advance
) -> PartRows:
    """Embeds each text with its picture, which is read once for all of its texts."""
    pictures = opened.pictures()
    scorer = scorer_of(opened.loaded.model, room_of(opened.feeding))
    vectors = dict[int, Vector]()
    faults = dict[str, tuple[Reason, str | None]]()
    of_image = dict[str, list[int]]()
    for at, pair in enumerate(pairs):
        if pair.image_id is None or len(tokens[at]) <= SPECIALS:
            reason = Reason.NO_PICTURE if pair.image_id is None else Reason.NO_TEXT
            faults[pair.pair_id] = (reason, f"image {pair.image_id}")
        else:
            of_image.setdefault(pair.image_id, []).append(at)
    advance(len(faults))
    missing = pictures.missing(list(of_image))
    for image_id, members in of_image.items():
        fault = missing.get(image_id) or pictures.fault(image_id)
        if fault is not None:
            faults |= {pairs[at].pair_id: (fault, f"image {image_id}") for at in members}
            advance(len(members))
            continue
        picture = scorer.read_picture(pictures.batch([image_id]).to(opened.device))
        texts = [tokens[at] for at in members]
        for batch in text_batches(
            texts, opened.options.batch_size, opened.device, np.array(members, dtype=np.int64)
        ):
            pooled = scorer.pool(scorer.read_texts(batch), picture).float()
            units = functional.normalize(pooled, dim=-1).cpu().numpy()
            vectors |= dict(zip(batch.columns.tolist(), units, strict=True))
            advance(len(batch.columns))
    order = sorted(vectors)
    rows = [_row_of(PAIR, pairs[at]) for at in order]
    return _rows(rows, [vectors[at] for at in order], _rejects(faults))


def _row_of(kind: str, pair: Pair) -> dict[str, Any]:
    return {"kind": kind, "image_id": pair.image_id, "pair_id": pair.pair_id, "text": pair.text}


def _rejects(faults: dict[str, tuple[Reason, str | None]]) -> Rejects:
    return [reject(STAGE, key, reason, detail) for key, (reason, detail) in faults.items()]


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
