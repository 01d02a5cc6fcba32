"""Finds the id of an image in a set of ids: an equal id, else another name of the image."""

from pathlib import Path

from vlmill.runtime.readers.row_index import IdIndex
from vlmill.schemas.errors import InputError


def find_similar_id(index: IdIndex, name: str, holding: str) -> str | None:
    """Returns the id that equals or may match ``name``; None without one.

    ``holding`` is the source of the ids, for the InputError if two could match.
    """
    if name in index:
        return name
    ids = list(index.find_matches(name))
    if len(ids) > 1:
        raise InputError(
            f"{holding}: {name} may be {ids[0]} or {ids[1]}; call the image by one of these ids"
        )
    return ids[0] if ids else None


def find_file_id(index: IdIndex, path: str, holding: str) -> str | None:
    """Returns the id that names a file: by its path, by its name alone, or by that without any
    ending. Raises InputError if it is ambiguous.
    """
    name, stem = Path(path).name, Path(path).stem
    matching_id = find_similar_id(index, path, holding) or find_similar_id(index, name, holding)
    return matching_id or (stem if stem in index else None)
