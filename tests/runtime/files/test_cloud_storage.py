"""Places in Cloud Storage, on an emulator: the layer, the lock, and one job from end to end."""

from pathlib import Path

import pytest
from tests.factories import Tables
from tests.object_stores import download_folder, names_below, rows_of, upload_folder

from vlmill.pipelines.hard_negatives.__main__ import main as hard_negatives
from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.lock import LOCK, lock_output
from vlmill.runtime.files.paths import matches, to_path
from vlmill.runtime.files.remote_lock import _gs_location
from vlmill.runtime.files.stores import filesystem
from vlmill.schemas.errors import InputError


def test_files_come_and_go(gs_bucket: str) -> None:
    path = to_path(f"{gs_bucket}/a/b.txt")
    write_text(path, "one")
    assert path.read_text() == "one"
    assert (path.stat().st_size, path.parent.is_dir()) == (3, True)
    with path.open("rb") as file:
        file.seek(1)
        assert file.read() == b"ne"
    version = path.stat().version  # type: ignore[attr-defined]
    write_text(path, "two")
    assert path.stat().version != version  # type: ignore[attr-defined]
    assert [str(p) for p in matches(f"{gs_bucket}/a/*.txt")] == [str(path)]
    path.unlink()
    assert names_below(gs_bucket) == []
    with pytest.raises(InputError, match="the bucket vlmill-nowhere does not exist"):
        write_text(to_path("gs://vlmill-nowhere/x"), "x")
    with pytest.raises(InputError, match="the bucket vlmill-nowhere does not exist"):
        matches("gs://vlmill-nowhere/*.gz")


def test_its_address_is_known_without_gcsfs_private_attribute(gs_bucket: str) -> None:
    assert _gs_location(object()) == _gs_location(filesystem(gs_bucket))


def test_one_run_at_a_time(gs_bucket: str, capfd: pytest.CaptureFixture[str]) -> None:
    output = f"{gs_bucket}/run"
    with lock_output(output, seconds=1e6):
        with pytest.raises(InputError, match="is being written by process"), lock_output(output):
            pass
        (to_path(output) / LOCK).read_text()
        with lock_output(output, seconds=-1):
            assert "took over the lock" in capfd.readouterr().err
    assert names_below(gs_bucket) == []


@pytest.mark.nightly
def test_hard_negatives_has_the_rows_of_a_run_on_a_disk(gs_bucket: str, tmp_path: Path) -> None:
    Tables(tmp_path / "in").write(24)
    url = upload_folder(tmp_path / "in", f"{gs_bucket}/in")
    for base, output in ((tmp_path / "in", tmp_path / "out"), (url, f"{gs_bucket}/out")):
        assert hard_negatives(["--pairs", f"{base}/pairs", "--output", str(output)]) == 0
    copied = download_folder(f"{gs_bucket}/out", tmp_path / "copied")
    assert rows_of(copied) == rows_of(tmp_path / "out")
    assert {p.name for p in copied.iterdir()} == {p.name for p in (tmp_path / "out").iterdir()}
