"""The plan of images, and reading them."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmill.extract.images.choosing import select_pair_images, with_missing_boxes
from vlmill.extract.images.discovery import Skipped
from vlmill.extract.images.given_boxes import parse_boxes, read_boxes, require_inside
from vlmill.extract.images.plan import REPEATED, mark_repeats, plan_digest, plan_images
from vlmill.extract.images.reader import InputReader
from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, IMAGES, PAIRS, REGIONS, table_of_rows

NAMES = ["0", "1", "2", "3-empty", "3", "4-cut", "4", "5-again", "5", "6"]


def write_images(jpeg: Callable[[int], bytes], folder: Path) -> Path:
    """A table of three images in two row groups: bytes, a local file, a web address."""
    folder.mkdir()
    (folder / "local.jpg").write_bytes(jpeg(2))
    with ShardWriter(folder, IMAGES, 0, 1) as writer:
        writer.write([{"image_id": "a", "bytes": jpeg(1)}, {"image_id": "b", "uri": "local.jpg"}])
        writer.write([{"image_id": "c", "uri": "https://example.org/c.jpg"}])
    return folder


def test_a_folder_is_walked_in_order(images: Path) -> None:
    found = [Path(p.path).stem for p in plan_images([str(images)])]
    assert found == NAMES


def test_files_globs_and_lists(images: Path) -> None:
    listing = images / "list.txt"
    listing.write_text("6.jpg\n\n0.jpg\n")
    arguments = [str(images / "2.jpg"), str(images / "[01].jpg"), str(listing)]
    found = [Path(p.path).name for p in plan_images(arguments)]
    assert found == ["2.jpg", "0.jpg", "1.jpg", "6.jpg", "0.jpg"]


@pytest.mark.parametrize("argument", ["", "images-*.parquet", "images-00000-of-00001.parquet"])
def test_a_table_of_images(jpeg: Callable[[int], bytes], tmp_path: Path, argument: str) -> None:
    folder = write_images(jpeg, tmp_path / "table")
    plan = plan_images([str(folder / argument)])
    assert [(p.key, p.group, p.row) for p in plan] == [("a", 0, 0), ("b", 0, 1), ("c", 1, 0)]
    reader = InputReader(2**20)
    assert reader.read(plan[0]) == ("a", jpeg(1))
    assert reader.read(plan[1]) == ("b", jpeg(2))
    with pytest.raises(Rejected) as rejected:
        reader.read(plan[2])
    assert rejected.value.reason is Reason.MISSING_IMAGE


def test_a_file_has_the_id_of_its_bytes(jpeg: Callable[[int], bytes], images: Path) -> None:
    (image,) = plan_images([str(images / "1.jpg")])
    assert InputReader(2**20).read(image) == (compute_image_id(jpeg(1)), jpeg(1))


def test_files_that_are_gone_or_too_large_are_rejected(images: Path) -> None:
    (image,) = plan_images([str(images / "1.jpg")])
    with pytest.raises(Rejected) as rejected:
        InputReader(10).read(image)
    assert rejected.value.reason is Reason.TOO_LARGE
    (images / "1.jpg").unlink()
    with pytest.raises(Rejected) as rejected:
        InputReader(2**20).read(image)
    assert rejected.value.reason is Reason.MISSING_IMAGE


@pytest.mark.parametrize("name", ["nowhere", "empty", "*.jpg"])
def test_an_input_without_images_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="give image files"):
        plan_images([str(tmp_path / name)])


def test_another_image_changes_the_digest(jpeg: Callable[[int], bytes], images: Path) -> None:
    before = plan_digest(plan_images([str(images)]))
    assert plan_digest(plan_images([str(images)])) == before
    (images / "7.jpg").write_bytes(jpeg(7))
    assert plan_digest(plan_images([str(images)])) != before


# --- Tars -----------------------------------------------------------------------------------------


def tar_of(path: Path, files: dict[str, bytes], **options: Any) -> Path:
    with tarfile.open(path, "w", **options) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_in_webdatasets_layout(
    jpeg: Callable[[int], bytes], tmp_path: Path, layout: int
) -> None:
    long = "x" * 150
    files = {
        "00001.jpg": jpeg(1),
        "00001.txt": b"a caption",
        "00001.json": b"{}",
        "./b/00002.JPG": jpeg(2),
        "00003.left.png": jpeg(4),
        "00003.right.png": b"rejected when it is read",
        "00004": jpeg(5),
        "00005.pyd": b"no image",
        f"{long[:90]}/{long[:60]}.png": jpeg(3),
    }
    path = tar_of(tmp_path / "shard-000.tar", files, format=layout)
    skipped = Skipped()
    plan = plan_images([str(path)], skipped=skipped)
    last = f"{long[:90]}/{long[:60]}"
    ids = ["00001", "b/00002", "00003.left", "00003.right", "00004", last]
    contents = [jpeg(1), jpeg(2), jpeg(4), files["00003.right.png"], jpeg(5), jpeg(3)]
    reader = InputReader(2**20)
    assert [reader.read(p) for p in plan] == list(zip(ids, contents, strict=True))
    assert skipped.summary() == "skipped: 3 not images (.txt, .json, .pyd)"
    assert len(plan) + 3 == len(files)
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    everything = plan_images([str(tmp_path)], "content")
    assert [reader.read(p)[0] for p in everything] == [
        compute_image_id(content) for content in [jpeg(1), *contents]
    ]


def test_links_and_paths_of_a_tar_lead_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"link{kind.decode()}.jpg")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("../../outside.jpg")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"data"))
    (image,) = plan_images([str(path)])
    assert InputReader(10).read(image) == ("../../outside", b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["evil.tar"]
    with pytest.raises(Rejected) as rejected:
        InputReader(3).read(image)
    assert rejected.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("cut", [512 * 7, 512 * 7 + 100, 512 * 2 + 9, 600])
def test_a_tar_that_was_cut_gives_what_is_whole(
    jpeg: Callable[[int], bytes], tmp_path: Path, cut: int
) -> None:
    files = {f"{number}.jpg": bytes([number]) * 1000 for number in range(4)}
    path = tar_of(tmp_path / "cut.tar", files)
    path.write_bytes(path.read_bytes()[:cut])
    reader, read, reasons = InputReader(2**20), [], []
    for image in plan_images([str(path)]):
        try:
            read.append(reader.read(image)[0])
        except Rejected as why:
            reasons.append(why.reason)
    assert read == [str(number) for number in range(cut // 1536)]
    assert set(reasons) <= {Reason.BROKEN_ARCHIVE}
    assert reasons or cut % 1536 == 0


def test_a_tar_with_rubbish_in_the_middle_is_counted(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", {"1.jpg": b"x" * 512, "2.jpg": b"y" * 512})
    content = bytearray(path.read_bytes())
    content[1024:1100] = b"\xff" * 76
    path.write_bytes(content)
    plan = plan_images([str(path)])
    assert [(p.key, p.kind) for p in plan] == [("1", "member"), (str(path), "broken")]
    with pytest.raises(Rejected) as rejected:
        InputReader(2**20).read(plan[1])
    assert rejected.value.reason is Reason.BROKEN_ARCHIVE


def test_tars_that_cannot_be_planned_are_mistakes(tmp_path: Path) -> None:
    (tmp_path / "no.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(InputError, match="not a readable tar"):
        plan_images([str(tmp_path / "no.tar")])
    for name in ("a.tar.gz", "a.tar"):
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("1.jpg"))
        with pytest.raises(InputError, match="compressed with gzip; unpack"):
            plan_images([str(tmp_path / name)])
    tar_of(tmp_path / "b.tar", {"1.jpg": b"x" * 512})
    whole = ("1", str(tmp_path / "b.tar"), "member")
    for arguments, broken in (
        ([str(tmp_path / "no.tar"), str(tmp_path / "b.tar")], "no.tar"),
        ([str(tmp_path / "{a,b}.tar")], "a.tar"),
    ):
        plan = plan_images(arguments)
        assert [(p.key, p.path, p.kind) for p in plan][1] == whole
        assert (plan[0].path, plan[0].kind) == (str(tmp_path / broken), "broken")


def test_mutated_tars_are_planned_or_refused(tmp_path: Path) -> None:
    good = tar_of(tmp_path / "a.tar", {"1.jpg": b"x" * 700, "2.jpg": b"y" * 30}).read_bytes()
    rng, reader = np.random.default_rng(0), InputReader(2**20)
    for _ in range(200):
        content = bytearray(good[: int(rng.integers(1, len(good)))])
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(0, min(len(content), 2048)))] = int(rng.integers(0, 256))
        (tmp_path / "a.tar").write_bytes(content)
        try:
            plan = plan_images([str(tmp_path / "a.tar")])
        except InputError:
            continue
        for image in plan:
            try:
                reader.read(image)
            except Rejected as why:
                assert why.reason in Reason


# --- Names, pairs, boxes --------------------------------------------------------------------------


def test_an_id_counts_from_its_first_appearance(images: Path) -> None:
    """Whatever becomes of that image, and across arguments; unknown ids are not looked at."""
    plan = plan_images([str(images / "[3]*.jpg"), str(images)], "name")
    again = [p.image_id for p in plan if p.kind == REPEATED]
    assert again == ["3-empty", "3"]
    with pytest.raises(
        Rejected, match=r"3-empty\.jpg has the same id as the earlier .*/3-empty\.jpg"
    ):
        InputReader(1000).read(next(p for p in plan if p.kind == REPEATED))
    unread = plan_images([str(images), str(images)], "content")
    assert not [p for p in unread if p.kind == REPEATED]
    assert plan_digest(plan) == plan_digest(list(mark_repeats(plan)))


def test_files_can_be_called_by_their_names(images: Path) -> None:
    plan = plan_images([str(images)], "name")
    assert [p.image_id for p in plan] == NAMES
    nasty = images / "nasty"
    nasty.mkdir()
    (nasty / b"\xff.jpg".decode(errors="surrogateescape")).write_bytes(b"x")
    assert [p.image_id for p in plan_images([str(nasty)], "name")] == [None]


def test_only_the_images_of_pairs(jpeg: Callable[[int], bytes], tmp_path: Path) -> None:
    images = write_images(jpeg, tmp_path / "images")
    rows = [
        {"pair_id": str(number), "image_id": name, "text": "a dog"}
        for number, name in enumerate(["c", "gone", "a", "c", None])
    ]
    write_shard(tmp_path / "pairs", PAIRS, rows)
    plan = select_pair_images(plan_images([str(images)]), str(tmp_path / "pairs"))
    assert [(p.image_id, p.kind) for p in plan] == [("a", "row"), ("c", "row"), ("gone", "missing")]
    with pytest.raises(Rejected) as rejected:
        InputReader(2**20).read(plan[2])
    assert rejected.value.reason is Reason.MISSING_IMAGE
    with pytest.raises(InputError, match="--ids name"):
        select_pair_images(plan_images([str(images / "local.jpg")]), str(tmp_path / "pairs"))


def write_pairs(folder: Path, image_ids: list[str | None]) -> str:
    rows = [
        {"pair_id": str(number), "image_id": name, "text": "a dog"}
        for number, name in enumerate(image_ids)
    ]
    write_shard(folder, PAIRS, rows)
    return str(folder)


def test_images_get_the_ids_by_which_pairs_call_them(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs", ["own/1.jpg", "2", None, "gone.jpg"])
    plan = select_pair_images(plan_images([str(images)], "name"), pairs)
    assert [(p.image_id, Path(p.path).name) for p in plan[:-1]] == [
        ("own/1.jpg", "1.jpg"),
        ("2", "2.jpg"),
    ]
    assert (plan[-1].image_id, plan[-1].kind) == ("gone.jpg", "missing")
    assert "1 but for folders (own/1.jpg is 1); rows get the pairs' ids" in capsys.readouterr().err


def test_pairs_of_other_images_are_an_error(images: Path, tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", ["x", "y"])
    with pytest.raises(InputError, match=r"none of its 2 images .* has x y, INPUT has 0 1 2"):
        select_pair_images(plan_images([str(images)], "name"), pairs)


def test_given_boxes_meet_images_by_name(tmp_path: Path) -> None:
    path = tmp_path / "boxes.jsonl"
    names = ["46.jpg", "coco/000000132417", "train/7", "val/7"]
    path.write_text("\n".join(json.dumps({"image_id": name, "boxes": []}) for name in names))
    given = read_boxes(path)
    assert given.find_key("46", "some.tar") == "46.jpg"
    assert given.find_key("hash", "/data/own/46.jpg") == "46.jpg"
    assert given.find_key("hash", "val2014/COCO_val2014_000000132417.jpg") == "coco/000000132417"
    assert given.find_key("hash", "/data/val/7.png") == "val/7"
    assert given.find_key("hash", "46.png") is None
    with pytest.raises(InputError, match=r"--boxes: 7\.png may be train/7 or val/7"):
        given.find_key("hash", "7.png")


def test_boxes_are_found_by_id_and_by_name(tmp_path: Path) -> None:
    path = tmp_path / "boxes.jsonl"
    lines = [
        {"image_id": "a", "boxes": [[1, 2, 3, 4], [0, 0, 9.5, 9]]},
        {"image_id": 17, "boxes": []},
        {"image_id": "b", "boxes": [[5, 5, 1, 1]]},
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    given = read_boxes(path)
    assert given.get_boxes("a", "x.jpg").tolist() == [[1, 2, 3, 4], [0, 0, 9.5, 9]]
    assert given.get_boxes("some-hash", "folder/17.jpg").shape == (0, 4)
    for name, reason in {"b": Reason.BAD_BOXES, "c": Reason.NO_GIVEN_BOXES}.items():
        with pytest.raises(Rejected) as rejected:
            given.get_boxes(name, "x.jpg")
        assert rejected.value.reason is reason
    plan = with_missing_boxes([], given, "boxes.jsonl")
    assert [(p.image_id, p.kind) for p in plan] == [(n, "missing") for n in ("a", "17", "b")]


def test_a_folder_of_vcr_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "vcr1images" / "movie"
    folder.mkdir(parents=True)
    content = {"boxes": [[1.5, 2, 30, 40, 0.98]], "names": ["person"], "segms": []}
    (folder / "scene@3.json").write_text(json.dumps(content))
    given = read_boxes(tmp_path)
    assert given.get_boxes("hash", "vcr1images/movie/scene@3.jpg").tolist() == [[1.5, 2, 30, 40]]


def test_boxes_of_expressions_are_each_object_once(tmp_path: Path) -> None:
    boxes = {"a": [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]], "b": [[0, 0, 9, 9]]}
    rows: list[dict[str, object]] = [
        {"expression_id": f"{image_id}{k}", "image_id": image_id, "text": "x", "box": box}
        for image_id, of_image in boxes.items()
        for k, box in enumerate(of_image)
    ]
    write_shard(tmp_path / "out", EXPRESSIONS, table_of_rows(rows, EXPRESSIONS))
    given = read_boxes(tmp_path / "out")
    assert given.upright and given.get_boxes("b", "x.jpg").tolist() == [[0, 0, 9, 9]]
    assert given.get_boxes("a", "x.jpg").tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_boxes_of_annotations_are_all_of_them(tmp_path: Path) -> None:
    row: dict[str, object] = {"image_id": "a", "width": 9, "height": 9, "class_ids": [1, 1]}
    row["boxes"] = [[1, 2, 3, 4], [1, 2, 3, 4]]
    write_shard(tmp_path / "out", BOXES, table_of_rows([row], BOXES))
    assert read_boxes(tmp_path / "out").get_boxes("a", "x.jpg").shape == (2, 4)


def choice(example_id: str, image_id: str, boxes: list[float]) -> dict[str, object]:
    return {
        **{"example_id": example_id, "image_id": image_id, "boxes": boxes, "task": "q2a"},
        **{"question": "who", "choices": ["a"] * 4, "label": 0, "object_names": ["person"]},
        **{"question_tags": [[-1]], "choice_tags": [[[-1]]] * 4},
    }


def test_boxes_of_choices_are_the_objects_of_their_image(tmp_path: Path) -> None:
    rows = [choice("a", "p", [1, 2, 3, 4, 1, 2, 3, 4]), choice("b", "p", [1, 2, 3, 4, 1, 2, 3, 4])]
    write_shard(tmp_path / "out", CHOICES, table_of_rows(rows, CHOICES))
    given = read_boxes(tmp_path / "out")
    assert given.get_boxes("p", "x.jpg").tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]  # as numbered
    rows.append(choice("c", "p", [1, 2, 3, 4]))
    write_shard(tmp_path / "other", CHOICES, table_of_rows(rows, CHOICES))
    with pytest.raises(InputError, match="rows of p have different boxes"):
        read_boxes(tmp_path / "other")


@pytest.mark.parametrize(
    "text",
    [
        '[{"image_id": "a", "boxes": [[1, 2, 3, 4]]}, {"image_id": 9, "boxes": []}]',
        '{\n"a": [[1, 2, 3, 4]],\n"9": []\n}',
        '{\n "image_id": "a",\n "boxes": [[1, 2, 3, 4]]\n}\n{"image_id": 9, "boxes": []}\n',
        '\ufeff{"image_id": "a", "boxes": [[1, 2, 3, 4]]}\r\n\r\n{"image_id": 9, "boxes": []}',
    ],
)
def test_layouts_of_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "boxes.json").write_text(text, encoding="utf-8")
    given = read_boxes(tmp_path / "boxes.json")
    assert list(given.entries) == ["a", "9"]
    assert given.get_boxes("a", "x").tolist() == [[1, 2, 3, 4]]
    assert given.get_boxes("hash", "COCO_val2014_000000000009.jpg").shape == (0, 4)


def test_boxes_of_regions_are_all_of_them_upright(tmp_path: Path) -> None:
    row: dict[str, object] = {"image_id": "a", "width": 9, "height": 9, "num_boxes": 1}
    row["boxes"] = [[1.0, 2.0, 3.0, 4.0]]
    write_shard(tmp_path / "out", REGIONS, table_of_rows([row], REGIONS))
    given = read_boxes(tmp_path / "out")
    assert given.upright and given.get_boxes("a", "x.jpg").tolist() == [[1, 2, 3, 4]]


def test_folders_of_other_files_name_what_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\3\4")
    with pytest.raises(InputError, match="extract-rois import"):
        read_boxes(tmp_path)
    (tmp_path / "coco.json").write_text('{"images": [], "annotations": []}')
    with pytest.raises(InputError, match=r"coco\.json is COCO's.*manifest boxes"):
        read_boxes(tmp_path)


def test_boxes_of_fractions_among_others_are_rejects(tmp_path: Path) -> None:
    lines = [
        {"image_id": "a", "boxes": [[0, 0, 1, 0.5]]},
        {"image_id": "b", "boxes": [[0, 0, 2, 1]]},
    ]
    (tmp_path / "boxes").write_text("\n".join(map(json.dumps, lines)))
    given = read_boxes(tmp_path / "boxes")
    with pytest.raises(Rejected, match="fractions") as rejected:
        given.get_boxes("a", "x")
    assert rejected.value.reason is Reason.BAD_BOXES
    assert len(given.get_boxes("b", "x")) == 1


def test_boxes_outside_by_more_than_a_pixel_are_rejected() -> None:
    require_inside(np.array([[-1, 0, 10, 6]], np.float32), 9, 5)
    for box in ([-1.5, 0, 9, 5], [0, 0, 10.5, 5], [0, 0, 9, 6.5], [20, 20, 30, 30]):
        with pytest.raises(Rejected, match=r"box 1, .* leaves the image of 9 x 5"):
            require_inside(np.array([box], np.float32), 9, 5)


def test_boxes_that_name_no_image_are_a_mistake(images: Path, tmp_path: Path) -> None:
    (tmp_path / "boxes").write_text('{"image_id": 77, "boxes": []}')
    given = read_boxes(tmp_path / "boxes")
    with pytest.raises(InputError, match=r"--boxes has 77, INPUT has 0\.jpg, 1\.jpg, 2\.jpg; name"):
        with_missing_boxes(plan_images([str(images)]), given, "boxes")
    (tmp_path / "hashes").write_text(json.dumps({"image_id": "a" * 64, "boxes": []}))
    with_missing_boxes(plan_images([str(images)]), read_boxes(tmp_path / "hashes"), "hashes")


@pytest.mark.parametrize(
    "boxes",
    [
        None,
        3,
        {},
        [[1, 2, 3]],
        [[1, 2, 3, "4"]],
        [1, 2, 3, 4],
        [[3, 0, 1, 1]],
        [[0, 0, 1e9, 1]],
        [[5, 0, 5, 9]],
    ],
)
def test_what_is_no_list_of_boxes(boxes: Any) -> None:
    assert isinstance(parse_boxes(boxes), str)
    assert isinstance(parse_boxes([[0, 0, 1, float("nan")]]), str)
    assert parse_boxes([[5, 0, 5, 9]]) == "the box [5, 0, 5, 9] has no area"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no entry"),
        ("{", "not JSON"),
        ("[1]", "is not a JSON object"),
        ("a,1,2,3,4", "not JSON"),
        ('{"images": [],\n "annotations": []}', "manifest boxes"),
        ('[{"image_id": 9, "bbox": [1, 2, 3, 4]}]', "COCO's results"),
        ('{"boxes": [], "width": 4}', "boxes without image_id.* folder"),
        ("PK\3\4", "ZIP archive"),
        ('{"image_id": "a", "boxes": [[0, 0, 0.5, 1]]}', "fractions of width and height.*multiply"),
        ('{"boxes": []}', "without image_id|no image_id"),
        ('{"image_id": "a", "boxes": []}\n{"image_id": "a", "boxes": []}', "two entries"),
    ],
)
def test_bad_box_files_are_mistakes(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "boxes").write_text(content)
    with pytest.raises(InputError, match=f"--boxes .*{said}"):
        read_boxes(tmp_path / "boxes")
    with pytest.raises(InputError, match="--boxes"):
        read_boxes(tmp_path / "nowhere")
