"""Tables that break their contract: every command that reads one says so in one line."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.factories import Tables, write_images

from vlmill.extract.cli import command
from vlmill.pipelines.hard_negatives.__main__ import main as hard_negatives
from vlmill.pipelines.nearest_images.__main__ import main as nearest_images
from vlmill.pipelines.regions.__main__ import main as regions_job
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.shards import describe_shard
from vlmill.schemas.tables import TABLES, TASK_TABLES
from vlmill.train.cli import main as train_vl

TINY = ["--arch", "tiny", "--short-side", "48", "--long-side", "64"]
SIZES = ["width=16", "num_layers=2", "num_heads=2", "intermediate_width=32"]
MODEL = [f"model.{size}" for size in SIZES]
RECIPE = ["imagebert-small", *MODEL, "steps=0", "batch_size=4", "vocabulary_size=90"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole tables, and a checkpoint."""
    folder = tmp_path_factory.mktemp("inputs")
    tables = Tables(folder)
    tables.write()
    write_images(folder / "images", 3)
    ids = [str(i) for i in pq.read_table(next(Path(tables.pairs).iterdir()))["pair_id"].to_pylist()]
    tables.write_negatives({ids[0]: ids[1:3], ids[1]: ids[:1]})
    table = ["--pairs", tables.pairs, "--regions", tables.regions]
    assert train_vl(["pretrain", *RECIPE, *table, "--output", str(folder / "checkpoint")]) == 0
    return folder


@dataclasses.dataclass(frozen=True)
class Breakage:
    """What is wrong with a column, how it comes about, and what is said of it."""

    table: str
    column: str
    change: Callable[[pa.Array], pa.Array | None]
    said: str

    def apply(self, path: Path) -> None:
        """Writes the file again, as another program might."""
        table = pq.read_table(path, partitioning=None)
        at = table.schema.get_field_index(self.column)
        column = self.change(table.column(at).combine_chunks())
        table = table.remove_column(at)
        if column is not None:
            table = table.add_column(at, self.column, column)
        pq.write_table(table, path)


