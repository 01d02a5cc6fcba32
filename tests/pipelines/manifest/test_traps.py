"""What published files and strangers' files hold beside what is expected of them."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.manifest.layouts import LAYOUTS, write, write_json
from tests.pipelines.manifest.running import made, reasons, rows
from tests.pipelines.manifest.task_layouts import METADATA, lines, vcr_line

from vlmill.pipelines.manifest.__main__ import main
from vlmill.runtime.files.manifest import read_manifest
from vlmill.schemas.tables import ALIASES, CHOICES, IMAGES, PAIRS, STATEMENTS

Image = Callable[..., bytes]


# Columns and keys


def with_more_keys(root: Path) -> None:
    path = root / "annotations/captions_train2014.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["mood"] = "calm"
    content["edition"] = 2
    write_json(path, content)


def test_keys_that_nothing_reads_are_one_line_and_strict_refuses_them(
    tmp_path: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    LAYOUTS["coco"](tmp_path / "in", image)
    with_more_keys(tmp_path / "in")
    out = made("coco", tmp_path / "in")
    said = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert said == ["warning: of captions_train2014.json not read are mood, edition"]
    assert read_manifest(out)["unread"] == [["captions_train2014.json", ["mood", "edition"], []]]
    assert len(rows(out, PAIRS)) == 4
    made("coco", tmp_path / "in", "--fresh", "--strict", status=2)
    assert "not read are mood, edition; without --strict" in capsys.readouterr().err
    assert not (out / "_manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("tao", "items.tsv", "item_id\ttitle\timage\tcolour\n1\t裙\ta.jpg\tred\n", "colour"),
        ("glue", "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\tby\n0\ta\tb\tentailment\tx\n",
         "by"),
        ("nlvr2", "data/dev.json",
         '{"identifier": "dev-1-0-0", "sentence": "Two.", "label": "True", "mood": 1}\n', "mood"),
    ],
)  # fmt: skip
def test_columns_that_nothing_reads_are_named_of_every_kind_of_file(
    name: str, file: str, content: str, said: str, tmp_path: Path
) -> None:
    write(tmp_path / "in" / file, content)
    out = made(name, tmp_path / "in")
    assert read_manifest(out)["unread"] == [[Path(file).name, [said], []]]


def test_of_a_key_that_stands_twice_the_last_counts_and_is_told(
    tmp_path: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    element = '{"id": 1, "file_name": "a.jpg"}'
    annotation = '{"id": 1, "image_id": 1, "caption": "first", "caption": "second"}'
    write(tmp_path / "in/x.json", f'{{"images": [{element}], "annotations": [{annotation}]}}')
    out = made("coco-json", tmp_path / "in")
    assert [row["text"] for row in rows(out, PAIRS)] == ["second"]
    assert "keys that occur twice in one object (the last one is used): caption" in (
        capsys.readouterr().err
    )


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_json_is_at_most_64_deep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def annotations(depth: int) -> str:
        # The list and the object of the element are two of the depth that is asked of one value.
        own = f'{{"id": 1, "image_id": 1, "caption": "a cat", "more": {nested(depth - 1)}}}'
        return f'{{"images": [{{"id": 1, "file_name": "a.jpg"}}], "annotations": [{own}]}}'

    write(tmp_path / "in/x.json", annotations(64))
    assert len(rows(made("coco-json", tmp_path / "in"), PAIRS)) == 1
    write(tmp_path / "in/x.json", annotations(65))
    made("coco-json", tmp_path / "in", "--fresh", status=2)
    assert "x.json is broken or cut" in (said := capsys.readouterr().err)
    assert "nested more than 64 deep" in said


def test_a_line_of_json_that_is_too_deep_costs_itself_alone(tmp_path: Path) -> None:
    good = {"identifier": "dev-1-0-0", "sentence": "Two.", "label": "True"}
    deep = f'{{"identifier": "dev-1-0-1", "sentence": {nested(80)}}}\n'
    write(tmp_path / "in/data/dev.json", deep + lines([good]))
    out = made("nlvr2", tmp_path / "in")
    assert [row["example_id"] for row in rows(out, STATEMENTS)] == ["nlvr2/dev-1-0-0"]
    assert ("dev.json:0", "bad_row") in reasons(out)


# Data sets


def test_items_keep_their_category(tmp_path: Path, image: Image) -> None:
    LAYOUTS["tao"](tmp_path / "in", image)
    out = made("tao", tmp_path / "in")
    assert {row["category"] for row in rows(out, PAIRS)} == {"dress"}
    assert read_manifest(out)["unread"] == []


def test_items_name_their_images_whatever_the_folder_is_called(
    tmp_path: Path, image: Image
) -> None:
    LAYOUTS["tao"](tmp_path / "in", image)
    (tmp_path / "in" / "img").rename(tmp_path / "in" / "shop")
    items = tmp_path / "in" / "items.tsv"
    items.write_text(items.read_text("utf-8").replace("img/", "shop/"), "utf-8")
    assert len(rows(made("tao", tmp_path / "in"), IMAGES)) == 2


def test_statements_know_the_subset_that_they_are_scored_in(tmp_path: Path) -> None:
    def statement(number: str, urls: str, label: str, split: str = "dev") -> dict[str, str]:
        left, right = (f"http://a/{name}.jpg" for name in urls)
        own = {"identifier": f"{split}-{number}", "sentence": "Two dogs.", "label": label}
        return own | {"left_url": left, "right_url": right}

    dev = [
        statement("1-0-0", "ab", "True"),
        statement("1-0-1", "ab", "False"),
        statement("2-0-0", "cd", "True"),
        statement("2-1-0", "cd", "True"),  # the same images under other ids
        statement("3-0-0", "ba", "True"),
    ]
    train = [statement("1-0-0", "ab", label, "train") for label in ("True", "False")]
    train[1]["identifier"] = "train-1-0-1"
    write(tmp_path / "in/data/dev.json", lines(dev))
    write(tmp_path / "in/data/train.json", lines(train))
    out = made("nlvr2", tmp_path / "in")
    subsets = {row["example_id"]: row["subset"] for row in rows(out, STATEMENTS)}
    assert subsets == {
        **{"nlvr2/train-1-0-0": None, "nlvr2/train-1-0-1": None},
        **{"nlvr2/dev-1-0-0": "balanced", "nlvr2/dev-1-0-1": "balanced"},
        **{"nlvr2/dev-2-0-0": "unbalanced", "nlvr2/dev-2-1-0": "unbalanced"},
        "nlvr2/dev-3-0-0": None,
    }
    # An image of training is found in dev by its URL.
    (tmp_path / "ids.txt").write_text("nlvr2/dev-1-0-img0\n")
    alias = next(a["alias"] for a in rows(out, ALIASES) if a["image_id"] == "nlvr2/dev-1-0-img0")
    (tmp_path / "ids.txt").write_text(alias)
    cleaned = ["--fresh", "--exclude", str(tmp_path / "ids.txt"), "--exclude-from", "train"]
    out = made("nlvr2", tmp_path / "in", *cleaned)
    assert {row["split"] for row in rows(out, STATEMENTS)} == {"dev"}


def test_cc_s_subset_with_labels_is_read_by_its_caption_and_url(tmp_path: Path) -> None:
    line = "a dog on the beach\thttp://a/1.jpg\tdog,beach\t/m/0bt9lr,/m/0b3yr\t0.97,0.91\n"
    name = "Image_Labels_Subset_Train_GCC-Labels-training.tsv"
    write(tmp_path / "in" / name, line + "a dog\thttp://a/2.jpg\n")
    out = made("cc", tmp_path / "in")
    assert [row["pair_id"] for row in rows(out, PAIRS)] == ["cc/train/00000000#0"]
    assert reasons(out) == [(f"{name}:1", "bad_row")]


def test_sbu_of_vilt_is_paths_and_captions(tmp_path: Path, image: Image) -> None:
    content = [["images_train/0000/0000000", "a cat"], ["images_train/0000/0000001"]]
    write_json(tmp_path / "in/annot.json", content)
    write(tmp_path / "in/images_train/0000/0000000", image(9, 9))
    out = made("sbu", tmp_path / "in")
    assert [row["image_id"] for row in rows(out, IMAGES)] == ["sbu/row-0"]
    assert [reason for _, reason in reasons(out)] == ["bad_row"]


def test_img2dataset_s_folders_and_parquet_are_read(tmp_path: Path, image: Image) -> None:
    write(tmp_path / "in/00000/000000000.jpg", image(9, 9))
    write(tmp_path / "in/00000/000000000.txt", "a cat\nasleep")
    write(tmp_path / "in/00000/000000000.json", '{"url": "http://a/1.jpg"}')
    (row,) = rows(made("webdataset", tmp_path / "in"), PAIRS)
    assert (row["text"], row["image_url"]) == ("a cat asleep", "http://a/1.jpg")
    columns = {"key": ["0", "1"], "jpg": [image(9, 9), None], "txt": ["a cat", "a dog"]}
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "parquet/00000.parquet")
    out = made("hf", tmp_path / "parquet")
    assert [row["text"] for row in rows(out, PAIRS)] == ["a cat", "a dog"]
    assert reasons(out) == [("hf/00000/1", "image_missing")]  # its download has failed
    assert read_manifest(out)["unread"] == [["00000.parquet", ["key"], []]]


def test_vcr_takes_no_nan_and_draws_its_tags(tmp_path: Path, image: Image) -> None:
    root = tmp_path / "in"
    write(root / "val.jsonl", lines([vcr_line("val-0", "val-0"), vcr_line("val-1", "val-1")]))
    for name in ("val-0", "val-1"):
        write(root / f"vcr1images/m/{name}@1.jpg", image(40, 30))
        write_json(root / f"vcr1images/m/{name}@1.json", METADATA)
    write(root / "vcr1images/m/val-1@1.json", json.dumps(METADATA).replace("0.9]", "NaN]"))
    out = made("vcr", root)
    assert {row["image_id"] for row in rows(out, CHOICES)} == {"vcr/val-0"}
    assert reasons(out) == [("val.jsonl:1", "bad_row")]
    page = (out / "report.html").read_text()
    examples = page.partition("Examples of choices</h2>")[2].partition("</section>")[0]
    assert examples.count("data:image/jpeg;base64") == 1
    assert "✓ a [1]" in examples and "vcr/val-0/q2a val" in examples


def test_counts_of_a_killed_and_continued_run_are_the_same(tmp_path: Path, image: Image) -> None:
    LAYOUTS["cc"](tmp_path / "in", image)
    out = made("cc", tmp_path / "in", "--rows-per-shard", "2")
    before = (out / "funnel.json").read_text()
    assert '"image_missing": 2' in before
    for name in ("_manifest.json", "funnel.json", "rejects-0-00002.parquet"):
        (out / name).unlink()
    made("cc", tmp_path / "in", "--rows-per-shard", "2")
    assert (out / "funnel.json").read_text() == before


# Archives


def test_links_and_names_that_lead_out_of_a_tar_are_no_images(tmp_path: Path, image: Image) -> None:
    LAYOUTS["coco"](tmp_path / "in", image)
    names = ("train2014/COCO_train2014_000000000009.jpg", "val2014/COCO_val2014_000000000042.jpg")
    for name in names:
        (tmp_path / "in" / name).unlink()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        link = tarfile.TarInfo(names[0])
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        member = tarfile.TarInfo("../" + names[1])
        member.size = len(image(9, 9))
        tar.addfile(member, io.BytesIO(image(9, 9)))
    write(tmp_path / "pictures.tar", out.getvalue())
    made_out = made("coco", tmp_path / "in", "--images", str(tmp_path / "pictures.tar"))
    assert rows(made_out, IMAGES) == []
    missing = [key for key, reason in reasons(made_out) if reason == "image_missing"]
    assert missing == ["coco/000000000009", "coco/000000000042"]


def test_of_two_members_of_one_name_the_first_counts(tmp_path: Path, image: Image) -> None:
    LAYOUTS["coco-karpathy"](tmp_path / "in", image)
    name = "train2014/COCO_train2014_000000000100.jpg"
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as file, pytest.warns(UserWarning):
        file.writestr(name, image(33, 22))
        file.writestr(name, image(44, 22))
    out = made("coco-karpathy", tmp_path / "in", "--images", str(tmp_path / "p.zip"))
    assert rows(out, IMAGES)[0]["width"] == 33


def test_a_file_that_unpacks_without_end_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in/cc12m.tsv.gz", gzip.compress(b"http://a/a.jpg\t" + b"a" * (65 << 20)))
    made("cc12m", tmp_path / "in", status=2)
    assert "unpacks to more than" in capsys.readouterr().err


# One's own files


def test_json_lines_are_read_by_their_keys(tmp_path: Path, image: Image) -> None:
    write(tmp_path / "a.jpg", image(9, 9))
    content = [
        {"file_name": "a.jpg", "text": "a cat"},
        {"file_name": "a.jpg", "text": "a dog", "split": "val"},
        {"file_name": "a.jpg", "text": ["one", "two", "one", {}]},
        {"file_name": "a.jpg", "text": []},
        {"file_name": ["a.jpg"], "text": "a list of one image"},
        {"file_name": ["a.jpg", "b.jpg"], "text": "a list of images"},
        {"text": "no image"},
    ]
    write(tmp_path / "metadata.jsonl", lines(content) + "{broken\n")
    words = ["own", "--input", str(tmp_path / "metadata.jsonl"), "--text-column", "text"]
    words += ["--image-column", "file_name", "--image-root", str(tmp_path)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    pairs = [(row["text"], row["split"]) for row in rows(tmp_path / "out", PAIRS)]
    texts = {"a cat", "a dog", "one", "two", "a list of one image"}
    assert dict(pairs) == dict.fromkeys(texts) | {"a dog": "val"} and len(pairs) == len(texts)
    assert reasons(tmp_path / "out") == [
        ("metadata.jsonl:3", "duplicate"),
        ("metadata.jsonl:3", "bad_record"),
        ("metadata.jsonl:4", "no_text"),
        ("metadata.jsonl:6", "too_many"),
        ("metadata.jsonl:7", "no_id"),
        ("metadata.jsonl:8", "bad_record"),
    ]
    assert main([*words, "--output", str(tmp_path / "other"), "--delimiter", ";"]) == 2


def test_an_absolute_path_is_read_below_its_root_alone(tmp_path: Path, image: Image) -> None:
    inside, outside = tmp_path / "photos/sub/a.jpg", tmp_path / "b.jpg"
    for path in (inside, outside):
        write(path, image(9, 9))
    (tmp_path / "photos/link.jpg").symlink_to(outside)
    names = [
        str(inside),
        str(outside),
        f"{tmp_path}/photos/../b.jpg",
        f"{tmp_path}/photos/link.jpg",
    ]
    content = "".join(f"{name}\ta cat\n" for name in names)
    write(tmp_path / "own.tsv", f"file\ttext\n{content}")
    words = ["own", "--input", str(tmp_path / "own.tsv"), "--text-column", "text"]
    words += ["--image-column", "file", "--image-root", str(tmp_path / "photos")]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    assert [row["image_id"] for row in rows(tmp_path / "out", IMAGES)] == [str(inside)]
    assert [reason for _, reason in reasons(tmp_path / "out")] == ["unsafe_path"] * 3
