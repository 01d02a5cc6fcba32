"""Pair sets, texts and images alone, from files in their published layouts."""

import gzip
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.nightly import stand_for
from tests.object_stores import download_folder, upload_folder
from tests.pipelines.manifest.layouts import (
    FLICKR,
    LAYOUTS,
    karpathy_image,
    tar_of,
    write,
    write_json,
)
from tests.pipelines.manifest.running import reasons

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.sets import SETS
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, verify_folder
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import ALIASES, BOXES, EXPRESSIONS, IMAGES, PAIRS, REJECTS, Table

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, image: Callable[..., bytes]) -> Make:
    """Writes a data set's files and runs its job; returns the output."""

    def run(name: str, *flags: str, status: int = 0, prepare: Callable[[Path], None] | None = None,
            layout: str | None = None, output: str = "out") -> Path:  # fmt: skip
        root = tmp_path / "in"
        if not root.exists():
            LAYOUTS[layout or name](root, image)
        if prepare is not None:
            prepare(root)
        out = tmp_path / output
        assert main([name, "--input", str(root), "--output", str(out), *flags]) == status
        if status == 0:
            assert verify_folder(out) == []
        return out

    return run


def column(folder: Path, table: Table, name: str) -> list[Any]:
    values: list[Any] = read_table(folder, table).column(name).to_pylist()
    return values


