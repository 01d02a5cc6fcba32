"""Plans where images come from: files, folders, globs, lists of paths, tars and ``images``
tables.

The arguments are resolved once into a plan, a list of images in a fixed order; bytes are read when
an image is processed. A plan takes about 400 bytes per image.
"""

import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from vlmill.extract.images import discovery
from vlmill.extract.images.tar import MAX_KEY, BrokenArchive, Member, NotATar, id_in, members
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.paths import expand_braces, matches, readable, to_path
from vlmill.runtime.files.reading import find_shards, read_group
from vlmill.runtime.files.remote import RemotePath, is_remote
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.formats import format_name, is_tar, other_name
from vlmill.schemas.names import without_ending
from vlmill.schemas.tables import IMAGES

FILE, ROW, MEMBER, HELD = "file", "row", "member", "held"
BROKEN, MISSING, REPEATED = "broken", "missing", "repeated"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputImage:
    """Identifies a planned image: a file, a row of a table, or a member of a tar.

    ``broken``, ``missing`` and ``repeated`` are not images: the unreadable rest of an archive, an
    image that another table names, and one whose id is already in the plan. They are planned in
    order to be counted.
    """

    path: str
    image_id: str | None = None  # None: the SHA-256 of the bytes, known when they have been read
    group: int = 0  # of a table; of a tar's member, its offset
    row: int = 0  # of a table's group; of a tar's member, its size
    kind: str = FILE
    name: str = ""  # of a tar's member
    detail: str = ""  # the problem of an archive; the source of a repeated id

    @property
    def key(self) -> str:
        """Returns the name by which rejects call the image."""
        return self.source if self.image_id is None else self.image_id

    @property
    def source(self) -> str:
        """Returns where the image is: its file, with a member's name or a table's row."""
        if self.name:
            return f"{self.path}/{self.name}"
        is_row = self.path.endswith(".parquet")
        return f"{self.path}, row {self.row} of row group {self.group}" if is_row else self.path


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldImage(InputImage):
    """Holds an image whose bytes are in memory, from a request. ``path`` is only its name."""

    data: bytes
    kind: str = HELD


def plan_images(
    arguments: Sequence[str], ids: str = "auto", skipped: discovery.Skipped | None = None
) -> list[InputImage]:
    """Returns all images, in the arguments' order and sorted within each. Raises InputError.

    ``ids`` defines the image_id of a file or of a tar's member. "content": the SHA-256 of its
    bytes; "name": the name without extension, for a member with its folders; "auto": the name of a
    member, the content of a file. Rows of a table have their own. ``skipped`` counts files and
    folders that were seen and not planned.
    """
    skipped = discovery.Skipped() if skipped is None else skipped
    plan: list[InputImage] = []
    progress = Progress(total=None, unit="image", label="planning")
    with closing(progress):
        for argument in arguments:
            planned_before = len(plan)
            for image in find_images(argument, skipped, is_only=len(arguments) == 1):
                plan.append(with_id(image, ids))
                progress.advance()
            if len(plan) == planned_before:
                note = f" ({skipped.summary()})" if skipped.summary() else ""
                raise InputError(
                    f"INPUT {argument}: no images there{note}; give image files, a folder or a "
                    "glob of them, a .txt list of paths, a .tar, or a table of images"
                )
    return list(mark_repeats(plan))


def mark_repeats(plan: Iterable[InputImage]) -> Iterator[InputImage]:
    """Yields the plan with the first image of every id unchanged, and later ones as ``repeated``.

    Ids known to the plan count from their first appearance, even if that image fails, so any part
    of a plan can be computed without the others.
    """
    first_images: dict[str, InputImage] = {}
    for image in plan:
        first = image if image.image_id is None else first_images.setdefault(image.image_id, image)
        if first is image:
            yield image
        else:
            yield dataclasses.replace(image, kind=REPEATED, detail=first.source)


def with_id(image: InputImage, ids: str) -> InputImage:
    """Returns the image with the id that ``ids`` defines."""
    if image.kind == FILE and ids == "name":
        name = without_ending(to_path(image.path).name)
        return dataclasses.replace(image, image_id=usable_id(name))
    if image.kind == MEMBER and ids == "content":
        return dataclasses.replace(image, image_id=None)
    return image


def usable_id(name: str) -> str | None:
    """Returns the name, if it can be an id: UTF-8 of a bounded length."""
    try:
        return name if 0 < len(name.encode()) <= MAX_KEY else None
    except UnicodeEncodeError:
        return None


def is_table(argument: str) -> bool:
    """Returns whether an argument is a table of images only: its folder, or its files."""
    path = to_path(argument)
    if path.is_dir():
        return any(path.glob("images-*.parquet"))
    return argument.endswith(".parquet")


def find_images(
    argument: str, skipped: discovery.Skipped, *, is_only: bool
) -> Iterator[InputImage]:
    """Yields the images of one argument.

    A tar that cannot be read is an error if it is the only argument, else a broken image.
    """
    path = to_path(argument)
    if is_table(argument) and (path.is_dir() or path.is_file()):
        yield from list_rows(find_shards(path if path.is_dir() else argument, IMAGES, "INPUT"))
    elif path.is_dir():
        for name, kind in discovery.walk(path, skipped):
            yield from images_in(name, kind, skipped)
    elif path.is_file():
        yield from images_of_file(argument, skipped, is_only=is_only)
    elif names := names_in_braces(argument):
        for name in names:
            yield from find_images(name, skipped, is_only=False)
    else:
        for match in matches(argument, recursive=True):
            yield from images_matched(match, argument, skipped)


