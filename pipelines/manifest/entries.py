"""Defines a published data set: the files to open and the entries read from them.

A data set is one file of ``sets/``: it lists its tables and opens its files as a :class:`Reading`.
The entries are in the order of the published rows; each has its table rows or a
:class:`~vlmill.runtime.units.funnel.Drop`. Everything else is shared: writing, images, exclusion,
counts, reports, resuming.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.files.kept_values import ValueStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.tables import Table

Rows = tuple[tuple[Table, dict[str, Any]], ...]
FIRST_ENTRIES = 100  # entries that show whether images are next to the files
IMAGE_STAGE = "pictures"
"""The group under which the images that entries name are counted, each once."""


# Not frozen: a run creates millions, and a frozen dataclass takes three times as long to create.
@dataclass(kw_only=True, slots=True)
class ListedImage:
    """Holds an image that an entry refers to.

    ``paths`` are names under the folder of images, the likeliest first. ``content`` has its bytes
    if the file of entries contains them. ``width`` and ``height`` are the published size of the
    stored image. ``aliases`` are its other names (``coco/000000203564``, ``flickr/2345``). ``uri``
    is the published name of its file, if the table of images keeps it. ``alone``: no other entry
    names the image, so no state is kept for it.
    """

    image_id: str
    paths: tuple[str, ...] = ()
    url: str | None = None
    aliases: tuple[str, ...] = ()
    width: int | None = None
    height: int | None = None
    content: bytes | None = None
    uri: str | None = None
    alone: bool = False

    def pack(self) -> tuple[Any, ...]:
        """Returns the image as strings and numbers for :class:`ValueStore`, without its content."""
        sizes = (self.width, self.height)
        return self.image_id, self.paths, self.url, self.aliases, *sizes, self.uri

    @classmethod
    def unpack(cls, values: tuple[Any, ...]) -> "ListedImage":
        """Returns the image that :func:`pack` has packed."""
        image_id, paths, url, aliases, width, height, uri = values
        return cls(
            image_id=image_id,
            paths=paths,
            url=url,
            aliases=aliases,
            width=width,
            height=height,
            uri=uri,
        )


@dataclass(kw_only=True, slots=True)
class Entry:
    """Holds a published row.

    ``key`` identifies it (``captions_train2014.json:17``). ``group`` is its group in the comparison
    with the published count; "" is not compared. ``rows`` has the table rows, or a Drop. ``notes``
    count repairs (``bad_unicode``).
    """

    key: str
    group: str
    rows: Rows | Drop
    images: tuple[ListedImage, ...] = ()
    notes: tuple[str, ...] = ()


FOOTER = "the file's footer"  # a source of counts: the input itself


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Holds a published count of rows. Second-hand figures, only hints, are not ``verified``."""

    rows: int
    source: str
    verified: bool = True


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Holds a data set's opened files: ``sources`` are all files that determine its rows.

    ``entries`` starts over each time it is called. ``expected`` has the published count of each
    existing group. ``image_folders`` are the published folders of images below ``--input``: the
    table of images is written if one of them exists, if ``--images`` is given, or if
    ``own_images``. ``repeated_bytes``: images may be placeholders, the same bytes under many ids.
    ``tables`` restricts the data set's tables; ``files`` are small files to write next to the
    tables, by name; ``messages`` are lines to print; ``resolved`` are options resolved from the
    files (a column that was found by its name).
    """

    sources: tuple[Source, ...]
    entries: Callable[[], Iterator[Entry]]
    expected: Mapping[str, Expected] = field(default_factory=dict)
    image_folders: tuple[str, ...] = ()
    own_images: bool = False
    repeated_bytes: bool = False
    tables: tuple[Table, ...] | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)


def first_paths(entries: Iterator[Entry]) -> Iterator[tuple[str, ...]]:
    """Yields the paths of the images of the first entries, to check where images are."""
    for entry in islice(entries, FIRST_ENTRIES):
        yield from (image.paths for image in entry.images)


def kept_images() -> ValueStore[ListedImage]:
    """Returns an empty store of images by number; a file may list millions of images."""
    return ValueStore(ListedImage.pack, ListedImage.unpack)


def no_arguments(_: argparse.ArgumentParser) -> None:
    """Adds no flags, for a data set without its own."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Defines a published data set. ``about`` is its help: files, sources, licence.

    ``tables`` are the tables that it writes in addition to images, aliases and rejects; the first
    one has its entries. ``open`` raises InputError for a wrong folder. ``options`` are the names of
    the data set's flags, which determine the rows. ``papers`` are quotations of papers about the
    data set.
    """

    about: str
    tables: tuple[Table, ...]
    open: Callable[[Folder, argparse.Namespace], Reading]
    add_arguments: Callable[[argparse.ArgumentParser], None] = no_arguments
    options: tuple[str, ...] = ()
    papers: tuple[tuple[str, str], ...] = ()
