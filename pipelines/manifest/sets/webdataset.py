"""Reads WebDataset tars and img2dataset's folders: image, caption and metadata share a key."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cleaning import NamedClaims, note_repairs, validate_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.flags import add_source
from vlmill.pipelines.manifest.reading.json_text import parse_json
from vlmill.pipelines.manifest.reading.sources import Folder, Remarks, Source
from vlmill.pipelines.manifest.reading.tars import MAX_MEMBER, Member, read_members
from vlmill.pipelines.manifest.reading.unpacking import open_tar
from vlmill.pipelines.manifest.sets.conceptual_captions import url_aliases
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.names import IMAGE_ENDINGS
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

TARS = (".tar", ".tar.gz", ".tgz")
Parts = dict[str, bytes | Drop]  # of a sample: ending -> content


def _add_arguments(p: argparse.ArgumentParser) -> None:
    add_source(p, "webdataset")
    p.add_argument("--split", metavar="NAME", help="split of all rows (default: null)")
    p.add_argument(
        "--txt-lines", action="store_true", help="treat each line of a .txt as a separate caption"
    )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    folders = (p for p in folder.root.iterdir() if p.is_dir() and p.name.isdecimal())
    paths = folder.files(*TARS) or sorted(folders)  # of img2dataset's format `files`
    if not paths:
        raise folder.lacks("*.tar, nor folders 00000/ of img2dataset")
    sources = tuple(Source(path=p, name=p.name, size=_size(p)) for p in paths)
    expected = {s.name: e for s in sources if (e := _successes(s)) is not None}
    return Reading(
        sources=sources, entries=lambda: _entries(sources, args), expected=expected, own_images=True
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(1 for _ in path.iterdir())


def _successes(source: Source) -> Expected | None:
    """Returns the images that img2dataset records as downloaded into a shard."""
    path = source.path.parent / f"{source.path.name.split('.')[0]}_stats.json"
    try:
        rows = json.loads(path.read_bytes()[:MAX_MEMBER])["successes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # not img2dataset's, or not finished
    return Expected(rows=rows, source=path.name) if isinstance(rows, int) else None


def _entries(sources: tuple[Source, ...], args: argparse.Namespace) -> Iterator[Entry]:
    claims = NamedClaims()
    for source in sources:
        samples = _tar_samples(source) if source.path.is_file() else _folder_samples(source)
        for key, parts in samples:
            entry, dropped = _entry(source, key, parts, args, claims)
            yield entry
            yield from dropped


def _tar_samples(source: Source) -> Iterator[tuple[str, Parts]]:
    """Yields the samples of a tar: consecutive members with the same key."""
    with open_tar(source.path) as tar:
        yield from group_members(read_members(tar))


def _folder_samples(source: Source) -> Iterator[tuple[str, Parts]]:
    files = sorted(path for path in source.path.iterdir() if path.is_file())
    yield from group_members(Member(path.name, _content(path)) for path in files)


def _content(path: Path) -> bytes | Drop:
    size = path.stat().st_size
    if size > MAX_MEMBER:
        return Drop(Reason.IMAGE_TOO_LARGE, f"{size} bytes, at most {MAX_MEMBER}")
    return path.read_bytes()


def group_members(members: Iterator[Member]) -> Iterator[tuple[str, Parts]]:
    """Groups members by consecutive keys: a name up to the first dot of its last part.

    Names that begin with ``__`` or have no dot are not samples.
    """
    current, parts = "", Parts()
    for member in members:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if name.startswith("__") or not dot or not stem:
            continue
        key = folder + slash + stem
        if key != current:
            if parts:
                yield current, parts
            current, parts = key, {}
        parts.setdefault(ending.lower(), member.content)
    if parts:
        yield current, parts


def _entry(
    source: Source, key: str, parts: Parts, args: argparse.Namespace, claims: NamedClaims
) -> tuple[Entry, list[Entry]]:
    """Yields a sample's entry, and one for each dropped caption."""
    name = f"{source.name}:{key}"
    image_id = f"{args.source}/{key}"
    content = next((parts[e] for e in parts if f".{e}" in IMAGE_ENDINGS), None)
    about = _metadata(parts, source.remarks)
    texts = _texts(parts, about, lines=args.txt_lines)
    drop = next((value for value in (content, about, texts) if isinstance(value, Drop)), None)
    if drop is None and content is None:
        drop = Drop(Reason.BAD_ROW, f"no image among .{', .'.join(parts)}"[:200])
    if drop is None:
        assert isinstance(content, bytes) and isinstance(texts, list)
        drop = claims.claim(image_id, f"{compute_image_id(content)}\0{texts}")
    if drop is not None:
        return Entry(key=name, group=source.name, rows=drop), []
    assert isinstance(content, bytes) and isinstance(about, dict) and isinstance(texts, list)
    url = about["url"] if isinstance(about.get("url"), str) else None
    captions = [(k, text) for k, text in enumerate(texts) if isinstance(text, str)]
    lost = [(k, text) for k, text in enumerate(texts) if isinstance(text, Drop)]
    rows = [_pair(image_id, k, text, url, args) for k, text in captions]
    image = ListedImage(
        image_id=image_id,
        content=content,
        url=url,
        aliases=url_aliases(url) if url else (),
        alone=True,
    )
    notes = tuple(note for _, text in captions for note in note_repairs(text, text)) + _padded(
        about
    )
    entry = Entry(
        key=name,
        group=source.name,
        rows=tuple((PAIRS, row) for row in rows),
        images=(image,),
        notes=notes,
    )
    return entry, [Entry(key=f"{name}.{k}", group="", rows=drop) for k, drop in lost]


