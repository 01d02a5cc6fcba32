"""examples/own_recipe.py is what docs/training.md shows, and a run."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import PAIRS, REGIONS
from vlmill.train.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "own_recipe.py"
WIDTH = 16
# Sizes at which two stages take a second.
TINY = [
    "model.width=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_width=32",
    "stages.0.steps=2",
    "stages.1.steps=2",
    "stages.0.batch_size=4",
    "stages.1.batch_size=4",
    "vocabulary_size=100",
    "log_every=1",
]


def write_tables(folder: Path) -> tuple[str, str]:
    """Twelve pairs of two sources, some of them held out, and their regions."""
    rng = np.random.default_rng(0)
    empty = dict.fromkeys(PAIRS.schema.names)
    pairs = [
        {
            **empty,
            "pair_id": f"pair-{number}",
            "image_id": f"image-{number}",
            "text": f"image number {number} of a {('dog', 'cat', 'boat')[number % 3]}",
            "source": ("cc", "coco")[number % 2],
            "split": "val" if number > 9 else "train",
        }
        for number in range(12)
    ]
    regions = [
        RegionRow(
            image_id=f"image-{number}",
            width=200,
            height=100,
            boxes=np.array([[0, 0, 50, 50], [20, 10, 180, 90]], np.float32),
            features=rng.random((2, WIDTH)),
            class_ids=np.array([1, 2]),
        )
        for number in range(12)
    ]
    write_shard(folder / "pairs", PAIRS, pairs)
    write_shard(
        folder / "regions",
        REGIONS,
        encode_regions(regions, dtype="float16"),
        arrays=region_arrays(dtype="float16", feature_dim=WIDTH),
    )
    return str(folder / "pairs"), str(folder / "regions")


def test_the_page_shows_the_recipe() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    text = SCRIPT.read_text(encoding="utf-8")
    body = text[text.index("from dataclasses") : text.index('\n\nif __name__ == "__main__"')]
    assert f"```python\n{body.rstrip()}\n```" in page


def test_what_it_prints_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT), run_name="__main__")
    config = tmp_path / "own.yaml"
    config.write_text(capsys.readouterr().out, encoding="utf-8")
    pairs, regions = write_tables(tmp_path)
    output = tmp_path / "run"
    command = ["pretrain", "--config", str(config), "--pairs", pairs, "--regions", regions]
    assert main([*command, "--output", str(output), *TINY]) == 0
    log = read_log(output / "log.jsonl")
    assert [line["stage"] for line in log] == ["noisy", "noisy", "good", "good"]
    assert "loss/mrfr" in log[0] and "loss/mrfr" not in log[-1]
    assert "validation/loss" in log[-1] and (output / "model.safetensors").exists()
