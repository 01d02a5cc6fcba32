"""Plans where pictures come from: files, folders, globs, lists of paths, tars and ``images``
tables.

The arguments are resolved once into a plan, a list of pictures in a fixed order; bytes are read
when a picture's turn comes. A plan takes about 300 bytes a picture.
"""

import dataclasses
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from vlmill.extract.pictures.given_boxes import GivenBoxes
from vlmill.extract.pictures.tar import MAX_KEY, BrokenArchive, members
from vlmill.schemas.console.command import say
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.paths import matches, path_of, readable
from vlmill.schemas.files.reading import find_shards, iter_batches, read_group
from vlmill.schemas.files.remote import RemotePath, is_remote
from vlmill.schemas.names import PICTURE_ENDINGS
from vlmill.schemas.readers.joining import Join
from vlmill.schemas.readers.row_index import ABSENT, IdIndex
from vlmill.schemas.tables import IMAGES, PAIRS

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")  # compressed: refused
HASH = re.compile("[0-9a-f]{64}")
FILE, ROW, MEMBER, HELD = "file", "row", "member", "held"
BROKEN, MISSING, REPEATED = "broken", "missing", "repeated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """Holds a planned picture: a file, a row of a table, or a member of a tar.

    ``broken``, ``missing`` and ``repeated`` are none: an archive's rest that cannot be read, a
    picture that another table names, and one whose id comes earlier in the plan. They are planned
    so that they are counted.
    """

    path: str
    image_id: str | None = None  # None: the SHA-256 of the bytes, known when they have been read
    group: int = 0  # of a table; of a tar's member, its offset
    row: int = 0  # of a table's group; of a tar's member, its size
    kind: str = FILE

    @property
    def key(self) -> str:
        """Returns the name by which rejects call the picture."""
        return self.path if self.image_id is None else self.image_id


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPicture(Picture):
    """Holds a picture whose bytes are at hand: one that was sent. ``path`` is only its name."""

    data: bytes
    kind: str = HELD


def plan_pictures(arguments: Sequence[str], ids: str = "auto") -> list[Picture]:
    """Returns all pictures, in the arguments' order and sorted within each. Raises InputError.

    ``ids``: what the image_id of a file or of a tar's member is. "content": the SHA-256 of its
    bytes; "name": the name without ending, of a member with its folders; "auto": the name of a
    member, the content of a file. A table's rows have their own.
    """
    plan: list[Picture] = []
    for argument in arguments:
        listed = [with_id(picture, ids) for picture in pictures_of(argument)]
        if not listed:
            raise InputError(
                f"INPUT {argument}: no pictures there; give picture files, a folder or a glob of "
                "them, a .txt list of paths, a .tar, or a table of images"
            )
        plan += listed
    return list(repeats_marked(plan))


def repeats_marked(plan: Iterable[Picture]) -> Iterator[Picture]:
    """Yields the plan with every id's first picture as it is, and later ones as ``repeated``.

    Ids that the plan knows count from their first appearance, whatever becomes of that picture: so
    any part of a plan can be made without the others.
    """
    seen: set[str] = set()
    for picture in plan:
        if picture.image_id is not None and picture.image_id in seen:
            yield dataclasses.replace(picture, kind=REPEATED)
            continue
        if picture.image_id is not None:
            seen.add(picture.image_id)
        yield picture


def with_id(picture: Picture, ids: str) -> Picture:
    """Returns the picture with the id that ``ids`` says."""
    if picture.kind == FILE and ids == "name":
        return dataclasses.replace(picture, image_id=usable_id(path_of(picture.path).stem))
    if picture.kind == MEMBER and ids == "content":
        return dataclasses.replace(picture, image_id=None)
    return picture


def usable_id(name: str) -> str | None:
    """Returns the name, if it can be an id: UTF-8 of a bounded length."""
    try:
        return name if 0 < len(name.encode()) <= MAX_KEY else None
    except UnicodeEncodeError:
        return None


def only_of_pairs(plan: Sequence[Picture], pairs: str) -> list[Picture]:
    """Returns the pictures that a table of pairs points to; those that are not there come last, as
    missing.

    A picture that the pairs call by another id (46.jpg for 46) gets theirs, which is said. Raises
    InputError where pictures have no id before they are read, where none is named, and where two
    could be meant.
    """
    named: dict[str, None] = {}
    for batch in iter_batches(pairs, PAIRS, columns=["image_id"], flag="--pairs"):
        # Without null: a text alone has no picture.
        named.update(dict.fromkeys(batch.column(0).drop_null().to_pylist()))
    if any(p.image_id is None and p.kind != BROKEN for p in plan):
        raise InputError(
            "--pairs: the pictures are files, and have no id before they are read; give --ids name "
            "if the pairs call them by their names, or a table of images"
        )
    ids = list(dict.fromkeys(p.image_id for p in plan if p.image_id is not None))
    join = Join(IdIndex.of(ids), asking="--pairs", holding="INPUT")
    places = join.find(list(named)).tolist()
    names = {ids[at]: name for name, at in zip(named, places, strict=True) if at != ABSENT}
    if named and not names:
        raise InputError(
            f"--pairs {pairs}: none of its {len(named)} pictures is among the {len(ids)} of INPUT: "
            f"{join.samples(list(named))}; give the pictures of these pairs (--ids says what the "
            "id of a file is)"
        )
    if summary := join.summary():
        say(f"note: {summary}; rows get the pairs' ids")
    chosen = [
        p if p.image_id is None else dataclasses.replace(p, image_id=names[p.image_id])
        for p in plan
        if p.kind == BROKEN or p.image_id in names
    ]
    absent = (name for name, at in zip(named, places, strict=True) if at == ABSENT)
    return chosen + [Picture(path=pairs, image_id=name, kind=MISSING) for name in absent]


def with_missing_boxes(plan: Sequence[Picture], boxes: GivenBoxes, source: str) -> list[Picture]:
    """Returns the plan, and as missing the entries of a box file for which it has no picture.

    An entry that is called like a SHA-256 may belong to any file, and is not counted here.
    """
    met = {boxes.key_of(p.image_id, p.path) for p in plan}
    absent = [name for name in boxes.entries if name not in met and not HASH.fullmatch(name)]
    return [*plan, *(Picture(path=source, image_id=name, kind=MISSING) for name in absent)]


def require_ids(plan: Sequence[Picture]) -> None:
    """Raises InputError for pictures whose ids are known only when they have been read.

    Which of two equal files gets the row would depend on shards that another process makes.
    """
    if any(p.image_id is None and p.kind in (FILE, MEMBER) for p in plan):
        raise InputError(
            "--part: the pictures are files, and have no id before they are read; give --ids name, "
            "a .tar or a table of images"
        )


def is_table(argument: str) -> bool:
    """Says whether an argument is a table of images alone: its folder, or its files."""
    path = path_of(argument)
    if path.is_dir():
        return any(path.glob("images-*.parquet"))
    return argument.endswith(".parquet")


def pictures_of(argument: str) -> Iterator[Picture]:
    """Yields the pictures of one argument."""
    path = path_of(argument)
    if path.is_dir():
        if is_table(argument):
            yield from rows_of(find_shards(path, IMAGES, "INPUT"))
        else:
            for name in walk(path):
                yield from members_of(name) if name.endswith(TARS) else [Picture(path=name)]
        return
    for name in [argument] if path.is_file() else map(str, matches(argument, recursive=True)):
        if name.endswith(".parquet"):
            yield from rows_of(find_shards(name, IMAGES, "INPUT"))
        elif name.endswith(".txt"):
            yield from listed(path_of(name))
        elif name.endswith(TARS):
            yield from members_of(name)
        elif path_of(name).is_file():
            yield Picture(path=name)


def walk(folder: Path) -> Iterator[str]:
    """Pictures and tars below a folder, sorted; links to folders are not followed."""
    if isinstance(folder, RemotePath):
        for path, _ in folder.below():
            if is_picture(path.name):
                yield str(path)
        return
    for base, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if is_picture(name):
                yield os.path.join(base, name)


def is_picture(name: str) -> bool:
    """Says whether a file is a picture or a tar of pictures by its name."""
    return name.lower().endswith((*PICTURE_ENDINGS, *TARS)) and not name.startswith(".")


def listed(path: Path) -> Iterator[Picture]:
    """Yields the paths of a list, one a line, relative to the list's folder."""
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if line.strip():
            yield Picture(path=str(path.parent / line.strip()))