def _pair(
    image_id: str, k: int, text: str, url: str | None, args: argparse.Namespace
) -> dict[str, Any]:
    return {
        "pair_id": f"{image_id}#{k}",
        "image_id": image_id,
        "text": text,
        "source": args.source,
        "split": args.split,
        "image_url": url,
    }


def _metadata(parts: Parts, remarks: Remarks) -> dict[str, Any] | Drop:
    content = parts.get("json", b"{}")
    if isinstance(content, Drop):
        return content
    try:
        about = parse_json(content, remarks)
    except ValueError as error:
        return Drop(Reason.BAD_ROW, f"its .json is not JSON: {error}")
    return about if isinstance(about, dict) else Drop(Reason.BAD_ROW, "its .json is not an object")


def _texts(parts: Parts, about: dict[str, Any] | Drop, *, lines: bool) -> list[str | Drop] | Drop:
    """Returns the captions of the .txt, else of the metadata; a Drop if no caption is valid."""
    content = parts.get("txt", parts.get("caption"))
    if isinstance(content, Drop):
        return content
    if content is not None:
        try:
            published: object = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return Drop(Reason.BAD_ENCODING, "its .txt is not UTF-8")
    else:
        published = about.get("caption") if isinstance(about, dict) else None
        if published is None:
            return Drop(Reason.EMPTY_TEXT, "neither a .txt nor a caption in its .json")
    several = lines and isinstance(published, str)
    each = [line for line in str(published).split("\n") if line.strip()] if several else [published]
    texts = [validate_text(line) for line in each]
    if any(isinstance(text, str) for text in texts):
        return texts
    return next((text for text in texts if isinstance(text, Drop)), Drop(Reason.EMPTY_TEXT))


def _padded(about: dict[str, Any]) -> tuple[str, ...]:
    """Returns a note if img2dataset, as by default, made the image a square with white borders."""
    width, height, before = (about.get(n) for n in ("width", "height", "original_width"))
    padded = before is not None and width == height and before != width
    return ("padded or resized by img2dataset (boxes and sizes are of that square)",) * padded


WEBDATASET = DataSet(
    about="""\
WebDataset shards (and img2dataset's folders) as pairs and images: members 000000007.jpg, .txt,
.json with the same key are a sample if they are consecutive; the caption is the .txt, else
`caption` of the .json. image_id is <source>/<key>. A repeated key is `duplicate` or
`id_conflict`.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("source", "split", "txt_lines"),
)
