"""Selects planned images: images of pairs, images with given boxes, and images with known ids."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from vlmill.extract.images.discovery import Skipped, Why
from vlmill.extract.images.given_boxes import GivenBoxes
from vlmill.extract.images.plan import BROKEN, FILE, MEMBER, MISSING, InputImage, usable_id
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.row_index import ABSENT, IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

SAMPLES = 3  # names of each side that a message shows
HASH = re.compile("[0-9a-f]{64}")


def select_pair_images(
    plan: Sequence[InputImage], pairs: str, skipped: Skipped | None = None
) -> list[InputImage]:
    """Returns the images of a table of pairs, followed by missing ones; ``skipped`` counts the
    others.

    An image with another id in the pairs (46.jpg for 46) gets that id, and this is printed. Raises
    InputError if the images have no id before they are read, if no image is named, or if the match
    is ambiguous.
    """
    pair_ids: dict[str, None] = {}
    for batch in iter_batches(pairs, PAIRS, columns=["image_id"], flag="--pairs"):
        # Without null: a text-only row has no image.
        pair_ids.update(dict.fromkeys(batch.column(0).drop_null().to_pylist()))
    unread = (p for p in plan if p.image_id is None and p.kind != BROKEN)
    if any(usable_id(p.name or Path(p.path).name) for p in unread):
        raise InputError(
            "--pairs: the images are files, whose ids are known only after reading "
            "them; give --ids name "
            "if the pairs call them by their names, or a table of images"
        )
    ids = list(dict.fromkeys(p.image_id for p in plan if p.image_id is not None))
    join = Join(IdIndex.from_ids(ids), asking="--pairs", holding="INPUT")
    positions = join.find(list(pair_ids)).tolist()
    names = {
        ids[position]: name
        for name, position in zip(pair_ids, positions, strict=True)
        if position != ABSENT
    }
    if pair_ids and not names:
        raise InputError(
            f"--pairs {pairs}: none of its {len(pair_ids)} images is among the {len(ids)} of "
            "INPUT: "
            f"{join.samples(list(pair_ids))}; give the images of these pairs (--ids sets the "
            "id of a file)"
        )
    if summary := join.summary():
        print_status(f"note: {summary}; rows get the pairs' ids")
    chosen = [
        p if p.image_id is None else dataclasses.replace(p, image_id=names[p.image_id])
        for p in plan
        if p.kind == BROKEN or p.image_id in names
    ]
    if skipped is not None:
        skipped.counts[Why.UNPAIRED] += len(plan) - len(chosen)
    absent = (
        name for name, position in zip(pair_ids, positions, strict=True) if position == ABSENT
    )
    return chosen + [InputImage(path=pairs, image_id=name, kind=MISSING) for name in absent]


def with_missing_boxes(
    plan: Sequence[InputImage], boxes: GivenBoxes, source: str
) -> list[InputImage]:
    """Returns the plan, and as missing the entries of a box file for which it has no image.

    An entry that looks like a SHA-256 may belong to any file, and is not counted here. Raises
    InputError if no entry names an image.
    """
    met = {boxes.find_key(p.image_id, p.path) for p in plan}
    absent = [name for name in boxes.entries if name not in met and not HASH.fullmatch(name)]
    if len(absent) == len(boxes.entries) and plan:
        names = [p.image_id or Path(p.path).name for p in plan[:SAMPLES]]
        raise InputError(
            f"--boxes {source}: none of its {len(absent)} image_ids matches one of the {len(plan)} "
            f"images: --boxes has {', '.join(absent[:SAMPLES])}, INPUT has {', '.join(names)}; "
            "name the entries by file name or by id"
        )
    return [*plan, *(InputImage(path=source, image_id=name, kind=MISSING) for name in absent)]


def require_ids(plan: Sequence[InputImage]) -> None:
    """Raises InputError for images whose ids are known only when they have been read.

    Which of two equal files gets the row would depend on shards that another process makes.
    """
    if any(p.image_id is None and p.kind in (FILE, MEMBER) for p in plan):
        raise InputError(
            "--part: the images are files, whose ids are known only after reading them; "
            "give --ids name, "
            "a .tar or a table of images"
        )
