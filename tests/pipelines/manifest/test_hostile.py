"""Images that cost too much: each is a reject, decoded elsewhere, and the job goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipelines.manifest.layouts import write
from tests.pipelines.manifest.running import made, reasons, rows
from worlds.hostile_images import IMAGES as HOSTILE

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.published import parts
from vlmill.pipelines.web.pages import images
from vlmill.runtime.bounded_calls import CallLimits
from vlmill.schemas.tables import IMAGES, PAIRS

Make = Callable[..., bytes]
NAMES = ("JPEG, EXIF of one segment", "PNG, texts", "TIFF, overlapping tags")


@pytest.fixture(autouse=True)
def nothing_decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where this process examines an image; those that it starts know nothing of that."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an image was examined in the process of the job")

    monkeypatch.setattr(images, "examine_image", refuse)


def test_own_images_that_cost_too_much_are_rejects(tmp_path: Path, image: Make) -> None:
    table = "file,caption\ngood,a cat\n"
    for number, name in enumerate(NAMES):
        write(tmp_path / f"in/{number}.jpg", HOSTILE[name].make())
        table += f"{number},a dog\n"
    write(tmp_path / "in/good.jpg", image(40, 30))
    write(tmp_path / "own.csv", table + "good,a mat\n")
    columns = ["--text-column", "caption", "--image-column", "file"]
    flags = ["--image-root", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert main(["own", "--input", str(tmp_path / "own.csv"), *columns, *flags]) == 0
    assert reasons(tmp_path / "out") == [(f"own.csv:{n + 3}", "too_expensive") for n in range(3)]
    assert [row["text"] for row in rows(tmp_path / "out", PAIRS)] == ["a cat", "a mat"]
    assert [row["bytes"] for row in rows(tmp_path / "out", IMAGES)] == [image(40, 30)]


def test_a_published_image_that_no_count_betrays_ends_at_a_limit(
    tmp_path: Path, image: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LIMITS", CallLimits(more_bytes=64 << 20))
    large = HOSTILE["PNG, 16 bits, 49 million pixels"]
    assert large.reason is None  # it decodes, where it may take 100 MB
    folder = tmp_path / "in/n01440764"
    for number in (1, 3):
        write(folder / f"n01440764_{number}.JPEG", image(9, 9, seed=number))
    write(folder / "n01440764_2.JPEG", large.make())
    out = made("imagenet22k", tmp_path / "in")
    assert reasons(out) == [("imagenet22k/n01440764_2", "too_expensive")]
    found = [(row["image_id"], row["bytes"]) for row in rows(out, IMAGES)]
    assert found == [(f"imagenet22k/n01440764_{n}", image(9, 9, seed=n)) for n in (1, 3)]