PAIR_SETS = [name for name in LAYOUTS if name != "imagenet22k"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_row_is_kept_or_rejected_and_splits_are_known(make: Make, name: str) -> None:
    out = make(name)
    for stage in json.loads((out / "funnel.json").read_text()):
        assert stage["in"] == stage["out"] + sum(stage["rejects"].values()) > 0
    manifest = read_manifest(out)
    rows = next(s for s in json.loads((out / "funnel.json").read_text()) if s["stage"] == "rows")
    assert rows["in"] == sum(n for group, n, *_ in manifest["counts"] if group != "pictures")
    if name in PAIR_SETS:
        pairs = read_table(out, PAIRS).to_pylist()
        assert pairs and len({pair["pair_id"] for pair in pairs}) == len(pairs)
        assert all(find_use(pair["split"]) is not None for pair in pairs)
        assert all(pair["text"] == " ".join(pair["text"].split()) != "" for pair in pairs)
    assert "<h" in (out / "report.html").read_text()


@pytest.mark.parametrize("name", ["coco", "vg", "webdataset", "hf"])
def test_rows_depend_on_neither_workers_nor_a_kill(make: Make, name: str) -> None:
    out = make(name, "--rows-per-shard", "2", "--workers", "1")
    files = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert sum(file.startswith("rejects") for file in files) > 1
    other = make(name, "--rows-per-shard", "2", "--workers", "4", output="other")
    assert {path.name: path.read_bytes() for path in other.glob("*.parquet")} == files
    (out / MANIFEST).unlink()
    (out / "rejects-0-00001.parquet").unlink()  # the last file of its part
    (out / ".tmp-7-pairs-0-00001.parquet").write_bytes(b"half")
    make(name, "--rows-per-shard", "2", "--workers", "3")
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == files
    assert not list(out.glob(".tmp-*"))


@pytest.mark.parametrize("name", stand_for(["coco", "imagenet22k", "webdataset", "hf"], "coco"))
def test_a_set_in_a_store_gives_the_bytes_of_one_on_a_disk(
    make: Make, name: str, bucket: str, tmp_path: Path
) -> None:
    parts = ("--rows-per-shard", "2")
    whole = make(name, *parts)
    upload_folder(tmp_path / "in", f"{bucket}/in")
    output = to_path(f"{bucket}/out")
    for lost in (None, "rejects-0-00000.parquet"):  # the last file of its part: a kill before it
        if lost is not None:
            (output / MANIFEST).unlink()
            (output / lost).unlink()
        assert main([name, "--input", f"{bucket}/in", "--output", str(output), *parts]) == 0
        assert verify_folder(output) == []
    tables = {path.name: path.read_bytes() for path in whole.glob("*.parquet")}
    there = download_folder(str(output), tmp_path / "there")
    assert {path.name: path.read_bytes() for path in there.glob("*.parquet")} == tables


def test_cc_reads_quotes_as_text_and_finds_images_under_each_tool_s_name(make: Make) -> None:
    out = make("cc")
    assert column(out, PAIRS, "pair_id") == [
        *("cc/train/00000000#0", "cc/train/00000001#0", "cc/train/00000004#0"),
        *("cc/train/00000005#0", "cc/val/00000001#0"),
    ]
    assert column(out, PAIRS, "text")[1] == '"two men "look at it'
    assert column(out, PAIRS, "text")[3] == "bell\ufffd of a person"
    assert read_manifest(out)["notes"] == {"bad_unicode": 1}
    assert column(out, IMAGES, "image_id") == ["cc/train/00000000", "cc/train/00000001"]
    assert set(reasons(out)) == {
        ("Train_GCC-training.tsv:2", "bad_row"),
        ("Train_GCC-training.tsv:3", "empty_text"),
        ("Train_GCC-training.tsv:6", "bad_encoding"),
        ("Validation_GCC-1.1.0-Validation.tsv:0", "bad_row"),  # a header
        ("cc/train/00000004", "image_missing"),
        ("cc/train/00000005", "image_broken"),
        ("cc/val/00000001", "image_missing"),
    }
    # The same URL in another list is found by its alias.
    aliases = read_table(out, ALIASES).to_pylist()
    shared = [a["image_id"] for a in aliases if a["alias"] == aliases[0]["alias"]]
    assert shared == ["cc/train/00000000", "cc/val/00000001"]
    assert {"image_id": "cc/train/00000004", "alias": "flickr/77"} in aliases


def test_cc12m_has_the_url_first_and_keeps_person_and_tabs(make: Make) -> None:
    (pair,) = read_table(make("cc12m"), PAIRS).to_pylist()
    assert (pair["text"], pair["image_url"]) == ("<PERSON> rides a red bike in the rain",
                                                 "http://a/a.jpg")  # fmt: skip


def test_a_count_that_differs_is_one_warning_and_strict_makes_it_an_error(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make("cc12m")
    said = "warning: cc12m.tsv has 2 rows, the published file 12423374\n"
    assert said in capsys.readouterr().err
    assert read_manifest(out)["counts"][0][:3] == ["cc12m.tsv", 2, 12423374]
    make("cc12m", "--strict", status=2, output="strict")
    assert "cc12m.tsv has 2 rows" in capsys.readouterr().err


def test_sbu_counts_a_photo_s_captions_and_splits_lines_at_newlines_alone(make: Make) -> None:
    out = make("sbu")
    assert column(out, PAIRS, "pair_id") == ["sbu/2345#0", "sbu/2346#0", "sbu/2345#1",
                                             "sbu/row-3#0"]  # fmt: skip
    assert column(out, IMAGES, "image_id") == ["sbu/2345"]
    assert column(out, ALIASES, "alias") == ["flickr/2345", "flickr/2346"]


def old_sbu(root: Path, captions: str) -> None:
    for path in root.glob("*.json"):
        path.unlink()
    name = "SBU_captioned_photo_dataset_{}.txt"
    write(root / "dataset" / name.format("urls"), f"{FLICKR}/1_a.jpg\n{FLICKR}/2_b.jpg\n")
    write(root / "dataset" / name.format("captions"), captions)


def test_sbu_reads_its_old_files_and_refuses_lines_that_do_not_belong_together(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make("sbu", prepare=lambda root: old_sbu(root, "a\u2028cat\na dog\n"))
    assert column(out, PAIRS, "text") == ["a cat", "a dog"]
    assert column(out, PAIRS, "image_id") == ["sbu/1", "sbu/2"]
    make("sbu", prepare=lambda root: old_sbu(root, "a cat\n"), status=2, output="other")
    assert "2 lines and" in capsys.readouterr().err


def test_sbu_rejects_the_bytes_of_many_ids_as_placeholders(
    make: Make, image: Callable[..., bytes]
) -> None:
    photos = [f"{FLICKR}/{n}_a.jpg" for n in range(24)]

    def many(root: Path) -> None:
        columns = {"image_urls": photos, "user_ids": photos, "captions": ["a cat"] * 24}
        write_json(root / "sbu-captions-all.json", columns)
        for n in range(24):
            seed = n if n in (3, 9) else 0
            write(root / f"images/{n}_a.jpg", image(12, 10, seed=seed))

    out = make("sbu", prepare=many)
    assert column(out, IMAGES, "image_id") == ["sbu/3", "sbu/9"]
    assert [reason for _, reason in reasons(out)] == ["placeholder"] * 22
    assert read_table(out, PAIRS).num_rows == 24


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"image_urls": ["a"], "user_ids": [], "captions": []}, "differ in length"),
        ([{"url": "a", "caption": "b"}], "is a list of objects"),
        ({"image_urls": ["a"]}, "lacks the member captions"),
    ],
)
def test_sbu_checks_its_lists_first(
    make: Make, capsys: pytest.CaptureFixture[str], content: Any, said: str
) -> None:
    make("sbu", prepare=lambda r: write_json(r / "sbu-captions-all.json", content), status=2)
    assert said in capsys.readouterr().err


