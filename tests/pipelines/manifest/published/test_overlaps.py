"""Images that other sets have, too: what is excluded is in no table, and what stays in all."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipelines.manifest.layouts import karpathy_image, write, write_json
from tests.pipelines.manifest.running import made, reasons, rows

from vlmill.schemas.tables import IMAGES, PAIRS

Image = Callable[..., bytes]
NAMES = {10: "train", 11: "val", 12: "train"}


def write_flickr30k(root: Path, image: Image) -> Path:
    """An image of training and one of validation that are the same photo, and another one."""
    images = [karpathy_image(number, f"{number}.jpg", split) for number, split in NAMES.items()]
    write_json(root / "dataset_flickr30k.json", {"images": images})
    for number in NAMES:
        write(root / f"flickr30k-images/{number}.jpg", image(40, 30, seed=min(number, 11)))
    write(root / "flickr30k-images/11.jpg", image(40, 30, seed=10))
    return root


def shown(folder: Path) -> tuple[list[str], list[str]]:
    """The images that pairs name, and those that are there."""
    named = dict.fromkeys(row["image_id"].partition("/")[2] for row in rows(folder, PAIRS))
    return list(named), [row["image_id"].partition("/")[2] for row in rows(folder, IMAGES)]


def test_an_excluded_image_is_in_no_table(tmp_path: Path, image: Image) -> None:
    root = write_flickr30k(tmp_path / "in", image)
    write(tmp_path / "ids.txt", "flickr/10\n")
    out = made("flickr30k", root, "--exclude", str(tmp_path / "ids.txt"))
    assert shown(out) == (["11", "12"], ["11", "12"])
    assert ("flickr30k/10", "excluded") in reasons(out)
    kept = made("flickr30k", root, "--compare", str(tmp_path / "ids.txt"), "--fresh")
    assert shown(kept) == (["10", "11", "12"], ["10", "11", "12"])


def test_images_alone_are_excluded_by_their_ids(tmp_path: Path, image: Image) -> None:
    for number in (1, 2):
        write(tmp_path / f"in/n01440764/n01440764_{number}.JPEG", image(9, 9, seed=number))
    write(tmp_path / "ids.txt", "imagenet22k/n01440764_1\n")
    out = made("imagenet22k", tmp_path / "in", "--exclude", str(tmp_path / "ids.txt"))
    assert [row["image_id"] for row in rows(out, IMAGES)] == ["imagenet22k/n01440764_2"]


@pytest.mark.parametrize("by", ["id", "hash"])
def test_rows_of_validation_stay_with_their_images(tmp_path: Path, image: Image, by: str) -> None:
    root = write_flickr30k(tmp_path / "in", image)
    write(tmp_path / "ids.txt", "flickr/10\nflickr/11\n")
    if by == "hash":
        write(tmp_path / "test/n01440764/n01440764_1.JPEG", image(40, 30, seed=10))
        flags = ["--exclude-hash", str(made("imagenet22k", tmp_path / "test"))]
    else:
        flags = ["--exclude", str(tmp_path / "ids.txt")]
    out = made("flickr30k", root, *flags, "--exclude-from", "train")
    assert shown(out) == (["11", "12"], ["10", "11", "12"])
    assert {reason for _, reason in reasons(out)} == {"excluded"}
    assert shown(made("flickr30k", root, *flags, "--fresh")) == (["12"], ["12"])