def names_in_braces(argument: str) -> list[str]:
    """Returns the names that an argument's braces expand to; none without braces, or if no such
    file exists. Raises InputError if some are missing.
    """
    names = expand_braces(argument)
    missing = [name for name in names if not matches(name)] if len(names) > 1 else names
    if len(missing) == len(names):
        return []
    if missing:
        raise InputError(
            f"INPUT {argument}: {len(missing)} of its {len(names)} files are missing, the first is "
            f"{missing[0]}; give the files that exist"
        )
    return names


def images_of_file(
    argument: str, skipped: discovery.Skipped, *, is_only: bool
) -> Iterator[InputImage]:
    """Yields the images of a file that the user named: any file except a list or a tar is treated
    as an image, so that other files are rejected.
    """
    by_name, head = discovery.kind_by_name(argument), b""
    if by_name is not discovery.Kind.IMAGE:
        with suppress(OSError):  # reading it later returns the reason
            head = discovery.read_head(argument)
    if by_name is discovery.Kind.IMAGE or format_name(head):
        yield InputImage(path=argument)
    elif argument.endswith(".txt"):
        yield from (InputImage(path=path) for path in discovery.read_path_list(to_path(argument)))
    elif by_name is discovery.Kind.TAR or is_tar(head):
        if is_only:
            yield from list_members(argument, skipped)
        else:
            yield from images_in(argument, discovery.Kind.TAR, skipped)
    elif (name := other_name(head) or "").endswith("archive"):
        raise InputError(f"INPUT {argument} is a {name}; unpack it, and give the folder or a .tar")
    else:
        yield InputImage(path=argument)


def images_matched(match: Path, pattern: str, skipped: discovery.Skipped) -> Iterator[InputImage]:
    """Yields the images of a file that a glob matches; a .txt is a list if the glob names .txt."""
    name = str(match)
    if name.endswith(".parquet"):
        yield from list_rows(find_shards(name, IMAGES, "INPUT"))
    elif name.endswith(".txt") and pattern.endswith(".txt"):
        yield from images_of_file(name, skipped, is_only=False)
    elif match.is_dir():
        if "**" not in pattern:  # which also matches the content of the folder
            skipped.add(discovery.Why.FOLDER)
    elif (kind := kind_of_match(match, skipped)) is not None:
        yield from images_in(name, kind, skipped)


def kind_of_match(match: Path, skipped: discovery.Skipped) -> discovery.Kind | None:
    """Returns whether a match of a glob is an image or a tar; counts it if it is neither."""
    if not isinstance(match, RemotePath):
        return discovery.kind_of_file(str(match), skipped)
    kind = discovery.kind_by_name(match.name)
    if kind is None and match.suffix:
        skipped.add(discovery.Why.OTHER, match.name)
        return None
    return kind or discovery.Kind.IMAGE


def images_in(name: str, kind: discovery.Kind, skipped: discovery.Skipped) -> Iterator[InputImage]:
    """Yields the images of a file among many; a tar that cannot be read is a broken one."""
    if kind is discovery.Kind.IMAGE:
        yield InputImage(path=name)
        return
    try:
        yield from list_members(name, skipped)
    except NotATar as error:
        print(f"WARNING: {error}", file=sys.stderr)
        yield InputImage(path=name, kind=BROKEN, detail=str(error))


def list_members(path: str, skipped: discovery.Skipped) -> Iterator[InputImage]:
    """Yields the images of a tar. Its unreadable rest counts as one broken image, unless it is only
    the rest of an image, which is rejected when it is read.
    """
    member: Member | None = None
    archive_path = to_path(path)
    try:
        for member in members(archive_path, skipped):
            yield InputImage(
                path=path,
                image_id=usable_id(id_in(member.name)),
                group=member.offset,
                row=member.size,
                kind=MEMBER,
                name=member.name,
            )
    except BrokenArchive as error:
        print(f"WARNING: {error}", file=sys.stderr)
        if member is None or member.offset + member.size <= archive_path.stat().st_size:
            yield InputImage(path=path, kind=BROKEN)


def list_rows(shards: Sequence[Path]) -> Iterator[InputImage]:
    """Yields the rows of images tables."""
    for shard in shards:
        with pq.ParquetFile(readable(shard)) as file:
            for group in range(file.num_row_groups):
                ids = read_group(file, shard, group, IMAGES, ["image_id"]).column(0)
                for row, image_id in enumerate(ids.to_pylist()):
                    yield InputImage(
                        path=str(shard), image_id=image_id, group=group, row=row, kind=ROW
                    )


def plan_digest(plan: Sequence[InputImage]) -> str:
    """Returns a digest of a plan: its images, their order and the sizes of the files.

    A killed run continues only on the same plan.
    """
    digest = hashlib.sha256()
    sizes = sizes_in_stores({image.path for image in plan if is_remote(image.path)})
    for image in plan:
        if image.path not in sizes:
            exists = os.path.isfile(image.path)
            sizes[image.path] = os.path.getsize(image.path) if exists else -1
        location = (image.kind, image.group, image.row)
        line = (image.path, image.image_id, *location, sizes[image.path])
        digest.update(f"{line!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def sizes_in_stores(paths: Iterable[str]) -> dict[str, int]:
    """Returns the sizes of files in stores, -1 for missing ones, by a listing of each folder."""
    folders = {to_path(path).parent for path in paths}
    there = {
        str(path): status.st_size
        for folder in folders
        if isinstance(folder, RemotePath)
        for path, status in folder.entries()
    }
    return {path: there.get(path, -1) for path in paths}
