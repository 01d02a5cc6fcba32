"""Finds items similar to other items, as InterBERT was deployed (arXiv:2003.13198, app. A.2).

An item is the subject of the rows of one image, or of one pair without an image: it has the rows'
image_id, else their pair_id, as its id. N rows, n rows of a lookup, P width.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vlmill.inference.search.index import Mask, SearchIndex
from vlmill.inference.search.table import Matrix
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

GROWTH = 4  # of the number of results, if too few of them are other items

Filter = Mapping[str, Sequence[str]]
encode_text = json.JSONEncoder(ensure_ascii=False).encode
Columns = Mapping[str, tuple[NDArray[np.int32], dict[str, int]]]  # codes of rows; of values


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Holds one search: ``queries`` [n, P], or ``rows`` [n] of the items
    ``sources`` [n]. Results are ``top`` items, none of ``excluded``, with rows in ``allowed`` [N].
    """

    top: int
    queries: Matrix | None = None
    rows: Sequence[int] = ()
    sources: Sequence[str] = ()
    excluded: frozenset[str] = frozenset()
    num_seen_rows: int = 0
    allowed: Mask | None = None


class Hit(NamedTuple):
    """Holds a result: its row, its score, and the number of its query."""

    row: int
    score: float
    query: int


class TextColumn:
    """Reads the texts of a column by row, several times as fast as Arrow's own scalars."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        texts = column.cast(pa.large_string()).combine_chunks()
        _, starts, content = texts.buffers()
        count = len(texts) + 1 if len(texts) else 0
        self._starts = np.frombuffer(starts or b"", np.int64, count, 8 * texts.offset).data
        self._content = memoryview(content or b"")
        is_null = texts.is_null().to_numpy(zero_copy_only=False)
        self._is_null = is_null.tobytes() if texts.null_count else None

    def get(self, row: int) -> str | None:
        """Returns a row's text, None for null."""
        if self._is_null is not None and self._is_null[row]:
            return None
        return str(self._content[self._starts[row] : self._starts[row + 1]], "utf-8")