def test_coco_keeps_equal_captions_of_own_ids_and_mends_white_space(make: Make) -> None:
    out = make("coco")
    assert column(out, PAIRS, "pair_id") == ["coco/90", "coco/91", "coco/420", "coco/421"]
    assert set(column(out, PAIRS, "text")) == {"A red bus stands near a tree."}
    assert column(out, PAIRS, "split") == ["train2014"] * 2 + ["val2014"] * 2
    assert column(out, IMAGES, "image_id") == ["coco/000000000009", "coco/000000000042"]
    train = [reason for key, reason in reasons(out) if "train" in key]
    assert train == ["duplicate", "id_conflict", "empty_text", "bad_row"]
    assert column(out, ALIASES, "alias") == ["flickr/900", "flickr/4200"]


def test_coco_reads_one_year(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    def both(root: Path) -> None:
        shutil.copy(root / "annotations/captions_val2014.json",
                    root / "annotations/captions_val2017.json")  # fmt: skip

    make("coco", prepare=both, status=2)
    assert "choose one with --year 2014" in capsys.readouterr().err
    assert column(make("coco", "--year", "2017"), PAIRS, "split") == ["val2017"] * 2


def test_karpathy_s_test_pairs_have_folds_and_imgid_is_no_coco_id(make: Make) -> None:
    pairs = read_table(make("coco-karpathy"), PAIRS).to_pylist()
    assert [p["split"] for p in pairs[::2]] == ["train", "restval", "val", "test", "test"]
    assert pairs[0]["image_id"] == "coco/000000000100"
    assert pairs[0]["pair_id"] == "coco-karpathy/0"
    assert [(p["fold"], p["caption_no"]) for p in pairs[-2:]] == [(0, 0), (0, 1)]
    assert pairs[0]["fold"] is None


def test_a_fold_is_a_thousand_test_images(make: Make) -> None:
    def many(root: Path) -> None:
        images = [
            karpathy_image(n, f"COCO_val2014_{n:012d}.jpg", "test", filepath="val2014", cocoid=n)
            for n in range(1001)
        ]
        write_json(root / "dataset_coco.json", {"images": images})
        shutil.rmtree(root / "val2014")
        shutil.rmtree(root / "train2014")

    assert column(make("coco-karpathy", prepare=many), PAIRS, "fold") == [0] * 2000 + [1] * 2


FLICKR_LINES = {
    "results_20130124.token": (
        "1000092795.jpg#0\tTwo men look at a bicycle .\n"
        "1000092795.jpg#0\tTwo men look at a bicycle .\n"
        "1000092795.jpg#1\n"
        "x.jpg#0\tno number\n"
    ),
    "results.csv": (
        "image_name| comment_number| comment\n"
        "1000092795.jpg| 0| Two men look at a bicycle .\n"
        "2199200615.jpg| 4   A dog runs across the grass .\n"
        "broken\n"
    ),
}


@pytest.mark.parametrize(
    ("name", "pair_ids", "why"),
    [
        ("results_20130124.token", ["flickr30k/1000092795#0"],
         ["duplicate", "bad_row", "bad_row"]),
        ("results.csv", ["flickr30k/1000092795#0", "flickr30k/2199200615#4"], ["bad_row"]),
    ],
)  # fmt: skip
def test_flickr30k_without_splits(
    make: Make, name: str, pair_ids: list[str], why: list[str]
) -> None:
    def only(root: Path) -> None:
        (root / "dataset_flickr30k.json").unlink()
        write(root / name, FLICKR_LINES[name])

    out = make("flickr30k", prepare=only)
    assert column(out, PAIRS, "pair_id") == pair_ids
    assert set(column(out, PAIRS, "split")) == {None}
    assert [reason for key, reason in reasons(out) if name in key] == why


def test_flickr30k_of_vilbert_s_files(make: Make) -> None:
    def only(root: Path) -> None:
        (root / "dataset_flickr30k.json").unlink()
        row = {"img_path": "1000092795.jpg", "sentences": ["Two men .", "Two ."], "id": 3}
        write(root / "all_data_final_test_set0_2014.jsonline", f"{json.dumps(row)}\n{{oh\n")

    out = make("flickr30k", prepare=only)
    assert column(out, PAIRS, "pair_id") == ["flickr30k/1000092795#0", "flickr30k/1000092795#1"]
    assert column(out, PAIRS, "split") == ["test", "test"]
    assert reasons(out) == [("all_data_final_test_set0_2014.jsonline:1", "bad_row")]


def test_vg_merges_equal_phrases_of_a_image_under_the_lowest_id(make: Make) -> None:
    out = make("vg")
    assert column(out, PAIRS, "pair_id") == ["vg/11", "vg/13", "vg/21"]
    assert column(out, IMAGES, "image_id") == ["vg/7", "vg/8"]
    assert read_table(out, ALIASES).to_pylist() == [
        {"image_id": "vg/7", "alias": "coco/000000000042"},
        {"image_id": "vg/7", "alias": "flickr/123"},
    ]
    assert [reason for _, reason in reasons(out)] == ["duplicate", "empty_text", "duplicate",
                                                      "bad_row"]  # fmt: skip


def test_vg_boxes_are_expressions_cut_to_their_image(make: Make) -> None:
    out = make("vg", "--boxes")
    boxes = dict(zip(column(out, EXPRESSIONS, "expression_id"), column(out, EXPRESSIONS, "box"),
                     strict=True))  # fmt: skip
    assert boxes == {"vg/12": [4, 5, 24, 55], "vg/11": [0, 5, 7, 55], "vg/21": [4, 5, 30, 20]}
    assert column(out, PAIRS, "pair_id") == ["vg/11", "vg/21"]
    assert ("region_descriptions.json:0.2", "empty_box") in reasons(out)


def test_boxes_turn_with_a_image_that_lies(make: Make, tmp_path: Path) -> None:
    from PIL import Image

    def lying(root: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by 90 degrees clockwise
        with Image.open(root / "VG_100K/8.jpg") as image:
            image.save(root / "VG_100K/8.jpg", exif=exif)

    out = make("vg", "--boxes", prepare=lying)
    boxes = dict(zip(column(out, EXPRESSIONS, "expression_id"), column(out, EXPRESSIONS, "box"),
                     strict=True))  # fmt: skip
    # Stored (4, 5)-(30, 20) of 30 x 20: the upright image is 20 wide and 30 high.
    assert boxes["vg/21"] == [0, 4, 15, 30]
    row = read_table(out, IMAGES).to_pylist()[1]
    assert (row["width"], row["height"]) == (20, 30)


def vg_objects(root: Path) -> None:
    objects = [
        {"object_id": 1, "x": 4, "y": 5, "w": 20, "h": 50, "names": ["White Clock."],
         "attributes": ["tall and green", "black and white", "unheard of"]},
        {"object_id": 2, "x": 70, "y": 50, "w": 90, "h": 90, "names": ["picnic table"]},
        {"object_id": 3, "x": 1, "y": 1, "w": 5, "h": 5, "names": ["zeppelin"]},
        {"object_id": 4, "x": 90, "y": 1, "w": 5, "h": 5, "names": ["clock"]},
        {"object_id": 5, "x": 1, "y": 1, "w": 5, "h": 5, "names": []},
    ]  # fmt: skip
    empty = {"image_id": 8, "attributes": [objects[2]]}
    write_json(root / "attributes.json", [{"image_id": 7, "attributes": objects}, empty])
    write(root / "objects_vocab.txt", "man\nclock,watch\ntable,picnic table")  # no newline at last
    write(root / "attributes_vocab.txt", "white\ntall\ngreen\nblack and white")
    write(root / "train.txt", "VG_100K_2/7.jpg xml/7.xml\n")
    write(root / "val.txt", "VG_100K/8.jpg xml/8.xml\n")
    write(root / "test.txt", "")


def test_vg_s_detector_has_the_vocabularies_numbers_and_its_own_splits(make: Make) -> None:
    out = make("vg-detector", layout="vg", prepare=vg_objects)
    (row,) = read_table(out, BOXES).to_pylist()
    assert row == {
        "image_id": "vg/7", "width": 80, "height": 60, "split": "train", "source": "vg",
        "is_crowd": None,
        "boxes": [[4, 5, 24, 55], [70, 50, 80, 60]],
        "class_ids": [1, 2],
        "attribute_ids": [[0, 1, 2, 3], []],
    }  # fmt: skip
    assert reasons(out) == [("attributes.json:1", "label_unknown")]
    assert read_manifest(out)["notes"] == {
        "objects skipped, bad_row": 1,
        "objects skipped, empty_box": 1,
        "objects skipped, label_unknown": 2,
    }


def test_lait_is_named_by_the_bytes_of_its_images(make: Make) -> None:
    out = make("lait")
    (pair,) = read_table(out, PAIRS).to_pylist()
    (image,) = read_table(out, IMAGES).to_pylist()
    assert pair["image_id"] == image["image_id"] == compute_image_id(image["bytes"])
    assert (pair["score"], pair["text_source"], pair["page_url"]) == (0.83, "alt", "http://p")
    assert [reason for _, reason in reasons(out)] == ["bad_row", "image_missing"]


def test_lait_reads_what_the_mining_job_wrote(make: Make, tmp_path: Path) -> None:
    mined = make("lait")
    out = tmp_path / "again"
    assert main(["lait", "--input", str(mined), "--output", str(out)]) == 0
    assert read_table(out, PAIRS).equals(read_table(mined, PAIRS))
    assert read_table(out, IMAGES).column("bytes").equals(read_table(mined, IMAGES).column("bytes"))


def test_tao_s_rules_drop_cut_and_segment(make: Make, tmp_path: Path) -> None:
    assert len(column(make("tao"), PAIRS, "text")) == 4
    (tmp_path / "spam.txt").write_text("赌博\n", encoding="utf-8")
    flags = ("--tao-clean", "--blocked-words", str(tmp_path / "spam.txt"))
    out = make("tao", *flags, output="clean")
    texts = column(out, PAIRS, "text")
    assert texts[0] == "夏季 棉 连衣裙 女"
    words = texts[1].split()
    assert len(words) > 5 and 30 < len("".join(words)) <= 36
    assert ("items.tsv:1", "other_language") in reasons(out)
    assert ("items.tsv:3", "blocked_word") in reasons(out)


def test_texts_keep_the_order_and_numbers_of_their_lines(make: Make) -> None:
    out = make("text")
    pairs = read_table(out, PAIRS).to_pylist()
    assert [(p["pair_id"], p["source"], p["doc"]) for p in pairs] == [
        ("books/bc1g/0", "books", 0),
        ("wikipedia/wiki/0", "wikipedia", 0),
        ("wikipedia/wiki/2", "wikipedia", 1),
        ("wikibk/wikibk.0/0", "wikibk", 0),
    ]
    assert {p["image_id"] for p in pairs} == {None}
    assert reasons(out) == [("wiki.doc:3", "too_long")]


def test_imagenet_is_images_alone_in_every_layout(
    make: Make, image: Callable[..., bytes], tmp_path: Path
) -> None:
    folders = make("imagenet22k")
    names = column(folders, IMAGES, "image_id")
    assert names == ["imagenet22k/n01440764_10026", "imagenet22k/n01443537_1"]
    assert column(folders, IMAGES, "format") == ["png", "jpeg"]
    assert reasons(folders) == [("imagenet22k/n01440764_9", "image_broken")]
    inner = {
        f"{synset}.tar": tar_of({f"{synset}_{n}.JPEG": image(12, 10, seed=n) for n in range(2)})
        for synset in ("n01440764", "n01443537")
    }
    flat = {"n01440764_0.JPEG": image(12, 10), "n01440764_0.cls": b"3"}
    for name, content in (("nested", tar_of(inner)), ("flat", tar_of(flat))):
        write(tmp_path / name / "all.tar", content)
        out = tmp_path / f"{name}-out"
        assert main(["imagenet22k", "--input", str(tmp_path / name), "--output", str(out)]) == 0
        assert len(column(out, IMAGES, "image_id")) == (4 if name == "nested" else 1)
        assert column(out, IMAGES, "image_id")[0] == "imagenet22k/n01440764_0"


def test_webdataset_groups_neighbours_and_tells_a_key_that_comes_back(make: Make) -> None:
    out = make("webdataset", "--txt-lines")
    assert column(out, PAIRS, "pair_id") == [
        *("webdataset/000000000#0", "webdataset/000000000#1"),
        *("webdataset/000000001#0", "webdataset/sub/000000003#0"),
    ]
    assert column(out, IMAGES, "image_id") == ["webdataset/000000000", "webdataset/sub/000000003"]
    assert set(reasons(out)) == {
        ("webdataset/000000001", "image_broken"),
        ("00000.tar:000000002", "bad_row"),
        ("00001.tar:000000000", "id_conflict"),
    }
    assert read_manifest(out)["counts"][0][:3] == ["00000.tar", 4, 4]


def test_hf_takes_bytes_or_paths_and_several_captions(make: Make) -> None:
    out = make("hf")
    assert column(out, PAIRS, "pair_id")[:2] == ["hf/train-00000-of-00001/0#0",
                                                 "hf/train-00000-of-00001/0#1"]  # fmt: skip
    assert len(column(out, IMAGES, "image_id")) == 2
    assert [reason for _, reason in reasons(out)] == ["empty_text"]


def test_columns_that_fit_twice_have_to_be_named(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def more(root: Path) -> None:
        path = root / "train-00000-of-00001.parquet"
        table = pq.read_table(path)
        pq.write_table(table.append_column("text", pa.array(["a", "b", "c"])), path)

    make("hf", prepare=more, status=2)
    assert "caption, text; name one with --text-column" in capsys.readouterr().err
    assert column(make("hf", "--text-column", "text"), PAIRS, "text") == ["a", "b", "c"]


def test_laion_s_nan_is_null(make: Make) -> None:
    out = make("laion")
    assert column(out, PAIRS, "score") == [0.31, None]
    assert [reason for _, reason in reasons(out)] == ["empty_text", "bad_row"]


# What is shared


def test_files_are_read_packed_and_out_of_archives(
    make: Make, tmp_path: Path, image: Callable[..., bytes]
) -> None:
    plain = make("coco-karpathy")
    packed = tmp_path / "packed"
    content = (tmp_path / "in/dataset_coco.json").read_bytes()
    packed.mkdir()
    with zipfile.ZipFile(packed / "caption_datasets.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("dataset_coco.json", content)
    with zipfile.ZipFile(packed / "train2014.zip", "w") as file:
        for path in (tmp_path / "in/train2014").iterdir():
            file.write(path, f"train2014/{path.name}")
    members = {f"val2014/{p.name}": p.read_bytes() for p in (tmp_path / "in/val2014").iterdir()}
    write(packed / "val2014.tar", tar_of(members))
    outs = []
    for name in ("zipped", "gzipped"):
        outs.append(tmp_path / f"{name}-out")
        assert main(["coco-karpathy", "--input", str(packed), "--output", str(outs[-1])]) == 0
        (packed / "caption_datasets.zip").unlink(missing_ok=True)
        write(packed / "dataset_coco.json.gz", gzip.compress(content))
    for out in outs:
        for table in (PAIRS, IMAGES):
            assert read_table(out, table).equals(read_table(plain, table))


def test_images_of_another_folder_and_none_outside_of_it(
    make: Make, tmp_path: Path, image: Callable[..., bytes]
) -> None:
    def bad_names(root: Path) -> None:
        path = root / "annotations/captions_val2014.json"
        content = json.loads(path.read_text())
        content["images"][0]["file_name"] = "../../secret.jpg"
        write_json(path, content)

    write(tmp_path / "secret.jpg", image(9, 9))
    write(tmp_path / "pictures/COCO_train2014_000000000009.jpg", image(33, 22))
    out = make("coco", "--images", str(tmp_path / "pictures"), prepare=bad_names)
    assert column(out, IMAGES, "width") == [33]  # before those of --input
    assert ("coco/000000000042", "unsafe_path") in reasons(out)


def test_pairs_of_missing_images_stay_unless_images_are_required(make: Make) -> None:
    def without(root: Path) -> None:
        (root / "val2014/COCO_val2014_000000000042.jpg").unlink()

    out = make("coco", prepare=without)
    assert ("coco/000000000042", "image_missing") in reasons(out)
    assert len(column(out, PAIRS, "pair_id")) == 4
    strict = make("coco", "--require-images", "--rows-per-shard", "1", output="strict")
    assert column(strict, PAIRS, "pair_id") == ["coco/90", "coco/91"]
    why = [row for row in read_table(strict, REJECTS).to_pylist() if row["stage"] != "rows"]
    assert [row["stage"] for row in why].count("require_images") == 2


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("coco", "annotations/captions_train2014.json", b'{"images": [{"id": 1', "broken or cut"),
        ("coco", "annotations/captions_train2014.json", b"\xff\xfe[", "no UTF-8"),
        ("coco", "annotations/captions_train2014.json", b'{"images": []}', "another layout"),
        ("coco", "annotations/captions_train2014.json", b"[]", "an object with the member"),
        ("vg", "region_descriptions.json", b'[{"id": NaN}]', "NaN is no JSON"),
        ("vg", "region_descriptions.json", b"[" * 100_000, "recursion"),
        ("vg", "region_descriptions.json", b"[1] 2", "text follows the end of the list"),
        ("coco-karpathy", "dataset_coco.json", b"\x1f\x8b\x08cut", "damaged"),
        ("hf", "train-00000-of-00001.parquet", b"PAR1 no", "not a readable Parquet"),
        ("webdataset", "00000.tar", b"no tar", "not a readable tar"),
    ],
)
def test_broken_files_are_named_in_a_line(
    make: Make, capsys: pytest.CaptureFixture[str], name: str, file: str, content: bytes, said: str
) -> None:
    make(name, prepare=lambda root: write(root / file, content), status=2)
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(error) == 1 and said in error[0] and Path(file).name in error[0]


@pytest.mark.parametrize("name", [name for name in SETS if name != "cc3m"])
def test_a_wrong_folder_is_told_what_it_lacks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in/letter.doc2", "hello")
    write(tmp_path / "labels.txt", "a")
    labels = ["--labels", str(tmp_path / "labels.txt")] if name == "vgqa" else []
    flags = ["--output", str(tmp_path / "out"), *labels]
    assert main([name, "--input", str(tmp_path / "in"), *flags]) == 2
    error = capsys.readouterr().err
    assert "letter.doc2" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main([name, "--input", str(tmp_path / "nowhere"), *flags]) == 2


def test_the_report_has_counts_images_overlaps_and_charts(make: Make, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("coco/000000000042\n")
    page = (make("coco", "--exclude", str(tmp_path / "test.txt")) / "report.html").read_text()
    for said in ("data:image/jpeg;base64", "<svg", "414,113", "InterBERT", "test.txt"):
        assert said in page
    assert "warning: captions_train2014.json has 6 rows" in page


def test_fetching_is_refused_until_there_is_a_client(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("cc", "--fetch", status=2)
    assert "--fetch" in capsys.readouterr().err


def test_the_cost_is_told_without_writing(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    root = make("cc12m", output="first").parent
    assert main(["cc12m", "--input", str(root / "in"), "--output", str(root / "dry"),
                 "--dry-run"]) == 0  # fmt: skip
    assert "nothing was written" in capsys.readouterr().out
    assert not (root / "dry").exists()


# Overlaps


def coco_val_ids(path: Path) -> str:
    write(path, "coco/000000000042\n\nflickr/900\n")
    return str(path)


def test_images_are_excluded_by_any_of_their_names(make: Make, tmp_path: Path) -> None:
    out = make("coco", "--exclude", coco_val_ids(tmp_path / "test.txt"))
    assert read_table(out, PAIRS).num_rows == 0  # one by its id, the other by its photo's
    excluded = [r for r in read_table(out, REJECTS).to_pylist() if r["stage"] == "exclude"]
    assert {row["reason"] for row in excluded} == {"excluded"}
    assert {row["detail"] for row in excluded} == {
        "coco/000000000042, in test.txt", "flickr/900, in test.txt",
    }  # fmt: skip
    assert read_manifest(out)["overlaps"] == [
        ["test.txt", "id coco/", 1, "excluded"],
        ["test.txt", "id flickr/", 1, "excluded"],
    ]


def test_comparing_and_cleaning_training_alone_keep_rows(make: Make, tmp_path: Path) -> None:
    names = coco_val_ids(tmp_path / "test.txt")
    out = make("coco", "--compare", names)
    assert read_table(out, PAIRS).num_rows == 4
    assert [row[3] for row in read_manifest(out)["overlaps"]] == ["kept", "kept"]
    train = make("coco", "--exclude", names, "--exclude-from", "train", output="train")
    assert set(column(train, PAIRS, "split")) == {"val2014"}


def test_a_split_and_a_table_of_images_are_lists_too(
    make: Make, tmp_path: Path, image: Callable[..., bytes]
) -> None:
    def with_split(root: Path) -> None:
        more = {"filepath": "val2014", "cocoid": 42}
        element = karpathy_image(0, "COCO_val2014_000000000042.jpg", "test", **more)
        write_json(root / "dataset_coco.json", {"images": [element]})

    out = make("vg", "--exclude-split", "coco-karpathy:test", prepare=with_split)
    assert column(out, PAIRS, "image_id") == ["vg/8"]  # vg/7 is coco/42
    coco = tmp_path / "coco"
    LAYOUTS["coco"](coco, image)
    assert main(["coco", "--input", str(coco), "--output", str(tmp_path / "coco-out")]) == 0
    again = make("vg", "--exclude", str(tmp_path / "coco-out"), output="again")
    assert column(again, PAIRS, "image_id") == ["vg/8"]


def test_equal_and_scaled_images_are_found_by_hash(
    make: Make, tmp_path: Path, image: Callable[..., bytes]
) -> None:
    out = make("coco")
    test = tmp_path / "out"  # the table of images of this very set
    flags = ("--exclude-hash", str(test), "--max-distance", "4", "--rows-per-shard", "2")
    excluded = make("coco", *flags, output="excluded")
    assert read_table(excluded, PAIRS).num_rows == 0
    assert read_table(excluded, IMAGES).num_rows == 0
    assert read_manifest(excluded)["overlaps"] == [["out", "bytes", 2, "excluded"]]
    compared = make("coco", "--compare-hash", str(test), output="compared")
    assert read_table(compared, PAIRS).equals(read_table(out, PAIRS))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--exclude", "nowhere"], "no such file"),
        (["--exclude-split", "coco-karpathy:test"], "has no dataset_coco.json"),
        (["--exclude-split", "coco"], "expected NAME:SPLIT"),
        (["--exclude-hash", "nowhere"], "no table of images"),
        (["--images", "nowhere"], "no such folder or archive"),
    ],
)
def test_mistakes_in_lists_are_one_line(
    make: Make, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    make("coco", *flags, status=2)
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_progress_counts_no_rows_that_the_input_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "cc/Train_GCC-training.tsv", "a dog runs\thttp://x.org/a.jpg\n")
    words = ["cc3m", "--input", str(tmp_path / "cc"), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    error = capsys.readouterr().err
    assert "cc3m: 1 row" in error and "s left" not in error
