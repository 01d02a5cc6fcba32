"""Records that anyone may have written: deep JSON and sizes of 10^12 are one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlmill.extract import cli as extract
from vlmill.pipelines.hard_negatives import __main__ as hard_negatives
from vlmill.pipelines.tables import __main__ as tables
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import PAIRS, REGIONS, VECTORS
from vlmill.train import cli as train

DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 5_000 + "1" + "}" * 5_000


def one_line(run: Callable[[], int], capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Runs a command, which must end with a mistake's status and one line that has the words."""
    capsys.readouterr()
    assert run() in (1, 2)
    error = capsys.readouterr().err
    *progress, line = error.splitlines()
    assert line.startswith("error: ") and len(line) < 1_500, error
    assert all(": 0/" in line or line.startswith("note: ") for line in progress), error
    assert all(word in line for word in words), error


def pairs(folder: Path) -> Path:
    rows = [{"pair_id": f"p{n}", "image_id": f"i{n}", "text": f"dog {n}"} for n in range(3)]
    write_manifest(folder, [write_shard(folder, PAIRS, rows)], job="test", settings={})
    return folder


def regions(folder: Path) -> Path:
    row = RegionRow(
        image_id="i0",
        width=9,
        height=9,
        boxes=np.array([[1, 1, 5, 5]], np.float32),
        features=np.ones((1, 4), np.float16),
    )
    shard = write_shard(
        folder,
        REGIONS,
        encode_regions([row], dtype="float16"),
        arrays=region_arrays(dtype="float16", feature_dim=4),
    )
    write_manifest(folder, [shard], job="test", settings={})
    return folder


def vectors(folder: Path) -> Path:
    rows = [{"kind": "image", "image_id": "i", "vector": np.ones(4, "<f4").tobytes()}]
    write_shard(folder, VECTORS, rows, arrays={"vector": {"dtype": "float32", "dim": 4}})
    return folder


def change_metadata(folder: Path, key: str, value: str) -> None:
    """Writes the only shard of a folder again, with other metadata, and the manifest for it."""
    (path,) = folder.glob("*.parquet")
    table = pq.read_table(path)
    metadata = {**(table.schema.metadata or {}), key.encode(): value.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    if (folder / "_manifest.json").exists():
        manifest = json.loads((folder / "_manifest.json").read_text())
        manifest["shards"][0]["bytes"] = path.stat().st_size
        (folder / "_manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("deep", [DEEP, DEEP_OBJECT, f'{{"shards": {DEEP}}}'])
def test_a_deep_manifest_or_plan(
    deep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = pairs(tmp_path / "pairs"), tmp_path / "out"
    mine = ["--pairs", str(folder), "--output", str(output)]
    assert hard_negatives.main(mine) == 0
    (output / "_plan.json").write_text(deep)
    one_line(lambda: hard_negatives.main(mine), capsys, str(output / "_plan.json"), "damaged")
    (folder / "_manifest.json").write_text(deep)
    named = str(folder / "_manifest.json")
    sample = ["sample", str(folder), "--rows", "1", "--output", str(tmp_path / "sample")]
    pretrain = ["pretrain", "bert-small", "--pairs", str(folder), "--output", str(tmp_path / "run")]
    for run in (
        lambda: run_command(extract.command, ["verify", str(folder)]),
        lambda: tables.main(sample),
        lambda: train.main(pretrain),
        lambda: train.main(["show", str(folder)]),
    ):
        one_line(run, capsys, named, "is damaged")


@pytest.mark.parametrize("key", ["vlmill.producer", "vlmill.arrays", "vlmill.places"])
@pytest.mark.parametrize("deep", [DEEP, DEEP_OBJECT])
def test_deep_metadata_of_a_shard(
    key: str, deep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = regions(tmp_path / "regions")
    change_metadata(folder, key, deep)
    export = ["export", str(folder), "--format", "npz", "--output", str(tmp_path / "out")]
    one_line(lambda: run_command(extract.command, export), capsys, "regions-00000-of-00001.parquet")


def test_an_array_of_a_million_million_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = regions(tmp_path / "regions")
    (path,) = folder.glob("*.parquet")
    arrays = json.loads(pq.read_schema(path).metadata[b"vlmill.arrays"])
    arrays["features"]["dim"] = 10**12
    change_metadata(folder, "vlmill.arrays", json.dumps(arrays))
    export = ["export", str(folder), "--format", "npz", "--output", str(tmp_path / "out")]
    one_line(lambda: run_command(extract.command, export), capsys, "features has 8 bytes")
    table = vectors(tmp_path / "vectors")
    change_metadata(
        table, "vlmill.arrays", '{"vector": {"dtype": "float32", "dim": 1000000000000}}'
    )
    search = ["search", "--vectors", str(table), "--queries", str(table)]
    one_line(lambda: train.main(search), capsys, "vector")


def test_an_image_of_a_million_million_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A width is of 32 bits: a file whose column is wider is not of the table's contract."""
    folder = regions(tmp_path / "regions")
    (path,) = folder.glob("*.parquet")
    table = pq.read_table(path)
    wide = table.set_column(
        table.schema.get_field_index("width"), "width", pa.array([10**12], pa.int64())
    )
    pq.write_table(wide, path)
    export = ["export", str(folder), "--format", "npz", "--output", str(tmp_path / "out")]
    one_line(lambda: run_command(extract.command, export), capsys, str(path), "width")