class ItemIndex:
    """Finds items in an index. Takes about 160 bytes per row in addition to the index."""

    def __init__(self, index: SearchIndex) -> None:
        self.index = index
        about = index.about
        ids = pc.coalesce(about.column("image_id"), about.column("pair_id"))
        self._ids: list[str] = ids.to_pylist()
        self._first_rows, self._other_rows = number_items(self._ids)
        # The kind is the same for all rows.
        self._beginning = f', "kind": {encode_text(index.settings["of"])}'
        self._texts = [
            (f", {encode_text(name)}: ", TextColumn(about.column(name)))
            for name in about.column_names
            if name != "kind"
        ]
        self._columns = encode_columns(index)

    def __len__(self) -> int:
        return len(self.index)

    def mask(self, where: Filter) -> Mask | None:
        """Returns the rows as :func:`mask_rows` does."""
        return mask_rows(self._columns, where)

    def lookup(
        self, items: Sequence[str], top: int, *, excluded: Sequence[str] = (), where: Filter | None
    ) -> tuple[Lookup, list[str]]:
        """Returns the lookup of items near ``items``, in the order in which a user saw them, and
        the ids of ``items`` that the index does not have.

        Neither ``items`` nor ``excluded`` are results. Raises InputError for an unknown column.
        """
        unique = list(dict.fromkeys(reversed(items)))  # the last one first
        rows = {item: self._find_rows(item) for item in unique}
        seen_items = [item for item in dict.fromkeys(excluded) if item not in rows]
        num_seen = sum(map(len, rows.values())) + sum(map(self._count, seen_items))
        positions = [row for item in unique for row in rows[item]]
        return Lookup(
            top=top,
            rows=positions,
            sources=[item for item in unique for _ in rows[item]],
            excluded=frozenset((*unique, *seen_items)),
            num_seen_rows=num_seen,
            allowed=self.mask(where or {}),
        ), [item for item in items if not rows[item]]

    def _find_rows(self, item: str) -> list[int]:
        row = self._first_rows.get(item)
        return [] if row is None else [row, *self._other_rows.get(item, ())]

    def _count(self, item: str) -> int:
        return len(self._find_rows(item))

    def find(self, lookups: Sequence[Lookup]) -> list[list[Hit]]:
        """Returns the results of lookups: stored ones, or searches. Lookups without a filter are
        searched together.
        """
        results = [self.find_stored(lookup) for lookup in lookups]
        sizes = [lookup.top + lookup.num_seen_rows for lookup in lookups]
        waiting = [number for number, result in enumerate(results) if result is None]
        while waiting:
            for number, lists in self._search(lookups, sizes, waiting):
                lookup = lookups[number]
                hits = self._take_turns(lookup, lists) if lookup.sources else list(lists[0])
                if len(hits) >= lookup.top or sizes[number] >= self._count_allowed(lookup):
                    results[number] = hits[: lookup.top]
                sizes[number] *= GROWTH
            waiting = [number for number in waiting if results[number] is None]
        return [result or [] for result in results]

    def find_stored(self, lookup: Lookup) -> list[Hit] | None:
        """Returns the results of a lookup from the index's stored neighbours, None if they are not
        enough.
        """
        neighbours = self.index.neighbours
        if neighbours is None or lookup.allowed is not None or not lookup.rows:
            return None
        stored = enumerate(neighbours[list(lookup.rows)].tolist())
        hits = self._take_turns(lookup, [iter_hits(query, pairs) for query, pairs in stored])
        is_all = neighbours.shape[1] >= len(self.index) - 1
        return hits[: lookup.top] if is_all or len(hits) >= lookup.top else None

    def _queries(self, lookup: Lookup) -> Matrix:
        if lookup.queries is not None:
            return lookup.queries
        return self.index.vectors(np.array(lookup.rows, dtype=np.int64))

    def _count_allowed(self, lookup: Lookup) -> int:
        """Returns the number of rows that may be results."""
        allowed = lookup.allowed
        return len(self.index) if allowed is None else int(np.count_nonzero(allowed))

    def _search(
        self, lookups: Sequence[Lookup], sizes: Sequence[int], numbers: Sequence[int]
    ) -> Iterator[tuple[int, list[Iterator[Hit]]]]:
        """Yields, for each number of a lookup, the list of each of its queries."""
        groups = dict[tuple[int, int | None], list[int]]()
        for number in numbers:
            alone = None if lookups[number].allowed is None else number
            groups.setdefault((sizes[number], alone), []).append(number)
        for (size, _), members in groups.items():
            blocks = [self._queries(lookups[number]) for number in members]
            answers = self.index.nearest(np.concatenate(blocks), size, lookups[members[0]].allowed)
            rows, scores, start = answers.positions.tolist(), answers.scores.tolist(), 0
            for number, block in zip(members, blocks, strict=True):
                stop = start + len(block)
                each = enumerate(zip(rows[start:stop], scores[start:stop], strict=True))
                yield number, [iter_hits(query, zip(*pair, strict=True)) for query, pair in each]
                start = stop

    def _take_turns(self, lookup: Lookup, turns: list[Iterator[Hit]]) -> list[Hit]:
        """Returns each item once: the nearest of every query first, then the second ones, ..."""
        taken, hits = set(lookup.excluded), list[Hit]()
        while turns and len(hits) < lookup.top:
            for members in tuple(turns):
                for hit in members:
                    if (item := self._ids[hit.row]) not in taken:
                        taken.add(item)
                        hits.append(hit)
                        break
                else:
                    turns.remove(members)
        return hits

    def rows(self, hits: Sequence[Hit], lookup: Lookup) -> list[dict[str, Any]]:
        """Returns results as rows with their score; results of a lookup by items also have the
        ``item_id``, and in ``near`` the item that they are near.
        """
        rows: list[dict[str, Any]] = parse_json(self.encode(hits, lookup))
        return rows

    def encode(self, hits: Sequence[Hit], lookup: Lookup) -> str:
        """Returns the JSON of :meth:`rows`."""
        near = [f', "near": {encode_text(source)}' for source in lookup.sources]
        rows = []
        for row, score, query in hits:
            text = f'{{"score": {score:.6f}'
            if near:
                text += f', "item_id": {encode_text(self._ids[row])}{near[query]}'
            text += self._beginning
            for name, column in self._texts:
                if (value := column.get(row)) is not None:
                    text += name + encode_text(value)
            rows.append(text + "}")
        return f"[{', '.join(rows)}]"


def number_items(ids: Iterable[str]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Returns the first row of each item, and the other rows of the items that have several."""
    first, others = dict[str, int](), dict[str, list[int]]()
    for row, item in enumerate(ids):
        if first.setdefault(item, row) != row:
            others.setdefault(item, []).append(row)
    return first, others


def mask_rows(columns: Columns, where: Filter) -> Mask | None:
    """Returns the rows with one of the values in each column, None for all rows.

    Raises InputError for a column that the index does not have.
    """
    allowed: Mask | None = None
    for name, values in where.items():
        if name not in columns:
            there = ", ".join(columns) or "none; give --columns when it is built"
            raise InputError(f"column {name[:80]!r} cannot be filtered by; there are {there}")
        codes, numbers = columns[name]
        allowed_codes = [numbers[value] for value in values if value in numbers]
        matches: Mask = np.isin(codes, np.array(allowed_codes, dtype=codes.dtype))
        allowed = matches if allowed is None else allowed & matches
    return allowed


def encode_columns(index: SearchIndex) -> Columns:
    """Returns the columns that rows can be filtered by, encoded."""
    return {name: encode_column(index.about.column(name)) for name in index.columns}


def encode_column(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], dict[str, int]]:
    """Returns the code of each row's value, -1 for null, and the codes by value."""
    encoded = column.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, {value: code for code, value in enumerate(encoded.dictionary.to_pylist())}


def iter_hits(query: int, pairs: Iterable[tuple[int, float]]) -> Iterator[Hit]:
    """Yields the results of a query; -1 marks a missing one."""
    return (Hit(row, score, query) for row, score in pairs if row >= 0)
