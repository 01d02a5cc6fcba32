"""Shows queries and the images that answer them on one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from vlmill.inference.search.index import SearchIndex
from vlmill.inference.search.queries import AnsweredQuery
from vlmill.runtime.console.report import (
    Section,
    image_cards,
    settings_table,
    thumbnail_uri,
    write_page,
)
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Rejected
from vlmill.train.tasks.report import CARD_PX, read_thumbnails

MOST_SHOWN = 50  # queries on a page


def write_answers_page(
    path: Path,
    answered_queries: Sequence[AnsweredQuery],
    index: SearchIndex,
    images: str,
    num_queries: int,
) -> None:
    """Writes the page: a row of images for each query, and what the index is."""
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
    write_page(
        path,
        "Search",
        sections,
        subtitle=f"{format_count(num_queries, 'query', 'queries')}, {extent} shown",
    )


def make_file_thumbnails(answered_queries: Sequence[AnsweredQuery]) -> dict[str, str]:
    """Returns thumbnails of the files that were asked, by their names."""
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
