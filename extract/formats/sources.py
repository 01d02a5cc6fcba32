"""Finds the feature files that the arguments of an import name, and their formats by content."""

import os
import zipfile
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vlmill.extract.formats import cocobu, hdf5, lmdb, npy, npz, oscar, tsv, vlbert
from vlmill.extract.formats.arrays import NPY_MAGIC, ZIP_ERRORS, ZIP_MAGIC
from vlmill.extract.formats.folders import walk_files, walk_names
from vlmill.extract.formats.names import FORMATS, READERS
from vlmill.extract.formats.sizes import ENDING
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.files.paths import matches
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.formats import HEAD_BYTES, format_name, other_name
from vlmill.schemas.names import IMAGE_ENDINGS
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count

# Endings of files that belong to other files or are not features: folders are read without them.
OTHER_ENDINGS = (
    ".lineidx",
    ".pkl",
    ".txt",
    ".md",
    ".yaml",
    ".yml",
    ".lock",
    "-lock",
    *IMAGE_ENDINGS,
)
# Endings of files that only complete files of features, also if a glob matches both.
COMPANIONS = (
    *("lock.mdb", "-lock", ".lineidx", hdf5.INDEX, ENDING),
    *("imageid2idx.json", "classes.json", "attributes.json"),
)
MAX_JSON = 64 * 2**20
TORCH = (".pt", ".pth")
PICKLE = b"\x80"  # the first byte of protocols above 1
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks


@dataclass(frozen=True)
class Source:
    """Describes a file, or a folder with one file per image.

    ``format`` is its TSV layout, else its reader in READERS.
    """

    path: Path
    format: str

    @property
    def reader(self) -> str:
        """Returns the family whose reader reads it."""
        return "tsv" if self.format in tsv.FIELDS else self.format


def find_sources(arguments: Sequence[str | Path], name: str | None) -> list[Source]:
    """Returns the sources of all arguments: files, folders and globs, in their order.

    ``name`` is one of FORMATS; with None the content decides. Raises InputError for a missing path,
    an unknown format, or a format other than ``name``.
    """
    paths = [path for argument in arguments for path in expand(argument)]
    all_paths = set(paths)
    paths = [path for path in paths if not completes_other(path, all_paths)]
    found = [source for path in paths for source in sources_of(path, name)]
    return drop_companions(list(dict.fromkeys(found)))


def expand(argument: str | Path) -> list[Path]:
    """Returns the paths that an argument names. Raises InputError without a path."""
    path = Path(argument)
    if not str(argument):
        raise InputError("FILE is empty; give feature files or folders")
    if not path.name or path.name == "..":  # "." has no name, and nothing next to it
        path = Path(os.path.abspath(path))
    if path.exists():
        return [path]
    matched_paths = matches(str(argument))
    paths = [match for match in matched_paths if match.name[:1] != "." and match.exists()]
    if not paths:
        raise InputError(f"FILE {path}: no such file; give feature files or folders")
    return paths


def sources_of(path: Path, name: str | None) -> list[Source]:
    """Returns the sources of one path. Raises InputError."""
    found = [Source(path, recognised)] if (recognised := recognise(path)) else []
    if not found and path.is_dir():
        found = list(sources_in(path))
    if name is None:
        if not found:
            raise InputError(f"FILE {path}: {describe(path)}; known formats: {', '.join(READERS)}")
        return found
    reader = FORMATS[name].reader
    if wrong := [source for source in found if source.reader != reader]:
        raise InputError(
            f"FILE {wrong[0].path} is {wrong[0].format} by its content, not {name}; remove "
            "--format, or give the right one"
        )
    format_ = name if reader == "tsv" else reader
    return [Source(source.path, format_) for source in found] or [Source(path, format_)]


def recognise(path: Path) -> str | None:
    """Returns the format of a file, or of the folder of an LMDB; None for other formats."""
    if lmdb.is_lmdb(path):
        return "lmdb"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(ZIP_MAGIC):
        return recognise_zip(path)
    if head.startswith(NPY_MAGIC):
        return "npy"
    if hdf5.is_hdf5(path):
        return "hdf5"
    if path.suffix == vlbert.ENDING and is_vlbert(path):
        return "vl-bert"
    if format_name(head) or (not head.isascii() and other_name(head)):
        return None
    if b"\0" in head.split(b"\n", 1)[0]:
        return tsv.sniff_format(path, only_ascii=True)
    return tsv.sniff_format(path) or ("oscar" if oscar.sniff_kind(path) else None)


