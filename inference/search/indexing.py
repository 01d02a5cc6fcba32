"""Builds or changes the index of ``train-vl search``, with its columns, recall and neighbours."""

from dataclasses import replace

from vlmill.inference.search.building import build_index, find_neighbours, measured_index
from vlmill.inference.search.columns import add_columns
from vlmill.inference.search.index import SearchIndex
from vlmill.inference.search.kinds import IMAGE, PAIR, TEXT
from vlmill.inference.search.options import SearchOptions
from vlmill.inference.search.table import count_kinds, read_vectors
from vlmill.inference.search.updating import append_rows, measured_again, remove_rows, rows_of_ids
from vlmill.runtime.console.progress import Progress
from vlmill.schemas.errors import InputError


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
