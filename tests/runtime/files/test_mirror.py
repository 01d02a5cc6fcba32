"""A run whose files grow goes on elsewhere from what the store has of its last push."""

from pathlib import Path

import pytest
from tests.object_stores import names_below

from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.files.mirror import (
    LISTING,
    mirror_output,
    named_from,
    push,
    require_one_process,
)
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.schemas.errors import InputError


class Killed(BaseException):
    """Ends a run without its last push, as a kill does."""


def kill(output: str, files: dict[str, str], then: dict[str, str]) -> None:
    """A run that pushes ``files``, writes ``then`` and is killed."""
    with pytest.raises(Killed), mirror_output(output, without=("prepared",)) as folder:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        push(folder)
        for name, text in then.items():
            (folder / name).write_text(text)
        raise Killed


def upload(url: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    place = to_path(url)
    assert isinstance(place, RemotePath)
    place.upload(tmp_path / "file")


def content(output: str) -> dict[str, str]:
    """What a run finds that goes on."""
    with mirror_output(output) as folder:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_a_local_output_is_its_own_folder(tmp_path: Path) -> None:
    with mirror_output(tmp_path / "run") as folder:
        assert folder == tmp_path / "run"
    push(tmp_path)
    assert not folder.exists()


def test_a_run_goes_on_from_its_last_push(bucket: str) -> None:
    output = f"{bucket}/run"
    files = {"log": "1\n", "steps/a": "a", "prepared/x": "x", "seed/prepared/x": "x"}
    kill(output, files, {"log": "1\n2\n", "new": "n"})
    assert content(output) == {"log": "1\n", "steps/a": "a"}


def test_a_log_that_a_killed_push_has_uploaded_is_cut_back(bucket: str, tmp_path: Path) -> None:
    output = f"{bucket}/run"
    kill(output, {"log": "1\n"}, {})
    upload(f"{output}/log", "1\n2\nhal", tmp_path)
    upload(f"{output}/steps/b", "of a push without its end", tmp_path)
    assert content(output) == {"log": "1\n"}
    assert names_below(output) == [LISTING, "log"]


def test_what_is_gone_goes_and_the_manifest_comes_last(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, uploaded = f"{bucket}/run", []
    with mirror_output(output, last="a") as folder:
        (folder / "old").write_text("old")
        push(folder)
        (folder / "old").unlink()
        (folder / MANIFEST).write_text("{}")
        (folder / "seed-0").mkdir()
        (folder / "seed-0" / MANIFEST).write_text("{}")
        for name in ("a", "z"):
            (folder / name).write_text(name)
        upload = RemotePath.upload

        def noted(self: RemotePath, file: Path) -> object:
            uploaded.append(self.name)
            return upload(self, file)

        monkeypatch.setattr(RemotePath, "upload", noted)
    assert uploaded == ["z", "a", LISTING, MANIFEST, MANIFEST]
    assert names_below(output) == [MANIFEST, LISTING, "a", f"seed-0/{MANIFEST}", "z"]


def test_a_strangers_place_is_refused_and_left_alone(bucket: str) -> None:
    write_text(to_path(f"{bucket}/thesis.tex"), "x")
    with pytest.raises(InputError, match=r"holds thesis\.tex"), mirror_output(f"{bucket}/"):
        pass
    assert names_below(bucket) == ["thesis.tex"]


@pytest.mark.parametrize("listing", ["{", '{"files": {"../x": [1, "a"]}}', '{"files": 3}'])
def test_a_damaged_listing_is_named(bucket: str, listing: str) -> None:
    write_text(to_path(f"{bucket}/run/{LISTING}"), listing)
    with pytest.raises(InputError, match=r"_mirror\.json"), mirror_output(f"{bucket}/run"):
        pass


def test_a_push_of_a_folder_below_is_one_of_the_run(bucket: str) -> None:
    with mirror_output(f"{bucket}/run") as folder:
        write_text(folder / "seed-0" / "log", "1")
        push(folder / "seed-0")
        assert names_below(f"{bucket}/run") == [LISTING, "seed-0/log"]


def test_relative_names_are_recorded_of_local_outputs_alone(bucket: str) -> None:
    assert named_from("runs/a", "pairs") == "pairs" and named_from(bucket, None) is None
    assert named_from(bucket, "s3://b/pairs") == "s3://b/pairs"
    assert named_from(bucket, "pairs") == str(Path("pairs").absolute())


def test_several_processes_need_a_folder(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    require_one_process("runs/a")
    with pytest.raises(InputError, match="several processes share a folder"):
        require_one_process(bucket)


def test_errors_name_the_place(bucket: str) -> None:
    with (
        pytest.raises(InputError, match=f"^{bucket}/run/x: no$"),
        mirror_output(f"{bucket}/run") as at,
    ):
        raise InputError(f"{at}/x: no")
