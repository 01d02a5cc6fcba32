"""report.html of a published data set: counts beside the published ones, examples, overlaps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.entries import DataSet
from vlmill.pipelines.manifest.published.counts import HEADER, Count, counts_table, format_warnings
from vlmill.pipelines.manifest.published.drawing import draw_cards
from vlmill.pipelines.manifest.published.fetch import make_fetch_rows
from vlmill.pipelines.manifest.report import (
    first_rows,
    pair_cards,
    pair_charts,
    sample_rejects,
    spread_shards,
)
from vlmill.runtime.console.report import (
    Section,
    funnel_table,
    html_table,
    settings_table,
    write_page,
)
from vlmill.schemas.tables import PAIRS, Table

ROWS_SHOWN, CELL = 20, 200


def write_published_report(
    folder: Path,
    data_set: DataSet,
    funnel: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Writes ``folder/report.html`` from the tables there and what was counted."""
    counts = [Count(*count) for count in about["counts"]]
    rejects = [row for path in spread_shards(folder, "rejects") for row in first_rows(path)]
    write_page(
        folder / "report.html",
        data_set.title,
        [
            _counts_section(data_set, counts),
            Section(
                title="Funnel", body=funnel_table(funnel), intro="in = out + dropped, by stage"
            ),
            *_examples(folder, data_set),
            *_fetch_sections(about),
            _overlaps_section(about["overlaps"]),
            Section(
                title="Sample rejects",
                body=sample_rejects(rejects),
                intro="Key: the file and the row, from 0; of an image its image_id.",
            ),
            Section(title="Settings", body=settings_table(settings)),
        ],
        notice=" ".join(format_warnings(counts)),
    )


def _fetch_sections(about: Mapping[str, Any]) -> Sequence[Section]:
    if "fetch" not in about:
        return []
    table = html_table(("URLs", "number"), make_fetch_rows(about["fetch"]))
    intro = "What came of the URLs of images; what failed stands under sample rejects, too."
    return [Section(title="Downloads", body=table, intro=intro)]


def _counts_section(data_set: DataSet, counts: Sequence[Count]) -> Section:
    table = html_table(HEADER, counts_table(list(counts)))
    papers = html_table(["paper", "what it says"], data_set.papers) if data_set.papers else ""
    return Section(
        title="Rows beside the published numbers",
        body=table + papers,
        intro="Rows read, before anything was dropped.",
    )


def _overlaps_section(overlaps: Sequence[Sequence[Any]]) -> Section:
    header = ["list", "shared by", "images", "their rows"]
    intro = "Images of this data set that are also in these lists."
    if not overlaps:
        intro = "No list was given to compare with (--exclude, --compare, ...)."
    return Section(title="Overlaps", body=html_table(header, overlaps), intro=intro)


def _examples(folder: Path, data_set: DataSet) -> list[Section]:
    """Pairs with their images, and of other tables drawings and the first rows."""
    other_tables = [table for table in data_set.tables if table is not PAIRS]
    pairs = _pairs(folder) if PAIRS in data_set.tables else []
    return [*pairs, *_first_rows(folder, other_tables)]


def _pairs(folder: Path) -> list[Section]:
    sample = [first_rows(path) for path in spread_shards(folder, PAIRS.name)]
    return [
        Section(title="Sample pairs", body=pair_cards(folder, sample)),
        Section(title="Distributions", body=pair_charts([row for rows in sample for row in rows])),
    ]


def _first_rows(folder: Path, tables: Sequence[Table]) -> list[Section]:
    sections = []
    for table in tables:
        if not any(folder.glob(f"{table.name}-*.parquet")):
            continue  # a table that this run was not asked for
        if (drawn := draw_cards(folder, table)) is not None:
            sections.append(Section(title=f"Examples of {table.name}", body=drawn))
        rows = [r for path in spread_shards(folder, table.name) for r in first_rows(path)]
        cells = [[str(value)[:CELL] for value in row.values()] for row in rows[:ROWS_SHOWN]]
        body = html_table(table.schema.names, cells)
        sections.append(Section(title=f"Sample rows of {table.name}", body=body))
    return sections
