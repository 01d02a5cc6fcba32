"""Published pair sets and texts, from their layouts through regions to one step of pretraining."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipelines.manifest.layouts import LAYOUTS

from vlmill.extract.cli import command
from vlmill.pipelines.manifest import published_report
from vlmill.pipelines.manifest.job import main as manifest
from vlmill.pipelines.tables.command import main as tables
from vlmill.schemas.console.command import run_command
from vlmill.schemas.files.reading import read_table
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS
from vlmill.train.cli import main as train_vl
from vlmill.train.run.log import read_log

TINY = ("--arch", "tiny", "--short-side", "48", "--long-side", "64")
SIZES = ("width=16", "num_layers=2", "num_heads=2", "intermediate_width=32")
STEP = ("steps=1", "batch_size=4", "log_every=1", "vocabulary_size=90", "workers=0")
# What is pictures alone goes to a stage that reads pictures; texts need a recipe that reads them.
PAIR_SETS = [name for name in LAYOUTS if name not in ("imagenet22k", "text")]


@pytest.fixture(scope="module")
def outputs(
    tmp_path_factory: pytest.TempPathFactory, picture: Callable[..., bytes]
) -> dict[str, str]:
    """Each data set's tables, from its files."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_report, "write_published_report", lambda *_: None)
        for name, write in LAYOUTS.items():
            write(folder / name, picture)
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
