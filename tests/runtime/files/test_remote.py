"""Places in a store behave as paths do, on moto's S3 server."""

import os
import pickle
from pathlib import Path

import pytest
from tests.object_stores import names_below

from vlmill.runtime.files.atomic import (
    atomic_folder,
    atomic_path,
    has_folder,
    remove_leftovers,
    write_json,
    write_text,
)
from vlmill.runtime.files.digests import path_input, table_input
from vlmill.runtime.files.manifest import read_manifest, verify_folder, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.paths import matches, remove_tree, require_local, to_path
from vlmill.runtime.files.reading import find_shards, read_table
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.files.shards import describe_shard, write_shard
from vlmill.runtime.files.stores import filesystem
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REJECTS

ROWS = [reject("stage", f"key {n}", Reason.DUPLICATE, "came earlier") for n in range(5)]


def test_a_local_argument_stays_a_local_path(tmp_path: Path) -> None:
    assert to_path(str(tmp_path)) == tmp_path
    assert to_path(tmp_path) is tmp_path
    assert type(to_path("out")) is type(tmp_path)


def test_names_are_put_together_as_those_of_paths() -> None:
    path = to_path("s3://bucket/a/b.tar.gz/")
    assert (str(path), path.name, path.suffix, path.stem) == (
        "s3://bucket/a/b.tar.gz",
        "b.tar.gz",
        ".gz",
        "b.tar",
    )
    assert str(path.parent / "c") == "s3://bucket/a/c"
    assert str(path.with_name("x")) == "s3://bucket/a/x"
    assert str(to_path("gs://bucket").parent) == "gs://bucket"
    assert pickle.loads(pickle.dumps(path)) == path
    assert sorted([to_path("s3://b/2"), to_path("s3://b/1")])[0] == to_path("s3://b/1")


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "s3:///", "://x"])
def test_what_is_no_place_of_a_store_is_one_line(url: str) -> None:
    with pytest.raises(InputError, match="give"):
        to_path(url)


def test_a_command_that_takes_no_store_says_so() -> None:
    require_local("--output", "a/b")
    require_local("--output", None)
    with pytest.raises(InputError, match=r"--output gs://b/x: .* local path"):
        require_local("--output", "gs://b/x")


def test_a_file_appears_by_one_upload_and_not_on_an_error(bucket: str) -> None:
    path = to_path(f"{bucket}/run/a.txt")
    assert not path.exists()
    write_text(path, "äß")
    assert path.read_text(encoding="utf-8") == "äß"
    assert path.stat().st_size == 4
    assert (path.is_file(), path.is_dir()) == (True, False)
    assert (path.parent.is_file(), path.parent.is_dir(), path.parent.exists()) == (
        False,
        True,
        True,
    )
    with pytest.raises(ZeroDivisionError), atomic_path(path.with_name("b")) as temporary:
        temporary.write_text("half")
        _ = 1 / 0
    assert names_below(bucket) == ["run/a.txt"]
    path.unlink()
    path.unlink(missing_ok=True)
    assert not path.exists()
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))


def test_a_folder_is_there_with_its_mark(bucket: str) -> None:
    folder = to_path(f"{bucket}/index")
    (folder / "a").upload(_file("left by a kill"))  # type: ignore[attr-defined]
    assert not has_folder(folder)
    with atomic_folder(folder) as temporary:
        (temporary / "b").write_text("b")
    assert has_folder(folder)
    with pytest.raises(OSError, match="not empty"), atomic_folder(folder):
        pass
    with atomic_folder(folder, replace=True) as temporary:
        (temporary / "c").write_text("c")
    assert names_below(str(folder)) == ["_whole", "c"]


def _file(text: str) -> Path:
    path = Path(os.environ["VLMILL_CACHE"], "file")
    path.write_text(text)
    return path


def test_folders_are_listed_and_matched(bucket: str) -> None:
    for name in ("a-1.txt", "a-2.txt", "b/a-3.txt", "b/c/a-4.txt"):
        write_text(to_path(bucket) / name, name)
    root = to_path(bucket)
    assert sorted(p.name for p in root.iterdir()) == ["a-1.txt", "a-2.txt", "b"]
    assert sorted(p.name for p in root.glob("a-*.txt")) == ["a-1.txt", "a-2.txt"]
    assert [str(p) for p in matches(f"{bucket}/*/a-*.txt")] == [f"{bucket}/b/a-3.txt"]
    remove_tree(root / "b")
    assert names_below(bucket) == ["a-1.txt", "a-2.txt"]


def test_a_stream_reads_ranges_as_a_file_does(bucket: str, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "x").write_bytes(content)
    place = to_path(f"{bucket}/x")
    assert isinstance(place, RemotePath)
    place.upload(tmp_path / "x")
    with place.open("rb") as file:
        assert file.read(10) == content[:10]
        file.seek(-5, 2)
        assert file.read() == content[-5:]
        file.seek(7)
        assert file.read(2 << 20) == content[7 : 7 + (2 << 20)]
        assert file.tell() == 7 + (2 << 20)


