"""The plan of pictures, and reading them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vlmill.extract.inputs import PictureReader, plan_digest, plan_pictures
from vlmill.extract.preprocess import Rejected
from vlmill.schemas.commands import InputError
from vlmill.schemas.ids import image_id_of
from vlmill.schemas.rejects import Reason
from vlmill.schemas.shards import ShardWriter
from vlmill.schemas.tables import IMAGES

NAMES = ["0", "1", "2", "3-empty", "3", "4-cut", "4", "5-again", "5", "6"]


def write_images(jpeg: Callable[[int], bytes], folder: Path) -> Path:
    """A table of three pictures in two row groups: bytes, a local file, a web address."""
    folder.mkdir()
    (folder / "local.jpg").write_bytes(jpeg(2))
    with ShardWriter(folder, IMAGES, 0, 1) as writer:
        writer.write([{"image_id": "a", "bytes": jpeg(1)}, {"image_id": "b", "uri": "local.jpg"}])
        writer.write([{"image_id": "c", "uri": "https://example.org/c.jpg"}])
    return folder


def test_a_folder_is_walked_in_order(pictures: Path) -> None:
    found = [Path(p.path).stem for p in plan_pictures([str(pictures)])]
    assert found == NAMES


def test_files_globs_and_lists(pictures: Path) -> None:
    listing = pictures / "list.txt"
    listing.write_text("6.jpg\n\n0.jpg\n")
    arguments = [str(pictures / "2.jpg"), str(pictures / "[01].jpg"), str(listing)]
    found = [Path(p.path).name for p in plan_pictures(arguments)]
    assert found == ["2.jpg", "0.jpg", "1.jpg", "6.jpg", "0.jpg"]


@pytest.mark.parametrize("argument", ["", "images-*.parquet", "images-00000-of-00001.parquet"])
def test_a_table_of_images(jpeg: Callable[[int], bytes], tmp_path: Path, argument: str) -> None:
    folder = write_images(jpeg, tmp_path / "table")
    plan = plan_pictures([str(folder / argument)])
    assert [(p.key, p.group, p.row) for p in plan] == [("a", 0, 0), ("b", 0, 1), ("c", 1, 0)]
    reader = PictureReader(2**20)
    assert reader.read(plan[0]) == ("a", jpeg(1))
    assert reader.read(plan[1]) == ("b", jpeg(2))
    with pytest.raises(Rejected) as rejected:
        reader.read(plan[2])
    assert rejected.value.reason is Reason.MISSING_IMAGE


def test_a_file_has_the_id_of_its_bytes(jpeg: Callable[[int], bytes], pictures: Path) -> None:
    (picture,) = plan_pictures([str(pictures / "1.jpg")])
    assert PictureReader(2**20).read(picture) == (image_id_of(jpeg(1)), jpeg(1))


def test_files_that_are_gone_or_too_large_are_rejected(pictures: Path) -> None:
    (picture,) = plan_pictures([str(pictures / "1.jpg")])
    with pytest.raises(Rejected) as rejected:
        PictureReader(10).read(picture)
    assert rejected.value.reason is Reason.TOO_LARGE
    (pictures / "1.jpg").unlink()
    with pytest.raises(Rejected) as rejected:
        PictureReader(2**20).read(picture)
    assert rejected.value.reason is Reason.MISSING_IMAGE


@pytest.mark.parametrize("name", ["nowhere", "empty", "*.jpg"])
def test_an_input_without_pictures_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="give picture files"):
        plan_pictures([str(tmp_path / name)])


def test_another_picture_changes_the_digest(jpeg: Callable[[int], bytes], pictures: Path) -> None:
    before = plan_digest(plan_pictures([str(pictures)]))
    assert plan_digest(plan_pictures([str(pictures)])) == before
    (pictures / "7.jpg").write_bytes(jpeg(7))
    assert plan_digest(plan_pictures([str(pictures)])) != before
