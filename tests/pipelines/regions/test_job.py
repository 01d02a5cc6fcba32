"""The regions job: the same bytes as ``extract-rois run``, resume, duplicates, mistakes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vlmill.extract.cli import command as extract_rois
from vlmill.extract.run import job as command_job
from vlmill.pipelines.regions import __main__ as command
from vlmill.pipelines.regions import job
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import IMAGES, REGIONS, REJECTS

FLAGS = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--max-boxes", "5"]
FLAGS += ["--images-per-shard", "3"]


@pytest.fixture(scope="module")
def images(image: Callable[..., bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables: five good images, one broken, one that comes again in a later part."""
    folder = tmp_path_factory.mktemp("tables") / "images"
    good = [image(96, 64 + 8 * n, seed=n) for n in range(5)]
    first, second = [*good[:3], b"no picture"], [good[3], good[0], good[4]]
    for index, contents in enumerate((first, second)):
        rows = [{"image_id": compute_image_id(data), "bytes": data} for data in contents]
        write_shard(folder, IMAGES, rows, index, 2)
    return folder


@pytest.fixture(scope="module")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What ``extract-rois run`` writes for the same table."""
    output = tmp_path_factory.mktemp("expected") / "out"
    assert extract_rois(["run", str(images), "--output", str(output), *FLAGS]) == 0
    return files_of(output)


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def run(images: Path, output: Path, *more: str) -> int:
    return command.main(["--images", str(images), "--output", str(output), *FLAGS, *more])


def test_both_ways_write_the_same_bytes(
    images: Path, expected: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(images, tmp_path / "out") == 0
    printed = capsys.readouterr()
    assert "done: 7 images, 5 rows of regions, 2 rejects" in printed.out
    assert "RANDOM weights" in printed.err and "random weights, seed 0" in printed.out
    assert files_of(tmp_path / "out") == expected
    assert verify_folder(tmp_path / "out") == []
    assert read_table(tmp_path / "out", REGIONS).num_rows == 5
    rejects = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert [r["reason"] for r in rejects] == ["unsupported_format", "duplicate"]


def test_a_run_continues_what_the_command_left(
    images: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command is stopped before its manifest, and a bit of one of its shards flips."""
    output = tmp_path / "out"

    def stop(*_: object, **__: object) -> None:
        raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(command_job, "write_manifest", stop)
        with pytest.raises(OSError, match="stopped"):
            extract_rois(["run", str(images), "--output", str(output), *FLAGS])
    kept, damaged = sorted(output.glob("regions-*"))[:2]
    stamp, content = kept.stat().st_mtime_ns, bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert run(images, output) == 0
    said = capsys.readouterr().err
    assert "continuing: extract, 2 of 3 units finished before" in said
    assert f"{damaged} has changed since it was written" in said
    assert kept.stat().st_mtime_ns == stamp
    assert files_of(output) == expected
    assert run(images, output) == 0
    assert "finished before" in capsys.readouterr().out


def test_batches_are_those_of_the_command(images: Path, tmp_path: Path) -> None:
    outputs = tmp_path / "command", tmp_path / "job"
    flags = [*FLAGS, "--batch-size", "2"]
    assert extract_rois(["run", str(images), "--output", str(outputs[0]), *flags]) == 0
    assert run(images, outputs[1], "--batch-size", "2") == 0
    assert files_of(outputs[0]) == files_of(outputs[1])


@pytest.mark.nightly
def test_worker_processes_write_the_same_bytes(
    images: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    flags = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    assert run(images, tmp_path / "out", *flags) == 0
    assert files_of(tmp_path / "out") == expected


def test_a_worker_with_other_weights_stops_the_job(images: Path, tmp_path: Path) -> None:
    arguments = command.parser().parse_args(
        ["--images", str(images), "--output", str(tmp_path / "out"), *FLAGS]
    )
    with pytest.raises(OSError, match="the worker's networks have the fingerprints"):
        job.open_job(arguments, ("0" * 32,))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--images", "nowhere"], "--images nowhere: no table of images there"),
        (["--weights", "nowhere.pth"], "--weights nowhere.pth: no such file"),
        (["--threshold", "2"], "--threshold 2.0: expected a probability, 0 to 1"),
        (["--no-such-flag"], "--no-such-flag: neither this job nor Apache Beam has this flag"),
    ],
)
def test_mistakes_are_told_in_one_line(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert run(images, tmp_path / "out", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
