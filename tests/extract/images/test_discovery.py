"""Every file that is seen is planned or counted: folders, globs, braces, lists, tars."""

import io
import os
import socket
import tarfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from vlmill.extract.images.choosing import select_pair_images
from vlmill.extract.images.discovery import Skipped
from vlmill.extract.images.plan import BROKEN, InputImage, plan_images
from vlmill.extract.images.reader import InputReader
from vlmill.runtime.files.lock import LOCK
from vlmill.runtime.files.outputs import PLAN
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.schemas.tables import IMAGES, PAIRS

NFC, NFD = "M\N{LATIN SMALL LETTER O WITH DIAERESIS}we", "Mo\N{COMBINING DIAERESIS}we"


def encoded(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6)).save(out, kind)
    return out.getvalue()


def planned(*arguments: str | Path, ids: str = "name") -> tuple[list[InputImage], str]:
    skipped = Skipped()
    plan = plan_images([str(argument) for argument in arguments], ids, skipped)
    return plan, skipped.summary()


def names(plan: list[InputImage]) -> list[str]:
    return [Path(image.path).name for image in plan]


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_every_file_of_a_folder_is_planned_or_counted(tmp_path: Path) -> None:
    """By its first bytes where the ending is not that of an image."""
    jpeg = encoded("JPEG")
    images = ["a.jpg", "b.jfif", "c.jpe", "d.avif", "e.heic", "noext", "photo.jpg_large", "f.JPG"]
    for name in [*images, "really.txt"]:
        (tmp_path / name).write_bytes(jpeg)
    documents = {"x.svg": b"<svg/>", "y.pdf": b"%PDF-1.7", "z.mov": b"\0\0\0\x14ftypqt  \0\0\0\0"}
    for name, content in {**documents, "empty.jpg": b"", "404.png": b"<html>"}.items():
        (tmp_path / name).write_bytes(content)
    others = {"c.json": b"{}", "d.txt": b"BMW and MM", "Thumbs.db": b"\xd0\xcf", "zero": b""}
    for name, content in {**others, ".DS_Store": b"", "._a.jpg": b"\0\5\x16\7"}.items():
        (tmp_path / name).write_bytes(content)
    for folder in (".ipynb_checkpoints", "sub", "out", "at-work"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "g.jpg").write_bytes(jpeg)
    (tmp_path / "out" / PLAN).write_text("{}")
    (tmp_path / "at-work" / LOCK).touch()
    os.symlink(tmp_path / "sub", tmp_path / "again")
    os.symlink("nowhere", tmp_path / "dangling.jpg")
    os.symlink("nowhere", tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe.jpg")
    plan, skipped = planned(tmp_path)
    expected = [*images, "really.txt", *documents, "empty.jpg", "404.png", "dangling.jpg", "g.jpg"]
    assert sorted(names(plan)) == sorted(expected)
    kinds, _, rest = skipped.partition(")")
    assert sorted(kinds.removeprefix("skipped: 4 not images (").split(", ")) == [
        ".db",
        ".json",
        ".txt",
        "no ending",
    ]
    assert rest == (
        ", 2 hidden files, 1 hidden folder, 2 links that are not followed, 1 special file, "
        "2 output folders of vlmill"
    )


def test_a_pipe_of_a_list_is_rejected_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(Rejected, match="not a regular file"):
        InputReader(10).read(InputImage(path=str(tmp_path / "pipe.jpg")))


def test_an_empty_folder_says_what_was_seen(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=r"no images there \(skipped: 1 not an image \(.json\)"):
        planned(tmp_path)


def test_a_glob_counts_what_it_matches_beside_images(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "a.txt").write_text("a caption, and not a path")
    plan, skipped = planned(tmp_path / "*")
    assert names(plan) == ["a.jpg"]
    assert skipped == "skipped: 1 not an image (.txt), 1 folder that only the glob matched"
    (tmp_path / "a.txt").write_text("a.jpg")
    assert names(planned(tmp_path / "*.txt")[0]) == ["a.jpg"]


def test_braces_name_files(tmp_path: Path) -> None:
    for number in range(9, 12):
        write_tar(tmp_path / f"{number:03d}.tar", {f"{number}.jpg": b"x"})
    assert [p.image_id for p in planned(tmp_path / "{009..011}.tar")[0]] == ["9", "10", "11"]
    assert [p.image_id for p in planned(tmp_path / "0{11,09}.tar")[0]] == ["11", "9"]
    with pytest.raises(InputError, match=r"1 of its 4 files are missing.*012\.tar"):
        planned(tmp_path / "{009..012}.tar")
    with pytest.raises(InputError, match="more than 100000 names"):
        planned(tmp_path / "{0..99999}{0..99999}.tar")
    (tmp_path / "{a,b}.jpg").write_bytes(b"x")
    assert names(planned(tmp_path / "{a,b}.jpg")[0]) == ["{a,b}.jpg"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_lists_of_paths_as_editors_write_them(tmp_path: Path, encoding: str) -> None:
    lines = ["a.jpg", "", '"b c.jpg"', "  d.jpg ", "'e'.jpg", f"{NFC}.jpg", "gone.jpg", " "]
    for name in ("a.jpg", "b c.jpg", "d.jpg", "'e'.jpg", f"{NFD}.jpg"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "list.txt").write_bytes("\r\n".join(lines).encode(encoding))
    plan, _ = planned(tmp_path / "list.txt")
    assert [Path(p.path).is_file() for p in plan] == [True] * 5 + [False]
    assert names(plan)[1:4] == ["b c.jpg", "d.jpg", "'e'.jpg"]


def test_files_are_what_they_hold_and_not_what_they_are_called(tmp_path: Path) -> None:
    jpeg = encoded("JPEG")
    write_tar(tmp_path / "shard", {"a.jpg": jpeg, "b": jpeg})
    (tmp_path / "photo.tar").write_bytes(jpeg)
    (tmp_path / "page.tar").write_bytes(b"<html>404")
    (tmp_path / "c.tar.gz").write_bytes(b"\x1f\x8b\x08")
    plan, skipped = planned(tmp_path)
    assert [(p.key, p.kind) for p in plan] == [
        (str(tmp_path / "c.tar.gz"), BROKEN),
        (str(tmp_path / "page.tar"), BROKEN),
        ("photo.tar", "file"),
        ("a", "member"),
        ("b", "member"),
    ]
    assert not skipped
    with pytest.raises(Rejected, match="compressed with gzip; unpack") as rejected:
        InputReader(10).read(plan[0])
    assert rejected.value.reason is Reason.BROKEN_ARCHIVE
    (tmp_path / "d.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=r"d\.zip is a ZIP archive; unpack it"):
        planned(tmp_path / "d.zip")


def test_members_of_a_tar_are_planned_or_counted(tmp_path: Path) -> None:
    jpeg = encoded("JPEG")
    files = {
        **dict.fromkeys(["v1.0/7.jpg", "7.1.jpg", "7.2.jpg", "8.JFIF", "9", "8.png"], jpeg),
        **{"7.txt": b"caption", "7.json": b"{}", "./._8.jpg": b"\0\5\x16\7", ".git/x.jpg": jpeg},
        **{"x.svg": b"<svg>", "8.jpg": b""},
    }
    path = write_tar(tmp_path / "a.tar", files)
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "9"
        archive.addfile(link)
    plan, skipped = planned(path, ids="auto")
    ids = ["v1.0/7", "7.1", "7.2", "8", "9", "8", "x", "8"]
    assert [p.image_id for p in plan] == ids
    assert skipped == (
        "skipped: 2 not images (.txt, .json), 2 hidden files, 1 link that is not followed"
    )
    assert len(plan) + 5 == len(files) + 1
    with pytest.raises(Rejected, match=r"a\.tar/8\.png has the same id .*a\.tar/8\.JFIF"):
        InputReader(10).read(plan[5])
    content, _ = planned(path, ids="content")
    assert len(content) == len(plan) and content[1].key == f"{path}/7.1.jpg"


def test_names_of_a_mac_meet_names_of_tables(tmp_path: Path) -> None:
    (tmp_path / f"{NFD}.jpg").write_bytes(b"x")
    row = {"pair_id": "1", "image_id": f"{NFC}.jpg", "text": "a gull"}
    write_shard(tmp_path / "pairs", PAIRS, [row])
    plan, _ = planned(tmp_path / f"{NFD}.jpg")
    assert plan[0].image_id == NFD != NFC == unicodedata.normalize("NFC", NFD)
    assert [p.image_id for p in select_pair_images(plan, str(tmp_path / "pairs"))] == [f"{NFC}.jpg"]
    write_shard(tmp_path / "images", IMAGES, [{"image_id": "a", "uri": f"../{NFC}.jpg"}])
    (image,), _ = planned(tmp_path / "images")
    assert InputReader(10).read(image) == ("a", b"x")


def test_images_that_no_pair_names_are_counted(tmp_path: Path) -> None:
    """A file whose name cannot be an id is one of them, and stops nobody."""
    for name in ("a.jpg", "b.jpg", b"\xff.jpg".decode(errors="surrogateescape")):
        (tmp_path / name).write_bytes(b"x")
    write_shard(tmp_path / "p", PAIRS, [{"pair_id": "1", "image_id": "a", "text": "a gull"}])
    skipped, (plan, _) = Skipped(), planned(tmp_path)
    assert len(plan) == 3
    assert [p.image_id for p in select_pair_images(plan, str(tmp_path / "p"), skipped)] == ["a"]
    assert skipped.summary() == "skipped: 2 images that no pair names"


def test_a_socket_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.png")
        Path("a.png").write_bytes(b"x")
        assert planned(".")[1] == "skipped: 1 special file"


def test_the_ids_of_dotted_names_are_different(
    jpeg: Callable[[int], bytes], tmp_path: Path
) -> None:
    for number, name in enumerate(["1.0.jpg", "1.1.jpg", "2.0", "2.1"]):
        (tmp_path / name).write_bytes(jpeg(number))
    assert [p.image_id for p in planned(tmp_path)[0]] == ["1.0", "1.1", "2.0", "2.1"]
