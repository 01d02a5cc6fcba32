"""Figures in pages are those of the records in benchmarks/results."""

import re
from pathlib import Path
from typing import Any

import pytest
import write_tables
from published.photographs import photographs_section
from write_tables import PAGES, ROOT, TABLE, TABLES, format_result, read_records, with_tables

REPRODUCTION = ROOT / "docs" / "reproduction.md"


def read_page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """Returns the text from a heading of the second level to the next one."""
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_those_of_the_records(name: str) -> None:
    page = read_page(name)
    assert TABLE.search(page)
    assert with_tables(page) == page, "run: python benchmarks/write_tables.py"


def test_every_table_has_a_page() -> None:
    used = {match[2] for name in PAGES for match in TABLE.finditer(read_page(name))}
    assert used == set(TABLES)


@pytest.mark.parametrize("record", read_records("measured"), ids=lambda record: record["name"])
def test_a_measured_figure_is_in_its_section_and_on_its_pages(record: dict[str, Any]) -> None:
    """Its raw values are in RESULTS.md, and other pages quote the same figure."""
    text = section(read_page("benchmarks/RESULTS.md"), record["section"])
    for value in record["values"].values():
        assert re.search(rf"(?<![\d.,]){re.escape(value)}(?![\d,]|\.\d)", text), value
    for page, quotes in record["pages"].items():
        for quote in quotes:
            assert quote in read_page(page), (page, quote)
    assert "{" not in format_result(record)


def test_the_page_of_reproduction_has_the_recorded_photographs() -> None:
    page = REPRODUCTION.read_text(encoding="utf-8")
    assert page.endswith(photographs_section(read_records("real_pairs"))), "run: make reproduce"


def test_a_table_that_differs_is_named_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(write_tables, "ROOT", tmp_path)
    monkeypatch.setattr(write_tables, "PAGES", ("page.md",))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table: world -->\n| old |\n<!-- end of table -->\nb\n")
    assert write_tables.main(["--check"]) == 1
    assert "page.md: differs" in capsys.readouterr().out and "| old |" in page.read_text()
    assert write_tables.main([]) == 0
    assert "| old |" not in page.read_text() and "| ViLBERT |" in page.read_text()
    assert page.read_text().startswith("a\n") and page.read_text().endswith("table -->\nb\n")
    assert write_tables.main(["--check"]) == 0
