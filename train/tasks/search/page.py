"""Shows queries and the pictures that answer them on one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from vlmill.schemas.console.report import (
    Section,
    picture_cards,
    settings_table,
    thumbnail_uri,
    write_page,
)
from vlmill.schemas.rejects import Rejected
from vlmill.train.tasks.report import CARD_PX, pictures_of
from vlmill.train.tasks.search.index import SearchIndex
from vlmill.train.tasks.search.queries import Answered

MOST_SHOWN = 50  # queries on a page


def write_answers_page(
    path: Path, shown: Sequence[Answered], index: SearchIndex, images: str, num_queries: int
) -> None:
    """Writes the page: a row of pictures for each query, and what the index is."""
    ids = {row["image_id"] for one in shown for row in one.answers if "image_id" in row}
    ids |= {one.query.name for one in shown if one.query.kind == "image"}
    uris = pictures_of(images, ids) | files_of(shown)
    sections = [_section(one, uris) for one in shown]
    sections.append(Section(title="Index", body=settings_table(index.settings)))
    of_all = f"the first {len(shown)} of {num_queries}" if len(shown) < num_queries else "all"
    write_page(path, "Search", sections, subtitle=f"{num_queries} queries, {of_all} shown")


def files_of(shown: Sequence[Answered]) -> dict[str, str]:
    """Returns thumbnails of the files that were asked, by their names."""
    uris = dict[str, str]()
    for one in shown:
        if not one.query.content:
            continue
        try:
            uris[one.query.name] = thumbnail_uri(one.query.content, side=CARD_PX)
        except Rejected:
            continue  # shown by its name, with its error
    return uris


def _section(one: Answered, uris: Mapping[str, str]) -> Section:
    query = one.query
    if query.error is not None:
        return Section(title=query.name, body=Markup("<p>{}</p>").format(query.error))
    cards = [
        {
            "uri": uris.get(row.get("image_id", ""), ""),
            "text": row.get("text", ""),
            "about": f"{row['score']:.3f} {row.get('pair_id') or row.get('image_id')}",
        }
        for row in one.answers
    ]
    if query.name in uris:
        asked = {"uri": uris[query.name], "text": "query", "about": query.name}
        cards = [asked, *cards]
    return Section(title=query.text or query.name, body=picture_cards(cards))