def members_of(path: str) -> Iterator[Picture]:
    """Yields the pictures of a tar; what cannot be read of it counts as one that is broken."""
    try:
        for member in members(path_of(path)):
            if member.suffix in PICTURE_ENDINGS:
                yield Picture(
                    path=path,
                    image_id=usable_id(member.key),
                    group=member.offset,
                    row=member.size,
                    kind=MEMBER,
                )
    except BrokenArchive as error:
        print(f"WARNING: {error}", file=sys.stderr)
        yield Picture(path=path, kind=BROKEN)


def rows_of(shards: Sequence[Path]) -> Iterator[Picture]:
    """Yields the rows of images tables."""
    for shard in shards:
        with pq.ParquetFile(readable(shard)) as file:
            for group in range(file.num_row_groups):
                ids = read_group(file, shard, group, IMAGES, ["image_id"]).column(0)
                for row, image_id in enumerate(ids.to_pylist()):
                    yield Picture(
                        path=str(shard), image_id=image_id, group=group, row=row, kind=ROW
                    )


def plan_digest(plan: Sequence[Picture]) -> str:
    """Identifies a plan: which pictures, in which order, and how large the files are.

    A killed run continues only on the same plan.
    """
    digest = hashlib.sha256()
    sizes = sizes_in_stores({picture.path for picture in plan if is_remote(picture.path)})
    for picture in plan:
        if picture.path not in sizes:
            exists = os.path.isfile(picture.path)
            sizes[picture.path] = os.path.getsize(picture.path) if exists else -1
        place = (picture.kind, picture.group, picture.row)
        line = (picture.path, picture.image_id, *place, sizes[picture.path])
        digest.update(f"{line!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def sizes_in_stores(paths: Iterable[str]) -> dict[str, int]:
    """The sizes of files in stores, -1 of what is not there, by a listing of each folder."""
    folders = {path_of(path).parent for path in paths}
    there = {
        str(path): status.st_size
        for folder in folders
        if isinstance(folder, RemotePath)
        for path, status in folder.entries()
    }
    return {path: there.get(path, -1) for path in paths}
