"""Published pair sets and texts, from their layouts through regions to one step of pretraining."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from tests.pipelines.manifest.layouts import LAYOUTS
from tests.pipelines.manifest.task_layouts import METADATA, lines, vcr_line, write, write_refcoco

from vlmill.extract.cli import command
from vlmill.pipelines.manifest.__main__ import main as manifest
from vlmill.pipelines.manifest.published import report as published_report
from vlmill.pipelines.tables.__main__ import main as tables
from vlmill.runtime.console.command import run_command
from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, IMAGES, PAIRS, REGIONS, Table
from vlmill.train.cli import main as train_vl

TINY = ("--arch", "tiny", "--short-side", "48", "--long-side", "64")
SIZES = ("width=16", "num_layers=2", "num_heads=2", "intermediate_width=32")
STEP = ("steps=1", "batch_size=4", "log_every=1", "vocabulary_size=90", "workers=0")
# Images alone go to a stage that reads images, and texts to a model that reads texts.
PAIR_SETS = [name for name in LAYOUTS if name not in ("imagenet22k", "text")]


@pytest.fixture(scope="module")
def outputs(
    tmp_path_factory: pytest.TempPathFactory, image: Callable[..., bytes]
) -> dict[str, str]:
    """Each data set's tables, from its files."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_report, "pair_charts", lambda _: Markup(""))
        for name, write in LAYOUTS.items():
            write(folder / name, image)
            flags = ["--input", str(folder / name), "--output", str(folder / f"{name}-out")]
            assert manifest([name, *flags]) == 0
    return {name: str(folder / f"{name}-out") for name in LAYOUTS}


def test_all_pair_sets_are_joined_seen_and_trained_on(
    outputs: dict[str, str], tmp_path: Path
) -> None:
    joined, regions = str(tmp_path / "joined"), str(tmp_path / "regions")
    assert tables(["concat", *(outputs[name] for name in PAIR_SETS), "--output", joined]) == 0
    sources = set(read_table(joined, PAIRS).column("source").to_pylist())
    assert len(sources) == len(PAIR_SETS) - 1  # both of COCO are coco
    assert run_command(command, ["run", joined, "--output", regions, *TINY]) == 0
    seen = read_table(regions, REGIONS).column("image_id").to_pylist()
    assert sorted(seen) == sorted(read_table(joined, IMAGES).column("image_id").to_pylist())
    model = [f"model.{size}" for size in SIZES]
    flags = ["--pairs", joined, "--regions", regions, "--output", str(tmp_path / "trained")]
    assert train_vl(["pretrain", "imagebert-small", *model, *STEP, *flags]) == 0
    (step,) = [row for row in read_log(tmp_path / "trained/log.jsonl") if row.get("step") == 1]
    assert step["loss"] > 0


def test_texts_are_trained_on_in_a_step_of_their_own(
    outputs: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--pairs", outputs["text"], "--output", str(tmp_path / "trained")]
    model = [f"model.{size}" for size in SIZES]
    assert train_vl(["pretrain", "bert-small", *model, *STEP, *flags]) == 0
    (step,) = [row for row in read_log(tmp_path / "trained/log.jsonl") if row.get("step") == 1]
    assert step["loss"] > 0


def vcr(root: Path, image: Callable[..., bytes]) -> None:
    write(root / "val.jsonl", lines([vcr_line("val-0", "val-0")]))
    write(root / "vcr1images/m/val-0@1.jpg", image(40, 30))
    write(root / "vcr1images/m/val-0@1.json", METADATA)


def refcoco(root: Path, image: Callable[..., bytes]) -> None:
    write_refcoco(root)
    write(root / "train2014/COCO_train2014_000000000009.jpg", image(40, 30))


TASKS: dict[str, tuple[Any, tuple[Table, ...]]] = {
    "vcr": (vcr, (CHOICES,)),
    "refcoco+": (refcoco, (EXPRESSIONS, BOXES)),
}


@pytest.mark.parametrize("name", TASKS)
def test_annotated_boxes_of_tasks_become_regions(
    name: str, tmp_path: Path, image: Callable[..., bytes]
) -> None:
    layout, boxed = TASKS[name]
    layout(tmp_path / name, image)
    tables_out = tmp_path / "tables"
    assert manifest([name, "--input", str(tmp_path / name), "--output", str(tables_out)]) == 0
    for table in boxed:
        rows = read_table(tables_out, table).to_pylist()  # by its contract
        out = str(tmp_path / table.name)
        given = ["--boxes", str(tables_out / f"{table.name}-*.parquet")]
        words = ["run", str(tables_out), "--output", out, *given, *TINY]
        assert run_command(command, words) == 0
        regions = {row["image_id"]: row for row in read_table(out, REGIONS).to_pylist()}
        assert set(regions) == {row["image_id"] for row in rows}
        for row in rows:
            first = row["box"] if table is EXPRESSIONS else row["boxes"]
            first = first[0] if table is BOXES else first[:4]
            assert first in regions[row["image_id"]]["boxes"]
            assert regions[row["image_id"]]["features"] is not None
