"""Builds or changes the index of ``train-vl search``, with its columns, recall and neighbours.

Adding and removing rows does not train the index again. The recall is measured again afterwards,
because vectors unlike those of the training may lower it. N rows, P the width of a vector.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vlmill.inference.search.building import (
    build_index,
    find_neighbours,
    flat_matrix,
    measured_index,
)
from vlmill.inference.search.index import Mask, SearchIndex, flat_part
from vlmill.inference.search.table import (
    ABOUT,
    IMAGE,
    PAIR,
    TEXT,
    Matrix,
    Vectors,
    count_kinds,
    get_row_key,
    read_vectors,
)
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.paths import matches, readable, to_path
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.runtime.readers.row_index import ABSENT, IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.schemas.tables import PAIRS


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Holds the options of ``train-vl search``."""

    index: Path | None = None
    vectors: str | None = None
    of: str | None = None
    type: str = "flat"
    effort: int | None = None
    columns: Sequence[str] = ()
    columns_from: str | None = None
    neighbours: int | None = None
    append: str | None = None
    delete: str | None = None
    save_index: Path | None = None
    text: Sequence[str] = ()
    image: Sequence[str] = ()
    item: Sequence[str] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queries: str | None = None
    top: int = 10
    rerank: int | None = None
    reranker: Path | None = None
    regions: str | None = None
    images: str | None = None
    output: Path | None = None
    checkpoint: Path | None = None
    device: str = "cpu"
    search_device: str = "cpu"
    threads: int | None = None


KEYS = ("image_id", "pair_id")
MOST_COLUMNS = 64
ROWS_AT_ONCE = 65_536


def index_vectors(options: SearchOptions) -> SearchIndex:
    """Builds the index of ``--vectors``; measures an approximate one against all vectors."""
    assert options.vectors is not None
    kinds = count_kinds(options.vectors, "--vectors")
    indexed_kind = options.of or next((k for k in (IMAGE, PAIR, TEXT) if kinds.get(k)), None)
    if indexed_kind is None or not kinds.get(indexed_kind):
        there = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no row"
        raise InputError(
            f"--vectors {options.vectors}: no vectors for --of {indexed_kind}; it has {there}"
        )
    vectors = read_vectors(options.vectors, indexed_kind, kinds[indexed_kind], "--vectors")
    index = add_to_index(build_index(vectors, options.type, options.effort), options)
    # Queries of another kind are preferred: their distribution differs from the vectors'.
    other = next(
        (k for k in (TEXT, IMAGE, PAIR) if k != indexed_kind and kinds.get(k)), indexed_kind
    )
    query_vectors = vectors
    if other != indexed_kind:
        query_vectors = read_vectors(options.vectors, other, kinds[other], "--vectors")
    index = measured_index(
        index, vectors.matrix, query_vectors.matrix, kind=other, effort=options.effort
    )
    return store_neighbours(index, options.neighbours or 0)


def add_to_index(index: SearchIndex, options: SearchOptions) -> SearchIndex:
    """Returns the index with the columns that results can be filtered by."""
    if not options.columns:
        return index
    assert options.columns_from is not None
    about = add_columns(index.about, options.columns_from, options.columns)
    settings = {**index.settings, "columns": list(options.columns)}
    return replace(index, about=about, settings=settings)


def store_neighbours(index: SearchIndex, count: int) -> SearchIndex:
    """Returns the index with the neighbours of each row; shows progress."""
    if not count:
        return index
    with Progress(total=len(index), unit="row", label="neighbours") as progress:
        return find_neighbours(index, count, progress.advance)


def change_index(index: SearchIndex, options: SearchOptions) -> SearchIndex:
    """Removes and adds rows, and measures the index again."""
    stored = 0 if index.neighbours is None else index.neighbours.shape[1]
    if options.delete is not None:
        index = remove_rows(index, rows_of_ids(index, options.delete))
    if options.append is not None:
        kind = index.settings["of"]
        count = count_kinds(options.append, "--append").get(kind, 0)
        if not count:
            raise InputError(f"--append {options.append}: no vectors of {kind}s, as the index has")
        vectors = read_vectors(options.append, kind, count, "--append")
        about = vectors.about
        if index.columns:
            if options.columns_from is None:
                there = ", ".join(index.columns)
                raise InputError(f"--append: give --columns-from, the index has columns {there}")
            about = add_columns(about, options.columns_from, index.columns)
        index = append_rows(index, vectors, about)
    index = measured_again(index)
    return store_neighbours(index, stored if options.neighbours is None else options.neighbours)


def add_columns(about: pa.Table, argument: str, names: Sequence[str]) -> pa.Table:
    """Returns rows with columns of a Parquet table, as texts; null for rows that it lacks.

    The table has image_id, pair_id or both: its first row with the pair_id of a row is used, else
    the first with its image_id. Raises InputError for a table without these columns.
    """
    if taken := [name for name in names if name in ABOUT]:
        raise InputError(f"--columns {taken[0]}: the index has this column already")
    if len(names) > MOST_COLUMNS or len(set(names)) < len(names):
        raise InputError(f"--columns: expected at most {MOST_COLUMNS} different names")
    table = read_columns(argument, names)
    rows: pa.Array = pa.nulls(about.num_rows, pa.int64())
    for key in KEYS:
        if key in table.column_names:
            results = find_first(table.column(key), about.column(key))
            rows = pc.coalesce(results, rows)
    for name in names:
        about = about.append_column(name, table.column(name).combine_chunks().take(rows))
    return about.combine_chunks()


def find_first(known: pa.ChunkedArray, ids_to_find: pa.ChunkedArray) -> pa.Array:
    """Returns the first row of each ids_to_find id, null for an unknown one."""
    ids = known.cast(pa.large_string()).fill_null("").combine_chunks()
    index = IdIndex(ids)
    results = pa.array(index.find(ids_to_find.cast(pa.string()).fill_null("").to_pylist()))
    is_known = pc.and_(pc.not_equal(results, ABSENT), ids_to_find.is_valid().combine_chunks())
    return pc.if_else(is_known, results, None)


def read_columns(argument: str, names: Sequence[str]) -> pa.Table:
    """Reads the ids and some columns of Parquet files: of a folder's table `pairs`, a file or a
    glob. Raises InputError.
    """
    where = f"--columns-from {argument}"
    path = to_path(argument)
    if path.is_dir():
        paths = find_shards(argument, PAIRS, "--columns-from")
    else:
        paths = [path] if path.is_file() else matches(argument)
    if not paths:
        raise InputError(f"{where}: no file there; give a Parquet file, or a folder with pairs")
    batches = [batch for file in paths for batch in iter_columns(file, names, where)]
    return pa.Table.from_batches(batches)


def iter_columns(path: Path, names: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
    """Yields the ids and columns of a file, as texts. Raises InputError."""
    try:
        with pq.ParquetFile(readable(path)) as file:
            there = file.schema_arrow.names
            if missing := [name for name in names if name not in there]:
                raise InputError(f"{where} has no column {missing[0]}; it has {', '.join(there)}")
            keys = [key for key in KEYS if key in there]
            if not keys:
                raise InputError(f"{where} has neither image_id nor pair_id")
            schema = pa.schema([(name, pa.string()) for name in (*keys, *names)])
            limit = limit_batch_rows(path, ROWS_AT_ONCE)
            for batch in file.iter_batches(batch_size=limit, columns=schema.names):
                require_short_texts(path, batch)
                yield batch.select(schema.names).cast(schema)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"{path} cannot be used for --columns-from: {reason}") from None


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
    columns = [index.about.column(name).to_pylist() for name in KEYS]
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
