"""The published ablations: every row stands, what is told of it, and a table that is run."""

import json
from math import sqrt
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import reproduce
from proof.task_runs import finished
from published import all_tables
from published.compare import AGREES, DIFFERS, WITHIN, compared, comparisons
from published.page import COLOURS, ONE_SEED, image, page
from published.row import AblationTable, Figure, Row, Subject
from shell import KEYS, read_lines

from vlmill.train.recipes import change_recipe, recipe_named
from vlmill.train.tasks.registry import task_recipe_named

pytestmark = pytest.mark.nightly

ACCURACY = Figure(label="VQA", task="vqa", metrics=("a", "b"))


def row(label: str, published: float | None) -> Row:
    return Row(label=label, published=(published,), subject=Subject(key=label, chain=()))


def table(*rows: Row) -> AblationTable:
    return AblationTable(
        key="t",
        title="Title",
        base="base",
        figures=(ACCURACY,),
        rows=rows,
        about="About.",
        reading="Too few steps.",
    )


def runs(label: str, *shares: float, error: float = 0.01) -> dict[str, list[Any]]:
    """The lines of a row, a seed each."""
    return {
        f"vqa/{label}": [
            {
                "settings": {"seed": seed},
                "metrics": {"a": share, "b": share, "a_stderr": error, "b_stderr": 0.0},
            }
            for seed, share in enumerate(shares)
        ]
    }


@pytest.mark.parametrize(
    ("published", "ours", "verdict"),
    [
        (60.0, (0.6, 0.62), AGREES),  # both lose 10 points or so
        (80.0, (0.6, 0.62), DIFFERS),
        (60.0, (0.71, 0.69), WITHIN),
        (60.0, (), None),
        (None, (0.6, 0.62), None),
    ],
)
def test_a_row_moves_as_in_the_paper_or_not(
    published: float | None, ours: tuple[float, ...], verdict: str | None
) -> None:
    lines = runs("base", 0.7, 0.72) | (runs("other", *ours) if ours else {})
    base, other = comparisons(table(row("base", 70.0), row("other", published)), lines)
    assert base.verdict is None and base.change is None
    assert other.verdict == verdict


def test_seeds_are_compared_with_their_own_and_spread_counts() -> None:
    """A seed that the base lacks has no say; a change of which seeds differ is not told."""
    lines = runs("base", 0.5, 0.7) | runs("other", 0.4, 0.9, 0.1, error=0.0)
    _, other = comparisons(table(row("base", 70.0), row("other", 60.0)), lines)
    assert other.change is not None and other.change.count == 2
    assert other.change.mean == pytest.approx(0.05)
    pooled = sqrt((0.02 + 2 * 0.49 / 3) / 3)  # of two seeds of one row and three of the other
    assert other.error == pytest.approx(sqrt(2) * pooled / sqrt(2)) and other.verdict == WITHIN


def test_the_page_names_what_moved_otherwise_and_what_cannot_run() -> None:
    cannot = Row(label="deaf", published=(None,), missing="it has no ears")
    told = table(row("base", 70.0), row("other", 80.0), cannot)
    rows = compared([told], runs("base", 0.7) | runs("other", 0.6))
    text = page([told], rows)
    assert "| Title | 0 | 0 | 1 | 0 |" in text
    assert "| **base** | 70.0 (70) |  | 1 |" in text
    assert "| other | 60.0 (80) | no | 1 |" in text
    assert "Unlike the paper: other, VQA: -10.0 points here" in text and "+10.0 there." in text
    assert "Cannot run: deaf, as it has no ears." in text
    assert "**Why.** Too few steps." in text
    assert ONE_SEED in text
    several = compared([told], runs("base", 0.7, 0.71) | runs("other", 0.6))
    assert ONE_SEED not in page([told], several)
    shown = ElementTree.fromstring(image([told], rows))
    texts = [one.text for one in shown.iter("{http://www.w3.org/2000/svg}text")]
    assert "Title" in texts and "other: VQA" in texts and "deaf: VQA" not in texts
    assert image([told], rows).count(COLOURS[DIFFERS]) == 3  # of the legend, the line, the point


@pytest.mark.parametrize("of", all_tables(), ids=lambda of: of.key)
def test_every_row_stands(of: AblationTable) -> None:
    """Its recipes exist and take its changes; it is measured on a figure or says why not."""
    for one in of.rows:
        assert one.subject is not None or one.missing
    for arm in of.arms((0,)):
        recipe = change_recipe(task_recipe_named(arm.recipe), [*arm.changes, "steps=1"])
        assert arm.task in ("zero-shot", recipe.task)
        for step in arm.chain:
            assert change_recipe(recipe_named(step.arm.recipe), [*step.arm.changes, "steps=1"])
        assert arm.task != "zero-shot" or arm.chain


def test_what_is_missing_is_listed_and_nothing_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--full", "--output", str(tmp_path / "o"), "--results", str(tmp_path / "r"), "--list"]
    assert reproduce.main([*flags, "--tables", "vl-bert-tasks", "--seeds", "4"]) == 0
    told = capsys.readouterr().out
    assert "missing   vqa/vl-bert/seed-4\n" in told
    assert "cannot    vl-bert-tasks: end to end: " in told
    assert not any(tmp_path.iterdir())
    assert reproduce.main([*flags, "--tables", "vilbert"]) == 2


def test_the_committed_page_is_what_the_committed_lines_say() -> None:
    """And every line is of a row as it stands."""
    form, lines = reproduce.forms()[True], read_lines(reproduce.COMMITTED)
    jobs = reproduce.jobs_of_form(form, form.tables, reproduce.SEEDS, Path("nowhere"))
    assert sum(finished(job, lines) is not None for job in jobs) == len(lines)
    by_table = compared(all_tables(), reproduce.lines_of_form(form, reproduce.COMMITTED))
    assert reproduce.PAGE.read_text(encoding="utf-8") == page(all_tables(), by_table)
    assert reproduce.IMAGE.read_text(encoding="utf-8") == image(all_tables(), by_table)


def test_the_short_form_trains_a_table_and_finds_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short, full = reproduce.forms().values()
    tiny = reproduce.Form(world=short.world, pairs=40, held_out=6, tables=short.tables, steps=2)
    monkeypatch.setattr(reproduce, "forms", lambda: {False: tiny, True: full})
    flags = ["--output", str(tmp_path), "--jobs", "2"]
    assert reproduce.main(flags) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 4 and all(line.keys() >= set(KEYS) for line in printed)
    assert [line["published_change"] for line in printed] == [
        None,
        None,
        pytest.approx(1.7),
        pytest.approx(1.5),
    ]
    monkeypatch.setattr("proof.task_runs.pretrained", None)  # the kept figures are enough
    assert reproduce.main(flags) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == printed


def test_the_page_is_the_one_of_the_records() -> None:
    lines = reproduce.lines_of_form(reproduce.forms()[True], reproduce.COMMITTED)
    expected = page(all_tables(), compared(all_tables(), lines))
    assert reproduce.PAGE.read_text(encoding="utf-8") == expected, "run: make reproduce"
