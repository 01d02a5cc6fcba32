"""Reads ImageNet-22k as images only, for VLMo's BEiT stage: no text, and the class is not used.

Inputs are folders of synsets, tars of synsets, a tar of such tars, or WebDataset shards.
"""

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlmill.pipelines.manifest.cleaning import NamedClaims
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.tars import Member, read_members
from vlmill.pipelines.manifest.reading.unpacking import DAMAGED, inner_tar, open_tar, plain_files
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.names import without_ending
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES

NAME = "imagenet22k"
GROUP = "images of all synsets"
SIDECARS = (".cls", ".json", ".txt", ".xml")  # extensions published next to an image
SYNSET = re.compile(r"n\d{8}", re.ASCII)
# A folder's release is unknown; the one with the nearest number of synsets is assumed.
RELEASES = {
    21_841: Expected(rows=14_197_122, source="Fall 2011, 21,841 synsets", verified=False),
    19_167: Expected(rows=13_150_000, source="Winter 2021, 19,167 synsets", verified=False),
}


def _open(folder: Folder, _: argparse.Namespace) -> Reading:
    synsets = sorted(p for p in folder.root.iterdir() if p.is_dir() and SYNSET.fullmatch(p.name))
    tars = folder.files(".tar")
    if not synsets and not tars:
        raise folder.lacks("folders n01440764/ of synsets, nor a tar")
    paths = synsets or tars
    sources = tuple(Source(path=p, name=p.name, size=_size(p)) for p in paths)
    entries = _folder_entries if synsets else _tar_entries
    expected = RELEASES.get(len(paths))
    return Reading(
        sources=sources,
        entries=lambda: entries(sources),
        expected={GROUP: expected} if expected is not None else {},
        own_images=True,
        messages=(
            f"note: {len(paths)} {'synsets' if synsets else 'tars'}",
            *_left_out(folder, paths),
        ),
    )


def _left_out(folder: Folder, paths: Sequence[Path]) -> tuple[str, ...]:
    """Returns a line on folders and tars of the data set that are not read."""
    candidates = [p.name for p in folder.root.iterdir() if p.is_dir() or p.name.endswith(".tar")]
    names = sorted({name for name in candidates if name[0] != "."} - {path.name for path in paths})
    preview = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    if not names:
        return ()
    return (f"warning: not read: {preview} (only folders n01440764/ of synsets, else tars, are)",)


def _size(path: Path) -> int:
    """Returns the bytes of a tar; None for a folder."""
    return path.stat().st_size if path.is_file() else 0


def _names_in(folder: Path) -> list[str]:
    """Returns the files and links of a folder, sorted, without a request for each."""
    if isinstance(folder, RemotePath):
        return sorted(path.name for path, _ in folder.entries())
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.is_dir())


def _is_image(name: str) -> bool:
    """Returns whether a file may be an image, with any extension; decoding confirms it."""
    base = name.rpartition("/")[2]
    return not base.startswith((".", "__")) and not base.lower().endswith(SIDECARS)


def _image_ids(name: str, synset: str) -> Iterator[str]:
    """Yields the id of an image, and an id with its synset if the name does not begin with the
    synset: another synset may have the same name.
    """
    stem = without_ending(name.rpartition("/")[2])
    yield f"{NAME}/{stem}"
    if not stem.startswith(synset):
        yield f"{NAME}/{synset}/{stem}"


def _folder_entries(sources: tuple[Source, ...]) -> Iterator[Entry]:
    """Yields the images folder by folder. Names begin with the synset's, so only one folder's names
    are stored, and from all folders the names that do not.
    """
    global_names: dict[str, str] = {}
    for source in sources:
        folder_names: dict[str, str] = {}
        for name in filter(_is_image, _names_in(source.path)):
            path = f"{source.name}/{name}"
            names = folder_names if name.startswith(source.name) else global_names
            ids = list(_image_ids(name, source.name))
            image_id = next(
                (candidate for candidate in ids if names.setdefault(candidate, path) == path), None
            )
            if image_id is None:
                drop = Drop(Reason.ID_CONFLICT, f"{ids[0]} came earlier: {names[ids[0]]}")
                yield Entry(key=path, group=GROUP, rows=drop)
                continue
            image = ListedImage(image_id=image_id, paths=(path,), alone=True)
            yield Entry(key=path, group=GROUP, rows=(), images=(image,))


def _tar_entries(sources: tuple[Source, ...]) -> Iterator[Entry]:
    claims = NamedClaims()
    for source in sources:
        for where, member in _members(source.path):
            key = f"{where}:{member.name}"
            image = _member_image(where, member, claims)
            if isinstance(image, Drop):
                yield Entry(key=key, group=GROUP, rows=image)
            else:
                yield Entry(key=key, group=GROUP, rows=(), images=(image,))


def _member_image(where: str, member: Member, claims: NamedClaims) -> ListedImage | Drop:
    if isinstance(member.content, Drop):
        return member.content
    folder = member.name.rpartition("/")[0] or where.removesuffix(".tar")
    drop: Drop | None = None
    for image_id in _image_ids(member.name, folder.rpartition("/")[2]):
        drop = claims.claim(image_id, compute_image_id(member.content))
        if drop is None:
            return ListedImage(image_id=image_id, content=member.content, alone=True)
        if drop.reason is Reason.DUPLICATE:
            break
    assert drop is not None
    return drop


def _members(path: Path) -> Iterator[tuple[str, Member]]:
    """Yields the images of a tar and of the tars in it, one level deep, as published."""
    if _holds_tars(path):
        yield from _inner_members(path)
        return
    with open_tar(path) as tar:
        yield from ((path.name, member) for member in read_members(tar) if _is_image(member.name))


def _holds_tars(path: Path) -> bool:
    with open_tar(path) as tar:
        first = next((info for info in plain_files(tar) if _is_image(info.name)), None)
        return first is not None and first.name.endswith(".tar")


def _inner_members(path: Path) -> Iterator[tuple[str, Member]]:
    with open_tar(path) as outer:
        for info in filter(lambda one: _is_image(one.name), plain_files(outer)):
            where = f"{path.name}/{info.name}"
            if not info.name.endswith(".tar"):
                drop = Drop(Reason.BAD_ROW, "not a tar, in a tar of tars")
                yield path.name, Member(info.name, drop)
                continue
            try:
                with inner_tar(outer, info) as inner:
                    members = (entry for entry in read_members(inner) if _is_image(entry.name))
                    yield from ((where, member) for member in members)
            except DAMAGED as error:
                if isinstance(error, InputError):
                    raise
                detail = f"{where}: not a readable tar, or cut ({error})"
                yield where, Member(info.name, Drop(Reason.BAD_ROW, detail))


IMAGENET22K = DataSet(
    about="""\
ImageNet (Deng et al. 2009) as `images`: folders n01440764/ of images, tars of synsets, a tar of
such tars, or WebDataset shards, on request from image-net.org (research only). A stage that trains
on images only reads it with --images, without pairs. The full set contains ILSVRC2012's validation
images: exclude them before you measure on ImageNet-1k. image_id is imagenet22k/n01440764_10026; if
two synsets share a name, the second is imagenet22k/<synset>/<name>. Files that begin with . or __,
and .cls, .json, .txt and .xml, are skipped; any other file is an image or a reject.""",
    tables=(IMAGES,),
    open=_open,
)