def test_a_copy_is_fetched_once_and_again_when_the_object_has_changed(bucket: str) -> None:
    place = to_path(f"{bucket}/x")
    write_text(place, "one")
    copy = Path(os.fspath(place))
    assert copy.read_text() == "one"
    assert Path(os.fspath(place)).stat().st_ino == copy.stat().st_ino
    write_text(place, "two")
    assert Path(os.fspath(place)).read_text() == "two"


def test_copies_stay_within_their_bound(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLMILL_CACHE_BYTES", "10")
    one, two = RemotePath(f"{bucket}/1"), RemotePath(f"{bucket}/2")
    write_text(one, "123456")
    write_text(two, "123456")
    first = Path(os.fspath(one))
    with pytest.raises(InputError, match=r"/2: its 6 bytes .* VLMILL_CACHE_BYTES \(10\)"):
        os.fspath(two)
    os.utime(first, (0, 0))  # nobody has asked for it for long
    assert Path(os.fspath(two)).read_text() == "123456"
    assert not first.exists()


def test_a_table_is_written_read_and_verified_as_on_a_disk(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/run"
    remote = write_shard(url, REJECTS, ROWS, 0, 1)
    local = write_shard(tmp_path, REJECTS, ROWS, 0, 1)
    assert remote == local
    (path,) = find_shards(url, REJECTS)
    assert describe_shard(path, REJECTS.name) == local
    assert read_table(f"{url}/rejects-*.parquet", REJECTS).equals(read_table(tmp_path, REJECTS))
    inputs = [path_input("--x", str(tmp_path)), table_input("--y", url, REJECTS)]
    write_manifest(url, [remote], job="job", settings={}, inputs=inputs)
    manifest = read_manifest(url)
    assert manifest["shards"] == [local]
    assert manifest["inputs"] == inputs
    assert verify_folder(url) == []
    write_manifest(tmp_path, [local], job="job", settings={})
    assert table_input("", url, REJECTS).digest == table_input("", tmp_path, REJECTS).digest
    write_shard(url, REJECTS, ROWS[:2], 0, 1)
    assert "manifest says" in verify_folder(url)[0]


def test_inputs_have_the_digests_that_their_copies_on_a_disk_have(
    bucket: str, tmp_path: Path
) -> None:
    for name in ("a.txt", "b/c.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        write_text(to_path(f"{bucket}/in") / name, name)
    for what in ("", "/a.txt", "/*.txt"):
        remote = path_input("--x", f"{bucket}/in{what}")
        local = path_input("--x", f"{tmp_path}{what}")
        assert (remote.digest, remote.bytes) == (local.digest, local.bytes)


def test_an_output_is_new_then_partial_then_finished(bucket: str) -> None:
    url = f"{bucket}/run"

    def state(**settings: object) -> State:
        return prepare_output(to_path(url), job="job", settings=settings)

    assert state(a=1) is State.NEW
    assert state(a=1) is State.PARTIAL
    assert state(a=2) is State.NEW and state(a=1) is State.NEW  # there is nothing but the plan
    write_shard(url, REJECTS, ROWS)
    with pytest.raises(InputError, match="a was 1 and is 2"):
        state(a=2)
    write_json(to_path(url) / "work" / "x.json", {})
    write_json(to_path(url) / "_manifest.json", {"shards": []})
    assert state(a=1) is State.FINISHED
    assert prepare_output(to_path(url), job="job", settings={}, fresh=True) is State.NEW
    assert names_below(url) == ["_plan.json"]
    write_text(to_path(f"{bucket}/other/x.txt"), "x")
    with pytest.raises(InputError, match=r"holds x\.txt"):
        prepare_output(to_path(f"{bucket}/other"), job="job", settings={})


def test_parts_of_a_killed_upload_are_removed(bucket: str) -> None:
    name = bucket.removeprefix("s3://")
    for key in ("run/half.parquet", "running/other"):
        filesystem(bucket).call_s3("create_multipart_upload", Bucket=name, Key=key)
    assert remove_leftovers(f"{bucket}/run") == [to_path(f"{bucket}/run/half.parquet")]
    left = filesystem(bucket).call_s3("list_multipart_uploads", Bucket=name)["Uploads"]
    assert [upload["Key"] for upload in left] == ["running/other"]


def test_a_damaged_file_in_a_store_is_named(bucket: str) -> None:
    write_text(to_path(f"{bucket}/rejects-1.parquet"), "not a Parquet")
    with pytest.raises(InputError, match=r"rejects-1\.parquet is not a readable Parquet file"):
        find_shards(f"{bucket}/rejects-1.parquet", REJECTS)
    with pytest.raises(InputError, match=r"--x .*/none: no table of rejects there"):
        find_shards(f"{bucket}/none", REJECTS, "--x")
