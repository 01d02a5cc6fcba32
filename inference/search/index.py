"""Searches, saves and opens FAISS indexes of vectors.

N vectors, Q queries, P their width, K results of a query. Scores are inner products of unit
vectors: cosines. ``building`` makes indexes, ``indexing`` adds and removes rows.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vlmill.inference.search.table import ABOUT, Matrix
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, record_files, require_unchanged
from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

INDEX, ROWS, SETTINGS = "index.faiss", "rows.parquet", "index.json"
NEIGHBOURS = "neighbours.npy"  # with `--neighbours`: the nearest rows of each row
FORMAT = 1
MEASURED_TOP = 10  # results of a query whose recall is measured
EXACT_SHARE = 50  # with a filter, rows are compared exactly if at most 1 of 50 is allowed

NEIGHBOUR = np.dtype([("row", "<i4"), ("score", "<f4")])

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Holds ``scores`` float32 [Q, K] in descending order, and ``positions`` int64 [Q, K] in the
    index; -1 where an approximate index, or the filter, has no more.
    """

    scores: NDArray[np.float32]
    positions: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """Holds a FAISS index, its rows with their columns, and its settings.

    ``neighbours`` [N, K] has the nearest rows of each row, other than itself: ``row`` int32, -1 for
    none, and ``score`` float32.
    """

    faiss_index: Any
    about: pa.Table
    settings: Mapping[str, Any]
    neighbours: NDArray[Any] | None = None

    def __len__(self) -> int:
        return int(self.faiss_index.ntotal)

    @property
    def width(self) -> int:
        """Returns P."""
        return int(self.faiss_index.d)

    @property
    def columns(self) -> list[str]:
        """Returns the columns that a filter can name."""
        return [name for name in self.about.column_names if name not in ABOUT]

    def nearest(self, queries: Matrix, top: int, allowed: Mask | None = None) -> Answers:
        """Returns the ``top`` best vectors of each query; equal scores keep the order of the
        vectors. ``allowed`` [N] marks the rows that may be results.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        count = min(top, len(self))
        if allowed is None:
            # The candidates of `pq` are a multiple of the results: of at least as many as measured.
            results = self.faiss_index.search(queries, max(count, min(MEASURED_TOP, len(self))))
        else:
            results = search_allowed(self, queries, count, allowed)
        scores, positions = results
        if (scores[:, 1:] < scores[:, :-1]).all():  # no equal scores
            return Answers(scores=scores[:, :count], positions=positions[:, :count])
        order = np.lexsort((positions, -scores), axis=1)[:, :count]
        return Answers(
            scores=np.take_along_axis(scores, order, axis=1),
            positions=np.take_along_axis(positions, order, axis=1),
        )

    def vectors(self, positions: NDArray[np.int64]) -> Matrix:
        """Returns the vectors of rows, [n, P]."""
        index = self.faiss_index
        if self.settings["type"] == "ivf" and index.direct_map.no():
            index.make_direct_map()  # 8 bytes per row: the cells list rows, not the reverse
        rows = np.empty((len(positions), self.width), dtype=np.float32)
        for row, position in zip(rows, positions.tolist(), strict=True):
            index.reconstruct(position, row)
        return rows


def search_allowed(index: SearchIndex, queries: Matrix, count: int, allowed: Mask) -> Any:
    """Searches the rows of a mask: scores and positions [Q, count], -1 for missing results.

    Few rows are compared exactly; else the index is searched for more results than requested.
    """
    matches = int(np.count_nonzero(allowed))
    if index.settings["type"] == "flat" or matches <= max(count, len(allowed) // EXACT_SHARE):
        return search_exactly(index, queries, count, allowed)
    width = min(len(index), 2 * count * len(allowed) // matches + MEASURED_TOP)
    scores, positions = index.faiss_index.search(queries, width)
    hidden = (positions < 0) | ~allowed[positions]
    if (np.count_nonzero(~hidden, axis=1) < count).any():
        return search_exactly(index, queries, count, allowed)
    order = np.argsort(hidden, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)


def search_exactly(index: SearchIndex, queries: Matrix, count: int, allowed: Mask) -> Any:
    """Compares all rows of a mask: scores and positions [Q, count]."""
    import faiss as typed_faiss

    faiss: Any = typed_faiss  # its stubs lack the wrappers for Python
    selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
    faiss_index = index.faiss_index
    if index.settings["type"] == "ivf":
        parameters = faiss.SearchParametersIVF(sel=selector, nprobe=faiss_index.nlist)
        return faiss_index.search(queries, count, params=parameters)
    return flat_part(faiss_index).search(
        queries, count, params=faiss.SearchParameters(sel=selector)
    )


def flat_part(index: Any) -> Any:
    """Returns the part of a FAISS index that has the vectors themselves, an IndexFlat."""
    import faiss

    part = getattr(index, "refine_index", None) or getattr(index, "storage", None)
    return index if part is None else faiss.downcast_index(part)


def save_index(index: SearchIndex, folder: Path) -> None:
    """Writes the index; the folder appears completely or not at all."""
    import faiss

    with atomic_folder(folder, last=SETTINGS) as temporary:
        faiss.write_index(index.faiss_index, str(temporary / INDEX))
        pq.write_table(index.about, temporary / ROWS)
        names = [INDEX, ROWS]
        if index.neighbours is not None:
            np.save(temporary / NEIGHBOURS, index.neighbours, allow_pickle=False)
            names.append(NEIGHBOURS)
        files = record_files(temporary, names)
        content = {**index.settings, "software": SOFTWARE, FILE_RECORD: files}
        (temporary / SETTINGS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_settings(folder: str | Path) -> dict[str, Any]:
    """Reads the settings of a saved index. Raises InputError if it has none, or another format."""
    try:
        settings: dict[str, Any] = read_json(to_path(folder) / SETTINGS)
        if settings["index"] != FORMAT:
            raise InputError(
                f"--index {folder} has format {settings['index']}, this vlmill reads {FORMAT}"
            )
        return settings
    except OSError as error:
        raise missing_index(folder, error) from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_index(folder, error) from None


def open_index(folder: str | Path) -> SearchIndex:
    """Opens an index of :func:`save_index`.

    Raises InputError for a folder without an index, or with changed files, because FAISS trusts its
    input.
    """
    import faiss

    path = to_path(folder)
    settings = read_settings(folder)
    try:
        require_unchanged(path, parse_record(settings[FILE_RECORD]), f"--index {folder}")
        index = faiss.read_index(os.fspath(path / INDEX))
        columns = [*ABOUT, *settings.get("columns", ())]
        about = pq.read_table(readable(path / ROWS)).select(columns).combine_chunks()
        neighbours = None
        if NEIGHBOURS in settings[FILE_RECORD]:
            neighbours = np.load(path / NEIGHBOURS, allow_pickle=False)
            if neighbours.dtype != NEIGHBOUR or neighbours.shape[:1] != (len(about),):
                raise ValueError(f"{NEIGHBOURS} has not the neighbours of each row")
        sizes = (index.d, index.ntotal, about.num_rows)
        if sizes != (settings["width"], settings["vectors"], settings["vectors"]):
            raise ValueError(f"its sizes {sizes} differ from the recorded ones")
    except FileNotFoundError as error:
        raise missing_index(folder, error) from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, pa.ArrowException) as error:
        raise damaged_index(folder, error) from None
    return SearchIndex(faiss_index=index, about=about, settings=settings, neighbours=neighbours)


def missing_index(folder: str | Path, error: Exception) -> InputError:
    """Returns the error for a folder without an index."""
    return InputError(
        f"--index {folder} has no index ({error}); build one with --vectors TABLE --save-index DIR"
    )


def damaged_index(folder: str | Path, error: Exception) -> InputError:
    """Returns the error for an index that cannot be read."""
    reason = " ".join(str(error).split())[:300]
    return InputError(f"--index {folder} is damaged ({reason}); build it again")
