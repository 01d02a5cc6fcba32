"""Archives of strangers: entries that share bytes, and what unpacks to far more than it is."""

import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
from tests.pipelines.manifest.layouts import LAYOUTS, tar_of, write
from tests.pipelines.manifest.running import made, rows

from vlmill.pipelines.manifest.reading.tars import read_members
from vlmill.pipelines.manifest.reading.unpacking import (
    max_unpacked_bytes,
    open_tar,
    open_unpacked,
    open_zip,
)
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES

Image = Callable[..., bytes]


def zip_of(path: Path, *, overlap: int | None, packed: bool = True) -> None:
    """A zip of three files; the second begins ``overlap`` bytes behind the first's beginning."""
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as file:
        for name in ("a.jpg", "é.jpg", "c.jpg"):
            file.writestr(name, name * 50)
        if overlap is not None:
            file.filelist[1].header_offset = file.filelist[0].header_offset + overlap


@pytest.mark.parametrize("overlap", [0, 1, 40])
def test_a_zip_whose_entries_share_bytes_is_refused(tmp_path: Path, overlap: int) -> None:
    zip_of(tmp_path / "p.zip", overlap=overlap, packed=False)
    with pytest.raises(zipfile.BadZipFile, match=r"overlaps 'a\.jpg'"):
        open_zip(tmp_path / "p.zip")


def test_a_zip_whose_last_entry_reaches_into_the_directory_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as file:
        file.writestr("a.jpg", "text")
        file.filelist[0].compress_size += 1
    with pytest.raises(zipfile.BadZipFile, match="overlaps the directory"):
        open_zip(tmp_path / "p.zip")


@pytest.mark.parametrize("packed", [True, False])
def test_a_zip_as_tools_write_it_is_read(tmp_path: Path, packed: bool) -> None:
    zip_of(tmp_path / "p.zip", overlap=None, packed=packed)
    content = (tmp_path / "p.zip").read_bytes()
    (tmp_path / "self.zip").write_bytes(b"#!/bin/sh\n" + content)  # as one that unpacks itself
    for name in ("p.zip", "self.zip"):
        with open_zip(tmp_path / name) as file:
            assert file.read("é.jpg") == "é.jpg".encode() * 50


def test_images_of_a_zip_bomb_are_status_2(
    tmp_path: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    LAYOUTS["coco"](tmp_path / "in", image)
    zip_of(tmp_path / "p.zip", overlap=0)
    made("coco", tmp_path / "in", "--images", str(tmp_path / "p.zip"), status=2)
    assert "overlaps" in capsys.readouterr().err


def test_a_packed_tar_that_unpacks_to_far_more_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tar = tar_of({"zeros": bytes(65 << 20), "cc12m.tsv": b"http://a/a.jpg\ta dog\n"})
    write(tmp_path / "in/all.tar.gz", gzip.compress(tar, 1))
    made("cc12m", tmp_path / "in", status=2)
    assert "all.tar.gz unpacks to more than" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_plain_files_of_a_tar_are_read_whatever_packs_it(
    tmp_path: Path, mode: Literal["w", "w:gz", "w:bz2", "w:xz"]
) -> None:
    with tarfile.open(tmp_path / "p.tar", mode) as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"./{number}.txt")
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))
    with open_tar(tmp_path / "p.tar") as tar:
        assert [(m.name, tar.extractfile(m).read()) for m in tar] == [  # type: ignore[union-attr]
            (f"./{number}.txt", b"text") for number in range(3)
        ]


@pytest.mark.parametrize(
    ("name", "said"), [("a.tar", "or is truncated"), ("a.tar.gz", "is damaged")]
)
def test_a_tar_that_is_cut_names_itself(tmp_path: Path, name: str, said: str) -> None:
    content = tar_of({"a.txt": random.Random(1).randbytes(3_000)})
    whole = gzip.compress(content) if name.endswith(".gz") else content
    (tmp_path / name).write_bytes(whole[:1_500])
    with pytest.raises(InputError, match=rf"{name} .*{said}"), open_tar(tmp_path / name) as tar:
        list(read_members(tar))


def test_a_file_is_unpacked_by_how_it_begins(tmp_path: Path) -> None:
    for name, content, packed in (
        ("a.json.gz", b"{}", False),
        ("a.json", gzip.compress(b"{}"), True),
    ):
        (tmp_path / name).write_bytes(content)
        with ExitStack() as stack:
            file, is_packed = open_unpacked(tmp_path / name, stack)
            assert (file.read(), is_packed) == (b"{}", packed)
    assert max_unpacked_bytes(10) == 64 << 20
    assert max_unpacked_bytes(1 << 20) == 200 << 20
    assert max_unpacked_bytes(1 << 40) == 8 << 30


def test_sparse_files_of_a_tar_are_no_images(tmp_path: Path, image: Image) -> None:
    LAYOUTS["coco"](tmp_path / "in", image)
    with tarfile.open(tmp_path / "p.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        member = tarfile.TarInfo("train2014/COCO_train2014_000000000009.jpg")
        member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
        tar.addfile(member, io.BytesIO(bytes(512)))
    (tmp_path / "in/train2014/COCO_train2014_000000000009.jpg").unlink()
    out = made("coco", tmp_path / "in", "--images", str(tmp_path / "p.tar"))
    assert [row["image_id"] for row in rows(out, IMAGES)] == ["coco/000000000042"]
