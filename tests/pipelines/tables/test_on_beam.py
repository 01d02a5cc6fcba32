"""Shards written by Beam's workers, by processes and in any order: the same bytes."""

from pathlib import Path

import pytest
from tests.pipelines.tables.test_job import folder, image, pair
from tests.runtime.units.shuffled import run_backwards

from vlmill.pipelines.tables import __main__ as command_module
from vlmill.pipelines.tables.__main__ import main
from vlmill.runtime.files.manifest import verify_folder
from vlmill.schemas.tables import IMAGES, PAIRS


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.glob("*.parquet"))}


@pytest.mark.parametrize(
    "words",
    [
        ["concat"],  # which rows stay depends on the shards before
        ["filter", "--where", "score > 0.5"],
        ["remove", "--image-ids", "IDS"],
    ],
)
def test_workers_of_a_runner_write_the_same_bytes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [pair(n % 4, f"i{n % 3}", score=n / 6) for n in range(6)]
    images = [image(f"i{n}", bytes([n])) for n in range(3)]
    source = folder(tmp_path / "in", {PAIRS: [rows[:2], rows[2:4], rows[4:]], IMAGES: [images]})
    (tmp_path / "ids").write_text("i1\n")
    flags = [str(tmp_path / "ids") if word == "IDS" else word for word in words[1:]]
    inputs = [source, source] if words == ["concat"] else [source]
    command = [words[0], *inputs, *flags]
    assert main([*command, "--output", str(tmp_path / "here")]) == 0
    assert main([*command, "--output", str(tmp_path / "there"), "--runner=FnApiRunner"]) == 0
    assert main([*command, "--output", str(tmp_path / "two"), "--workers", "2"]) == 0
    monkeypatch.setattr(command_module, "select_runner", lambda *_, **__: run_backwards)
    assert main([*command, "--output", str(tmp_path / "back")]) == 0
    assert verify_folder(tmp_path / "there") == []
    funnels = [(tmp_path / one / "funnel.json").read_bytes() for one in ("here", "there")]
    assert (funnels[0] == funnels[1] and b"excluded" in funnels[0]) or b"duplicate" in funnels[0]
    for name in ("there", "two", "back"):
        assert contents(tmp_path / name) == contents(tmp_path / "here")