def recognise_zip(path: Path) -> str | None:
    """Returns whether a zip holds arrays or JSON; for a damaged zip its name decides."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [m.filename for m in archive.infolist() if not m.is_dir()]
    except ZIP_ERRORS:
        return "npz" if path.suffix == npz.ENDING else "vl-bert" if path.suffix == ".zip" else None
    if any(vlbert.is_member(name) for name in names):
        return "vl-bert"
    is_arrays = path.suffix == npz.ENDING or (names and all(n.endswith(".npy") for n in names))
    return "npz" if is_arrays else None


def is_vlbert(path: Path) -> bool:
    """Returns whether a JSON file has the features of one image."""
    try:
        return vlbert.has_layout(read_json(path, max_bytes=MAX_JSON))
    except (OSError, ValueError):
        return False


def sources_in(folder: Path) -> Iterator[Source]:
    """Yields the sources of a folder: its files, and itself for formats with one file per image."""
    per_image = dict[str, None]()
    first_json: Path | None = None
    unknown = list[Path]()
    beside = cache(features_beside)
    files = ((base, name) for base, names in walk_names(folder, "") for name in names)
    for base, name in files:
        ending = os.path.splitext(name)[1].lower()
        if ending == npz.ENDING:
            per_image["npz"] = None
            continue
        if ending == npy.ENDING:
            if "npy" not in per_image and beside(Path(base)) is None:
                per_image["npy"] = None
            continue
        file = Path(base, name)
        if ending == vlbert.ENDING:
            first_json = first_json or file
        elif file.name == lmdb.FILE:
            yield Source(file.parent, "lmdb")
        elif file.name != "lock.mdb" and not file.name.lower().endswith(OTHER_ENDINGS):
            if (format_ := recognise(file)) is None:
                unknown.append(file)
                continue
            per_image.setdefault("", None)
            yield Source(file, format_)
    if per_image and unknown:
        print_status(
            f"note: FILE {folder}: {format_count(len(unknown), 'file')} not imported, such as "
            f"{unknown[0].name}: {describe(unknown[0])}"
        )
    yield from (Source(folder, name) for name in per_image if name)
    if not per_image and first_json is not None and is_vlbert(first_json):
        yield Source(folder, "vl-bert")


def completes_other(path: Path, paths: Set[Path]) -> bool:
    """Returns whether a path only completes a file or a folder of ``paths``: a lock, an index, ids,
    names, sizes, the record of an export, the boxes of cocobu features.

    Raises InputError for boxes of features that are not among ``paths``.
    """
    exports = [f"{path.stem}{end}" for end in ("", cocobu.ATT)] if path.suffix == ".json" else []
    is_record = any(path.with_name(name) in paths for name in exports)
    if is_record or (path.name.endswith(COMPANIONS) and len(paths) > 1):
        return path.is_file()
    features = features_beside(path)
    if features is None or not path.is_dir():
        return False
    if features not in paths:
        raise InputError(
            f"FILE {path} has the boxes or the means of the features in {features}; give that "
            "folder, and the boxes are found"
        )
    return True


def features_beside(folder: Path) -> Path | None:
    """Returns the folder of cocobu features next to a folder of their boxes or means."""
    for end in (cocobu.BOX, cocobu.FC):
        if folder.name.endswith(end):
            features = folder.with_name(f"{folder.name.removesuffix(end)}{cocobu.ATT}")
            return features if features.is_dir() else None
    return None


def drop_companions(sources: list[Source]) -> list[Source]:
    """Returns the sources without the files of Oscar and MMF that only complete other files."""
    paths = {s.path for s in sources}
    sources = [s for s in sources if s.format != "npy" or npy.completed_file(s.path) not in paths]
    kinds = {s.path: oscar.sniff_kind(s.path) for s in sources if s.format == "oscar"}
    kept = []
    for source in sources:
        kind = kinds.get(source.path)
        others = {kind for path, kind in kinds.items() if path.parent == source.path.parent}
        if kind == oscar.FEATURES and oscar.OBJECTS in others:
            print_status(
                f"note: FILE {source.path} is not imported: the predictions in its folder have "
                "the features"
            )
        elif kind in (None, oscar.FEATURES, oscar.OBJECTS) or others <= {oscar.LABELS, oscar.SIZES}:
            kept.append(source)
    return kept


def describe(path: Path) -> str:
    """Returns a description of a path with an unknown format."""
    if (path / MANIFEST).is_file():
        return "it is an output of vlmill already; other commands take it as it is"
    if path.is_dir():
        first = next(walk_files(path, ""), None)
        what = "it has no files" if first is None else f"{first.name}: {describe(first)}"
        return f"no feature file in this folder ({what})"
    if not path.is_file():
        return "it is a link to nothing, or not a regular file"
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head:
        return "it is empty"
    if not any(head):
        return f"it begins with {len(head):,} zeros; copy or download it again"
    if head.startswith(UTF_16):
        return "it is text in UTF-16; convert it to UTF-8"
    if path.suffix in TORCH:
        return "it is a file of PyTorch; write its features in one of the known formats"
    if name := format_name(head):
        return f"it is {name}, not a file of features"
    if name := other_name(head):
        remedy = "; unpack it first" if name.endswith("archive") else ""
        article = "an" if name[0] in "AHx" else "a"  # HTML page, xz archive
        return f"it is {article} {name}, not a file of features{remedy}"
    if head[:1] == PICKLE:
        return "it is a Python pickle; write its features in one of the known formats"
    if head.lstrip()[:1] in (b"{", b"["):
        return "it is JSON, without the features of an image"
    fields = format_count(head.split(b"\n", 1)[0].count(b"\t") + 1, "field")
    return f"not a file of features (its first line has {fields} separated by tabs, not 6, 7 or 10)"
