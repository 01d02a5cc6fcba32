"""The documentation site contains every page, and its links work."""

import subprocess
import sys
from pathlib import Path

import pytest
from docs.site.hooks import (
    COMMANDS,
    PAPER_AND_CODE,
    commands_page,
    licences_page,
    model_cards_page,
    recipe_fields,
    switches_page,
    tables_page,
    with_links,
)

from vlmill.schemas.tables import TABLES
from vlmill.train.recipes import RECIPES, recipe_named
from vlmill.train.tasks.registry import task_recipes

ROOT = Path(__file__).parents[1]
# Tasks' recipes that differ from a listed one in what is fed alone.
NOT_LISTED = {
    *("refcoco-vl-bert-paper-annotated", "refcoco-vl-bert-paper-end-to-end"),
    *("refcoco-vl-bert-paper-end-to-end-annotated", "vcr-vl-bert-paper-end-to-end-q2a"),
    *("vcr-vl-bert-paper-end-to-end-qa2r", "vcr-vl-bert-paper-qa2r"),
}
PAGES = {"index.md", "tables.md", "results.md"}


@pytest.mark.parametrize(
    ("text", "source", "place", "expected"),
    [
        ("[a](docs/tables.md#ids)", "README.md", "index.md", "[a](tables.md#ids)"),
        ("[a](../README.md)", "docs/tables.md", "tables.md", "[a](index.md)"),
        ("[a](tables.md)", "docs/crawl.md", "crawl.md", "[a](tables.md)"),
        ("[R](../benchmarks/RESULTS.md)", "docs/a.md", "a.md", "[R](results.md)"),
        ("[a](../setup.py)", "docs/a.md", "a.md", "a (`setup.py`)"),
        ("[`setup.py`](../setup.py)", "docs/a.md", "a.md", "`setup.py`"),
        ("[a](https://x.org/docs/b.md)", "docs/a.md", "a.md", "[a](https://x.org/docs/b.md)"),
        ("[a](#part)", "docs/a.md", "a.md", "[a](#part)"),
    ],
)
def test_links_between_files_lead_to_pages(
    text: str, source: str, place: str, expected: str
) -> None:
    assert with_links(text, source, place, PAGES) == expected


def test_every_command_and_table_has_its_place() -> None:
    commands = commands_page()
    assert [name for name in COMMANDS if f"## `{name}`" not in commands] == []
    for name in (
        "train-vl finetune",
        "extract-rois train",
        "python -m vlmill.pipelines.tables concat",
    ):
        assert f"### `{name}`" in commands
    tables = tables_page()
    assert [name for name in TABLES if f"## `{name}`" not in tables] == []
    assert "| `pair_id` | `string` | required |" in tables


def test_every_recipe_of_a_papers_text_stands_beside_its_code() -> None:
    """Their differences are listed with both values; what only describes a recipe is not."""
    page = switches_page()
    papers = {name for name in (*RECIPES, *task_recipes()) if "-paper" in name}
    papers -= {name for name in papers if "large" in name or "flickr30k" in name}
    listed = {paper for paper, _ in PAPER_AND_CODE}
    assert sorted(papers - listed) == sorted(NOT_LISTED)
    assert "| `optimizer.kind` | `adamw` | `bert-adam` |" in page
    assert "`about`" not in page and "`needs`" not in page
    assert all(recipe_fields(paper) != recipe_fields(code) for paper, code in PAPER_AND_CODE)


def test_every_recipe_has_its_model_card() -> None:
    page = model_cards_page()
    assert [name for name in (*RECIPES, *task_recipes()) if f"| `{name}` |" not in page] == []
    (line,) = (one for one in page.splitlines() if one.startswith("| `vilbert` |"))
    assert line == (
        "| `vilbert` | ViLBERT on Conceptual Captions, as released | 239.0 "
        "| 10 epochs (61,250 steps) of 512 cc | " + recipe_named("vilbert").needs + " |"
    )


def test_each_requirement_has_its_licence() -> None:
    licences = licences_page()
    assert "| torch |" in licences
    assert "| pillow |" in licences and "MIT-CMU" in licences
    asked, brought = licences.split("## Indirect dependencies")
    assert "| fastavro |" in brought and "| torch |" not in brought
    assert "| fastavro |" not in asked


@pytest.mark.nightly  # make docs builds it, too
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """A page that no menu names, a link to no page or to no heading is one."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run(
        [*build, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert {page.stem for page in (tmp_path / "site").glob("*.html")} >= pages
    fetched = [
        page.name
        for page in (tmp_path / "site").rglob("*.html")
        if 'src="http' in page.read_text(encoding="utf-8")
    ]
    assert fetched == []
