"""ImageNet-22k as pictures alone, for BEiT's stage of VLMo: no text, and the class is not used.

Folders of synsets, tars of synsets, a tar of those, or WebDataset shards.
"""

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.cleaning import NamedClaims
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Picture, Reading
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.tars import Member, members_of
from vlmill.pipelines.manifest.reading.unpacking import DAMAGED, inner_tar, opened_tar, plain_files
from vlmill.pipelines.manifest.sets.webdataset import grouped
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.remote import RemotePath
from vlmill.schemas.ids import image_id_of
from vlmill.schemas.names import PICTURE_ENDINGS, without_ending
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES

NAME = "imagenet22k"
GROUP = "pictures of all synsets"
SYNSET = re.compile(r"n\d{8}", re.ASCII)
# Which release a folder is of is not known: the number of its synsets is nearer to one of them.
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
        own_pictures=True,
        says=(f"note: {len(paths)} {'synsets' if synsets else 'tars'}",),
    )


def _size(path: Path) -> int:
    """The bytes of a tar; a folder has none of its own."""
    return path.stat().st_size if path.is_file() else 0


def _names_in(folder: Path) -> list[str]:
    """Returns the files of a folder, sorted, without a request or a look at each."""
    if isinstance(folder, RemotePath):
        return sorted(path.name for path, _ in folder.entries())
    with os.scandir(folder) as listed:
        return sorted(one.name for one in listed if one.is_file(follow_symlinks=False))


def _folder_entries(sources: tuple[Source, ...]) -> Iterator[Entry]:
    """Yields the pictures folder by folder. Names begin with the synset's, so that one folder's
    names are remembered, and of all folders those alone that do not.
    """
    others: dict[str, str] = {}
    for source in sources:
        named: dict[str, str] = {}
        for name in _names_in(source.path):
            if name.lower().endswith(PICTURE_ENDINGS):
                path, image_id = f"{source.name}/{name}", _image_id(name)
                earlier = (named if name.startswith(source.name) else others).setdefault(
                    image_id, path
                )
                if earlier != path:
                    drop = Drop(Reason.ID_CONFLICT, f"{image_id} came earlier: {earlier}")
                    yield Entry(key=path, group=GROUP, rows=drop)
                    continue
                picture = Picture(image_id=image_id, paths=(path,), alone=True)
                yield Entry(key=path, group=GROUP, rows=(), pictures=(picture,))


def _tar_entries(sources: tuple[Source, ...]) -> Iterator[Entry]:
    claims = NamedClaims()
    for source in sources:
        for where, member in _members(source.path):
            key = f"{where}:{member.name}"
            image_id = _image_id(member.name)
            drop = member.content if isinstance(member.content, Drop) else None
            if not isinstance(member.content, Drop):
                drop = claims.claim(image_id, image_id_of(member.content))
            if drop is not None or isinstance(member.content, Drop):
                assert drop is not None
                yield Entry(key=key, group=GROUP, rows=drop)
                continue
            picture = Picture(image_id=image_id, content=member.content, alone=True)
            yield Entry(key=key, group=GROUP, rows=(), pictures=(picture,))


def _image_id(name: str) -> str:
    return f"{NAME}/{without_ending(name.rpartition('/')[2])}"


def _members(path: Path) -> Iterator[tuple[str, Member]]:
    """Yields the pictures of a tar, and of the tars in it: one level, as published."""
    if _holds_tars(path):
        yield from _inner_members(path)
        return
    with opened_tar(path) as tar:
        for key, parts in grouped(members_of(tar)):
            for ending, content in parts.items():
                if f".{ending}" in PICTURE_ENDINGS:
                    yield path.name, Member(f"{key}.{ending}", content)


def _holds_tars(path: Path) -> bool:
    with opened_tar(path) as tar:
        first = next(plain_files(tar), None)
        return first is not None and first.name.endswith(".tar")


def _inner_members(path: Path) -> Iterator[tuple[str, Member]]:
    with opened_tar(path) as outer:
        for info in plain_files(outer):
            if not info.name.endswith(".tar"):
                continue
            where = f"{path.name}/{info.name}"
            try:
                with inner_tar(outer, info) as inner:
                    yield from ((where, member) for member in members_of(inner))
            except DAMAGED as error:
                if isinstance(error, InputError):
                    raise
                said = f"{where}: no readable tar, or cut ({error})"
                yield where, Member(info.name, Drop(Reason.BAD_ROW, said))


IMAGENET22K = DataSet(
    title="ImageNet-22k, pictures alone",
    about="""\
ImageNet (Deng et al. 2009) as `images`: folders n01440764/ of pictures, tars of synsets, a tar of
such tars, or WebDataset shards, on request from image-net.org (research only). A stage that trains
on pictures alone reads it by --images, without pairs. The full set holds ILSVRC2012's validation
pictures: exclude them before measuring on ImageNet-1k. image_id is imagenet22k/n01440764_10026.""",
    tables=(IMAGES,),
    open=_open,
)
