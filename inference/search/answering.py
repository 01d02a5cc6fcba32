"""Builds or opens an index, and answers queries as lines of JSON (``train-vl search``).

A page shows queries with the images that answer them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from markupsafe import Markup

from vlmill.inference.search.index import SearchIndex, open_index, save_index
from vlmill.inference.search.indexing import SearchOptions, change_index, index_vectors
from vlmill.inference.search.items import ItemIndex, encode_columns, mask_rows
from vlmill.inference.search.queries import AnsweredQuery, Query, load_query_encoder, table_queries
from vlmill.inference.search.reranking import Reranker, open_reranker
from vlmill.inference.search.table import get_row_key
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.report import (
    Section,
    image_cards,
    settings_table,
    thumbnail_uri,
    write_page,
)
from vlmill.runtime.console.threads import faiss_threads, gpu_number, move_to_gpu
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.paths import to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Rejected
from vlmill.train.tasks.report import CARD_PX, read_thumbnails

ON_GPU = ("flat", "ivf")
MOST_SHOWN = 50  # queries on a page


def write_answers_page(
    path: Path,
    answered_queries: Sequence[AnsweredQuery],
    index: SearchIndex,
    images: str,
    num_queries: int,
) -> None:
    """Writes the page: a row of images for each query, and the settings of the index."""
    ids = {
        row["image_id"]
        for answered in answered_queries
        for row in answered.answers
        if "image_id" in row
    }
    ids |= {answered.query.name for answered in answered_queries if answered.query.kind == "image"}
    uris = read_thumbnails(images, ids) | make_file_thumbnails(answered_queries)
    sections = [_section(answered, uris) for answered in answered_queries]
    sections.append(Section(title="Index", body=settings_table(index.settings)))
    extent = (
        f"the first {len(answered_queries)} of {num_queries}"
        if len(answered_queries) < num_queries
        else "all"
    )
    counts = format_count(num_queries, "query", "queries")
    write_page(path, "Search", sections, subtitle=f"{counts}, {extent} shown")


def make_file_thumbnails(answered_queries: Sequence[AnsweredQuery]) -> dict[str, str]:
    """Returns thumbnails of the query files, by their names."""
    uris = dict[str, str]()
    for answered in answered_queries:
        if not answered.query.content:
            continue
        try:
            uris[answered.query.name] = thumbnail_uri(answered.query.content, side=CARD_PX)
        except Rejected:
            continue  # shown by its name, with its error
    return uris


def _section(answered: AnsweredQuery, uris: Mapping[str, str]) -> Section:
    query = answered.query
    if query.error is not None:
        return Section(title=query.name, body=Markup("<p>{}</p>").format(query.error))
    cards = [
        {
            "uri": uris.get(row.get("image_id", ""), ""),
            "text": row.get("text", ""),
            "about": f"{row['score']:.3f} {row.get('pair_id') or row.get('image_id')}",
        }
        for row in answered.answers
    ]
    if query.name in uris:
        query_card = {"uri": uris[query.name], "text": "query", "about": query.name}
        cards = [query_card, *cards]
    return Section(title=query.text or query.name, body=image_cards(cards))


ANSWERS, PAGE = "answers.jsonl", "report.html"


def search(options: SearchOptions) -> int:
    """Builds or opens the index, saves it if requested, and answers queries; returns the exit
    status.

    The status is 1 if no query could be answered. Raises InputError for problems that a user can
    fix.
    """
    with faiss_threads(options.threads):
        return _search(options)


def _search(options: SearchOptions) -> int:
    index = index_vectors(options) if options.index is None else open_index(options.index)
    if options.append is not None or options.delete is not None:
        index = change_index(index, options)
    if options.save_index is not None:
        save_index(index, options.save_index)
        print_status(
            f"{options.save_index}: {index.settings['type']} index of {describe_index(index)}"
        )
    if not (options.text or options.image or options.item or options.queries):
        return 0
    index, reranker = on_device(index, options), make_reranker(options)
    num_queries = num_errors = 0
    first_answers: list[AnsweredQuery] = []
    with open_lines(options.output) as lines:
        for answered in chain(
            answer_items(index, options),
            answer_queries(
                index,
                make_queries(options, index),
                max(options.top, options.rerank or 0),
                options.where,
            ),
        ):
            if reranker is not None and answered.query.text is not None:
                best, rest = answered.answers[: options.rerank], answered.answers[options.rerank :]
                rows = [*reranker.rerank(answered.query.text, best), *rest]
                answered = replace(answered, answers=rows[: options.top])
            lines.write(answered.line() + "\n")
            num_queries += 1
            num_errors += answered.query.error is not None
            if len(first_answers) < MOST_SHOWN:
                first_answers.append(answered)
    if options.images is not None and options.output is not None:
        write_answers_page(options.output / PAGE, first_answers, index, options.images, num_queries)
    answered_count = format_count(num_queries - num_errors, "query", "queries")
    print_status(f"{answered_count} answered, {num_errors} could not be read")
    return 1 if num_errors == num_queries else 0


def make_reranker(options: SearchOptions) -> Reranker | None:
    """Opens the model of ``--rerank``."""
    if options.rerank is None:
        return None
    assert options.reranker is not None
    return open_reranker(
        options.reranker,
        options.rerank,
        regions=options.regions,
        images=options.images,
        device=options.device,
    )


def on_device(index: SearchIndex, options: SearchOptions) -> SearchIndex:
    """Returns the index on the device of the search. Raises InputError if it cannot be there."""
    number = gpu_number(options.search_device)
    if number is None:
        return index
    where = f"--search-device {options.search_device}"
    if index.settings["type"] not in ON_GPU:
        raise InputError(
            f"{where}: FAISS has no index of type {index.settings['type']} on a GPU; use "
            f"{' or '.join(ON_GPU)}"
        )
    if options.item or options.where:
        raise InputError(f"{where}: --item and --where search on the CPU; remove it")
    return replace(index, faiss_index=move_to_gpu(index.faiss_index, number))


@contextmanager
def open_lines(output: Path | None) -> Iterator[TextIO]:
    """Opens the file of answers, which appears completely; standard output without a folder."""
    if output is None:
        yield sys.stdout
        return
    output.mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(output / ANSWERS) as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        yield file


def answer_items(index: SearchIndex, options: SearchOptions) -> Iterator[AnsweredQuery]:
    """Yields the results near the items of ``--item``, a user's history."""
    if not options.item:
        return
    items = ItemIndex(index)
    lookup, missing = items.lookup(options.item, options.top, where=options.where)
    name, known = " ".join(options.item), len(options.item) > len(missing)
    query = Query(kind="items", name=name, error=None if known else "no_such_item")
    (hits,) = items.find([lookup]) if known else ([],)
    yield AnsweredQuery(query=query, answers=items.rows(hits, lookup))