def cast(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: column.cast(kind)


def replaced(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: pa.array([None] * len(column), kind)


def first_null(column: pa.Array) -> pa.Array:
    return pa.array([None, *column.to_pylist()[1:]], column.type)


def two_no_utf8(column: pa.Array) -> pa.Array:
    """The first two texts are Latin-1."""
    texts = [b"caf\xe9", b"\xff", *(text.encode() for text in column.to_pylist()[2:])]
    binary = pa.array(texts, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), binary.buffers())


def null_inside(column: pa.Array) -> pa.Array:
    lists = column.to_pylist()
    return pa.array([[None, *lists[0][1:]], *lists[1:]], column.type)


def dropped(column: pa.Array) -> None:
    return None


NONE, DOUBLE, INT32 = "must have none", pa.float64(), pa.int32()
NO_UTF8 = f"2 texts that are not UTF-8, {NONE}"
BREAKAGES = {
    "pairs without text": ("pairs", "text", dropped, "lacks the column text (string)"),
    "pairs of numbers": ("pairs", "image_id", replaced(INT32), "is int32, must be string"),
    "pairs without an id": ("pairs", "pair_id", first_null, f"1 nulls, {NONE}"),
    "pairs in Latin-1": ("pairs", "text", two_no_utf8, NO_UTF8),
    "pairs with ids in Latin-1": ("pairs", "image_id", two_no_utf8, NO_UTF8),
    "regions without boxes": ("regions", "boxes", dropped, "lacks the column boxes (list<"),
    "regions of doubles": (
        *("regions", "boxes", cast(pa.list_(pa.list_(DOUBLE, 4)))),
        "is list<item: fixed_size_list<item: double>[4]>, must be list<",
    ),
    "regions of wide classes": (
        *("regions", "class_ids", cast(pa.list_(INT32))),
        "is list<item: int32>, must be list<item: int16>",
    ),
    "regions of wide counts": ("regions", "num_boxes", cast(pa.int64()), "is int64, must be int32"),
    "regions without an id": ("regions", "image_id", first_null, f"1 nulls, {NONE}"),
    "regions in Latin-1": ("regions", "image_id", two_no_utf8, NO_UTF8),
    "images without an id column": ("images", "image_id", dropped, "lacks the column image_id"),
    "images of short bytes": (
        *("images", "bytes", cast(pa.binary())),
        "is binary, must be large_binary",
    ),
    "images without an id": ("images", "image_id", first_null, f"1 nulls, {NONE}"),
    "images in Latin-1": ("images", "image_id", two_no_utf8, NO_UTF8),
    "negatives of doubles": (
        *("negatives", "similarities", cast(pa.list_(DOUBLE))),
        "is list<item: double>, must be list<item: float>",
    ),
    "negatives without an id": ("negatives", "pair_id", first_null, f"1 nulls, {NONE}"),
    "negatives in Latin-1": ("negatives", "pair_id", two_no_utf8, NO_UTF8),
    "negatives of nobody": ("negatives", "negative_pair_ids", null_inside, f"1 nulls, {NONE}"),
}


def extract_rois(words: list[str]) -> int:
    return run_command(command, words)


Command = Callable[[list[str]], int]


def commands_of(folder: Path) -> dict[str, dict[str, tuple[Command, list[str]]]]:
    """Every command that reads a table, by table; without those that write, their ``--output``."""
    tables = Tables(folder)
    pairs, regions = ["--pairs", tables.pairs], ["--regions", tables.regions]
    images, out = str(folder / "images"), ["--output", str(folder / "out")]
    pretrain = ["pretrain", *RECIPE, *pairs, *regions, *out]
    pixels = ["pretrain", "vlmo-small", *pairs, "--images", images, *out]
    evaluate = ["evaluate", "retrieval", "--checkpoint", str(folder / "checkpoint"), *out]
    evaluate += [*pairs, *regions]
    negatives = ["hard_negative_share=1", "--negatives", tables.negatives]
    run, show = ["run", images, *TINY, *out], ["show", tables.regions, "--images", images, *out]
    return {
        "pairs": {
            "pretrain": (train_vl, pretrain),
            "evaluate": (train_vl, evaluate),
            "extract-rois run": (extract_rois, [*run, *pairs]),
            "hard_negatives": (hard_negatives, [*pairs, *out]),
            "nearest_images": (nearest_images, [*regions, *pairs, *out]),
        },
        "regions": {
            "pretrain": (train_vl, pretrain),
            "evaluate": (train_vl, evaluate),
            "show": (extract_rois, show),
            "export": (extract_rois, ["export", tables.regions, "--format", "npz", *out]),
            "nearest_images": (nearest_images, [*regions, *out]),
        },
        "images": {
            "pretrain": (train_vl, pixels),
            "evaluate": (train_vl, [*evaluate, "--images", images]),
            "extract-rois run": (extract_rois, run),
            "show": (extract_rois, show),
            "regions": (regions_job, ["--images", images, *TINY, *out]),
        },
        "negatives": {"pretrain": (train_vl, [*pretrain, *negatives])},
    }


# Of pairs these take the ids of images, and their splits, alone.
UNREAD = {("pairs in Latin-1", name) for name in ("extract-rois run", "nearest_images")}
CASES = [
    (kind, name)
    for kind, (table, *_) in BREAKAGES.items()
    for name in commands_of(Path())[table]
    if (kind, name) not in UNREAD
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_one_line_names_file_column_and_what_is_wrong(
    kind: str, name: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breakage, folder = Breakage(*BREAKAGES[kind]), tmp_path / "broken"
    shutil.copytree(inputs, folder)
    (path,) = (folder / breakage.table).glob("*.parquet")
    breakage.apply(path)
    run, words = commands_of(folder)[breakage.table][name]
    assert run(words) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert line.startswith(f"error: {path}: {breakage.table}")
    assert breakage.column in line
    assert breakage.said in line.replace("<element: ", "<item: ")  # Parquet's own name of it
    assert line.endswith("write the table again by its contract (docs/tables.md)")
    if breakage.table != "negatives":  # those are read when the output has been begun
        assert not (folder / "out").exists()


@pytest.mark.parametrize("kind", [k for k, (table, *_) in BREAKAGES.items() if table == "regions"])
def test_verify_lists_it(
    kind: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breakage = Breakage(*BREAKAGES[kind])
    shutil.copytree(inputs / "regions", tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.glob("*.parquet")
    breakage.apply(path)
    write_manifest(tmp_path, [describe_shard(path, breakage.table)], job="mine", settings={})
    assert extract_rois(["verify", str(tmp_path)]) == 1
    assert breakage.said in capsys.readouterr().err.replace("<element: ", "<item: ")


def test_every_table_that_is_read_is_here() -> None:
    unread = {"rejects", "vocabulary", "neighbours"}  # by any command but `verify`
    unread |= {"outcomes"}  # by `crawl`, as any table of URLs
    unread |= {"vectors"}  # by `train-vl search`, whose own tests break them
    unread |= {"candidates"}  # by `web_pairs --candidates`, whose own tests break them
    # By `tables` and `run --boxes`, whose own tests break them.
    unread |= {"aliases", "boxes", *(table.name for table in TASK_TABLES)}
    assert {table for table, *_ in BREAKAGES.values()} == set(TABLES) - unread
