"""Adds rows to an index and removes rows from it, without training it again.

Recall is measured again afterwards: vectors unlike the ones of its training may lower it.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vlmill.inference.search.building import flat_matrix, measured_index
from vlmill.inference.search.index import Mask, SearchIndex, flat_part
from vlmill.inference.search.table import Matrix, Vectors, get_row_key
from vlmill.runtime.files.paths import to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count

ROWS_AT_ONCE = 65_536


def append_rows(index: SearchIndex, vectors: Vectors, about: pa.Table) -> SearchIndex:
    """Adds vectors with their columns ``about``, and replaces rows that have the same id.

    Raises InputError for vectors of another checkpoint or width.
    """
    if vectors.origin["weights_sha256"] != index.settings["weights_sha256"]:
        raise InputError(
            f"--append has vectors of checkpoint {vectors.origin['checkpoint']}, the index those "
            f"of {index.settings['checkpoint']}, with other weights; embed with one"
        )
    if vectors.matrix.shape[1] != index.width:
        raise InputError(f"--append has vectors {vectors.matrix.shape[1]} wide, not {index.width}")
    new_keys = set(row_keys(about))
    same = np.fromiter((key in new_keys for key in row_keys(index.about)), np.bool_, len(index))
    index.faiss_index.add(vectors.matrix)
    rows = pa.concat_tables([index.about, about.cast(index.about.schema)]).combine_chunks()
    replaced = np.concatenate([same, np.zeros(len(about), dtype=np.bool_)])
    return remove_rows(with_rows(index, rows), replaced)


def remove_rows(index: SearchIndex, removed: Mask) -> SearchIndex:
    """Removes the marked rows [N]. Raises InputError for `hnsw`, and if no row would be left."""
    if not removed.any():
        return index
    if index.settings["type"] == "hnsw":
        raise InputError(
            "an index of --type hnsw cannot lose or replace rows; build it again, or with --type "
            "pq, ivf or flat"
        )
    if removed.all():
        raise InputError("no row of the index would be left; build another one")
    positions = np.flatnonzero(removed)
    faiss_index = index.faiss_index
    if index.settings["type"] == "pq":
        import faiss

        parts: list[Any] = [faiss.downcast_index(faiss_index.base_index), flat_part(faiss_index)]
        for part in parts:
            part.remove_ids(positions)
        faiss_index.ntotal = faiss_index.base_index.ntotal
    elif index.settings["type"] == "ivf":
        remove_from_cells(faiss_index, removed)
    else:
        faiss_index.remove_ids(positions)
    return with_rows(index, index.about.filter(pa.array(~removed)).combine_chunks())


def remove_from_cells(faiss_index: Any, removed: Mask) -> None:
    """Removes rows of `ivf`, and gives the others their new positions."""
    import faiss as typed_faiss

    faiss: Any = typed_faiss  # its stubs lack this class
    faiss_index.set_direct_map_type(faiss.DirectMap.NoMap)  # made again when a vector is read
    faiss_index.remove_ids(np.flatnonzero(removed))
    new_positions = np.cumsum(~removed) - 1
    lists = faiss_index.invlists
    for cell in range(lists.nlist):
        if size := lists.list_size(cell):
            ids: NDArray[np.int64] = faiss.rev_swig_ptr(lists.get_ids(cell), size)
            ids[:] = new_positions[ids]


def with_rows(index: SearchIndex, about: pa.Table) -> SearchIndex:
    """Returns the index with other rows, without stored neighbours."""
    settings = {**index.settings, "vectors": about.num_rows}
    return replace(index, about=about, settings=settings, neighbours=None)


def row_keys(about: pa.Table) -> Iterable[tuple[str, str]]:
    """Yields the kind and id of rows."""
    for batch in about.select(["kind", "image_id", "pair_id"]).to_batches(ROWS_AT_ONCE):
        yield from map(get_row_key, batch.to_pylist())


def rows_of_ids(index: SearchIndex, file: str) -> Mask:
    """Marks the rows [N] with an image_id or pair_id of a file, one per line.

    Raises InputError for a file that cannot be read or names no row of the index.
    """
    try:
        lines = to_path(Path(file)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"--delete {file}: {error}; give a text file of ids") from None
    ids = {line for line in lines if line}
    columns = [index.about.column(name).to_pylist() for name in ("image_id", "pair_id")]
    rows = zip(*columns, strict=True)
    marks = np.fromiter((not ids.isdisjoint(row) for row in rows), np.bool_, len(index))
    if not marks.any():
        raise InputError(f"--delete {file}: none of its {format_count(len(ids), 'id')} is there")
    return marks


def measured_again(index: SearchIndex) -> SearchIndex:
    """Returns a changed index with its recall for its own vectors."""
    matrix = all_vectors(index)
    return measured_index(index, matrix, matrix, kind=index.settings["of"])


def all_vectors(index: SearchIndex) -> Matrix:
    """Returns the vectors of an index, [N, P]."""
    if index.settings["type"] == "ivf":
        return index.vectors(np.arange(len(index)))
    return flat_matrix(index)
