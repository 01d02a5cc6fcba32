"""Imports the list of nearest images of ViLBERT's authors: ``hard_negative.pkl``.

N images, K entries per row. A pickled dict: ``train_image_list`` has the N ids (whole numbers,
29,000 of Flickr30k), ``train_hard_pool`` [N, K] the indices of the nearest in that list, stored as
floats, the image itself first. InterBERT's retrieval reads the same file.
"""

import argparse
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.nearest_images.report import finish, write_report
from vlmill.pipelines.nearest_images.splits import STAGE
from vlmill.runtime.files.digests import file_input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_job
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import Shard, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import NEIGHBOURS, REJECTS

IDS, POOL = "train_image_list", "train_hard_pool"
MOST_BYTES = 256 << 20  # the published file has 23 MB


def run_import(args: argparse.Namespace) -> int:
    """Writes the published list of nearest images as ``neighbours``."""
    path, output = to_path(args.published), to_path(args.output)
    published = read_pool(path, args.id_prefix)
    entry = file_input("--import", path)
    settings = {"top": args.top, "id_prefix": args.id_prefix, "import_sha256": entry.digest}
    state = prepare_job(args, STAGE, settings)
    if state is not State.FINISHED:
        rows = list(neighbour_rows(published, args.top))
        producer = {"job": STAGE, **settings}
        lists = [row for row in rows if "neighbour_ids" in row]
        rejects = [row for row in rows if "reason" in row]
        shards: list[Shard] = [
            write_shard(output, NEIGHBOURS, lists, producer=producer),
            write_shard(output, REJECTS, rejects, producer=producer),
        ]
        counts = Counter(str(row["reason"]) for row in rejects)
        write_report(output, len(lists), counts, settings, args.images)
        write_manifest(output, shards, job=STAGE, settings=settings, inputs=[entry])
    return finish(output, state, args.top)


@dataclass(frozen=True, kw_only=True)
class PublishedPool:
    """Holds the file's content: ids, and each one's nearest as indices [N, K] of the ids."""

    image_ids: list[str]
    pool: npt.NDArray[Any]


def read_pool(path: Path, id_prefix: str) -> PublishedPool:
    """Reads the file as plain data without running code in it; prepends ``id_prefix`` to each id.

    Raises InputError for any other pickle.
    """
    # Slow to import: the rows of all models.
    from vlmill.models.convert.plain_pickle import BadPickle, load, plain_value
    from vlmill.models.convert.unpickling import check_bounds

    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InputError(f"--import {path} has {size} bytes; at most {MOST_BYTES} are read")
        raw = path.read_bytes()
        check_bounds(raw)
        content = load(io.BytesIO(raw), size)
    except BadPickle as error:
        raise InputError(f"--import {path} is not a list of nearest images: {error}") from None
    except FileNotFoundError:
        raise InputError(f"--import {path}: no such file") from None
    if not isinstance(content, dict) or not {IDS, POOL} <= content.keys():
        raise InputError(f"--import {path}: must be a dict with {IDS} and {POOL}")
    image_ids = _read_ids(content[IDS], path, id_prefix)
    pool = plain_value(content[POOL])
    if not isinstance(pool, np.ndarray) or pool.ndim != 2 or pool.dtype.kind not in "iuf":
        raise InputError(f"--import {path}: {POOL} must be an array [N, K] of numbers")
    if len(pool) != len(image_ids):
        raise InputError(
            f"--import {path}: {len(pool)} rows of {POOL} for {len(image_ids)} ids of {IDS}"
        )
    return PublishedPool(image_ids=image_ids, pool=pool)


def _read_ids(raw_ids: Any, path: Path, id_prefix: str) -> list[str]:
    from vlmill.models.convert.plain_pickle import plain_value

    array = plain_value(raw_ids)
    values = array.ravel().tolist() if isinstance(array, np.ndarray) else raw_ids
    if not isinstance(values, list):
        raise InputError(f"--import {path}: {IDS} must be a list of ids")
    values = [plain_value(value) for value in values]
    if not all(isinstance(v, int | str) and not isinstance(v, bool) for v in values):
        raise InputError(f"--import {path}: an id of {IDS} is neither a whole number nor text")
    ids = [f"{id_prefix}{value}" for value in values]
    if not ids or len(set(ids)) < len(ids):
        raise InputError(f"--import {path}: {IDS} must have ids, each once")
    return ids


def neighbour_rows(published: PublishedPool, top: int) -> Iterator[dict[str, object]]:
    """Yields a row of ``neighbours`` for each image, or of ``rejects`` if its list is broken.

    An image is not in its own list. The file has no distances, so they are null.
    """
    count = len(published.image_ids)
    for number, image_id in enumerate(published.image_ids):
        positions = published.pool[number]
        in_list = (positions >= 0) & (positions < count)  # NaN fails both
        if not in_list.all() or (positions != np.floor(positions)).any():
            detail = f"its list has an index that is not a whole number below {count}"
            yield reject(STAGE, image_id, Reason.BAD_RECORD, detail)
            continue
        neighbours = [
            position for position in positions.astype(np.int64).tolist() if position != number
        ]
        if len(set(neighbours)) < len(neighbours):
            yield reject(STAGE, image_id, Reason.BAD_RECORD, "its list has an image twice")
            continue
        ids = [published.image_ids[position] for position in neighbours[:top]]
        yield {"image_id": image_id, "neighbour_ids": ids, "distances": None}