def describe_index(index: SearchIndex) -> str:
    """Describes an index and its recall."""
    settings = index.settings
    words = f"{settings['vectors']} vectors of {settings['of']}s, {settings['width']} wide"
    if "recall_at_10" in settings:
        share = f"{100 * settings['recall_at_10']:.2f} %"
        words += f", recall@10 {share} (queries: {settings['recall_of_queries']}s)"
    return words


def make_queries(options: SearchOptions, index: SearchIndex) -> Iterator[list[Query]]:
    """Yields the queries in blocks."""
    if options.queries is not None:
        yield from table_queries(options.queries, index)
    if options.text or options.image:
        flag = "--image" if options.image else "--text"
        encoder = load_query_encoder(index, options.checkpoint, options.device, flag=flag)
        if options.text:
            yield encoder.texts(options.text)
        if options.image:
            yield encoder.images({file: read_file(file) for file in options.image})


def read_file(file: str) -> bytes:
    """Reads a file, local or in a store; an unreadable file gives no bytes, which becomes the error
    of its query.
    """
    try:
        return to_path(file).read_bytes()
    except OSError as error:
        print_status(f"--image {file}: {error.strerror or error}")
        return b""


def answer_queries(
    index: SearchIndex,
    blocks: Iterator[list[Query]],
    top: int,
    where: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[AnsweredQuery]:
    """Yields each query's results among the rows of ``where``, without its own row."""
    allowed = mask_rows(encode_columns(index), where) if where else None
    for block in blocks:
        good = [query for query in block if query.vector is not None]
        rows: dict[int, list[dict[str, Any]]] = {}
        if good:
            matrix = np.stack([query.vector for query in good if query.vector is not None])
            neighbours = index.nearest(
                matrix, top + any(query.row_key is not None for query in good), allowed
            )
            for query, scores, positions in zip(
                good, neighbours.scores, neighbours.positions, strict=True
            ):
                rows[id(query)] = _rows(index, query, scores, positions)[:top]
        for query in block:
            yield AnsweredQuery(query=query, answers=rows.get(id(query), []))


def _rows(index: SearchIndex, query: Query, scores: Any, positions: Any) -> list[dict[str, Any]]:
    there = positions >= 0  # -1: the index has no more
    rows = index.about.take(positions[there]).to_pylist()
    return [
        {"score": round(float(score), 6), **{k: v for k, v in row.items() if v is not None}}
        for row, score in zip(rows, scores[there], strict=True)
        if get_row_key(row) != query.row_key
    ]
