"""Miniatures of published sets: what is kept, what is rejected, and that each is counted once."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.manifest.layouts import FLICKR, LAYOUTS, karpathy_image, tar_of
from tests.pipelines.manifest.layouts import write as write_bytes
from tests.pipelines.manifest.running import made, reasons, rows
from tests.pipelines.manifest.task_layouts import (
    METADATA,
    annotation,
    lines,
    vcr_line,
    write,
    write_vqa,
)

from vlmill.pipelines.manifest.published import placeholders
from vlmill.pipelines.manifest.published.placeholders import compute_min_ids
from vlmill.schemas.tables import IMAGES, PAIRS, QUESTIONS, REJECTS

Image = Callable[..., bytes]


def ids(folder: Path) -> list[str]:
    """The ids of a table of images, sorted."""
    return sorted(row["image_id"] for row in rows(folder, IMAGES))


def funnel(folder: Path) -> list[tuple[str, int, int, dict[str, int]]]:
    """The stages of a run, each checked to add up."""
    stages = json.loads((folder / "funnel.json").read_text())
    assert all(s["in"] == s["out"] + sum(s["rejects"].values()) for s in stages)
    return [(s["stage"], s["in"], s["out"], s["rejects"]) for s in stages]


# SBU


def write_sbu(root: Path, image: Image, number: int, name: Callable[[int, str], str]) -> None:
    """Writes three photos and, under ``number`` other ids, one image."""
    urls = [f"{FLICKR}/{n}_ab.jpg" for n in range(number + 3)]
    columns = {"image_urls": urls, "user_ids": urls, "captions": ["a cat"] * len(urls)}
    write(root / "sbu-captions-all.json", columns)
    for row, url in enumerate(urls):
        content = image(12, 10, seed=row) if row < 3 else image(50, 37, seed=9, format="GIF")
        write(root / name(row, url.rpartition("/")[2]), content)


@pytest.mark.parametrize("number", [22, 5])
@pytest.mark.parametrize(
    "name",
    [
        lambda row, file: f"images/{file}",
        lambda row, file: file,
        lambda row, file: f"0000/{row:03d}.jpg",
        lambda row, file: f"images_train/0000/{row:07d}",
    ],
)
def test_sbu_keeps_its_three_photos_and_rejects_placeholders(
    tmp_path: Path, image: Image, name: Callable[[int, str], str], number: int
) -> None:
    write_sbu(tmp_path / "in", image, number, name)
    out = made("sbu", tmp_path / "in")
    assert ids(out) == ["sbu/0", "sbu/1", "sbu/2"]
    assert Counter(reason for _, reason in reasons(out)) == {"placeholder": number}
    assert len(rows(out, PAIRS)) == number + 3


def test_bytes_of_few_ids_are_a_photo_that_was_stored_again() -> None:
    assert [compute_min_ids(n) for n in (1, 5, 8, 40, 41, 1_000_000)] == [3, 3, 4, 20, 21, 21]


def test_flickr_s_own_placeholder_is_known_by_its_digest(
    tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAYOUTS["sbu"](tmp_path / "in", image)
    (file,) = (tmp_path / "in/images").iterdir()
    digest = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(placeholders, "UNAVAILABLE_SHA1", digest)
    out = made("sbu", tmp_path / "in")
    assert rows(out, IMAGES) == [] and ("sbu/2345", "placeholder") in reasons(out)


def test_sbu_s_row_1000_is_not_the_image_of_row_0(tmp_path: Path, image: Image) -> None:
    urls = [f"http://else/{n}.jpg" for n in range(1001)]
    write(tmp_path / "in/sbu-captions-all.json", {"image_urls": urls, "captions": ["a"] * 1001})
    write(tmp_path / "pictures/000.jpg", image(9, 9))
    assert ids(made("sbu", tmp_path / "in", "--images", str(tmp_path / "pictures"))) == []


# COCO


@pytest.mark.parametrize("name", ["coco", "coco-karpathy"])
def test_one_missing_image_is_one_reject(tmp_path: Path, image: Image, name: str) -> None:
    LAYOUTS[name](tmp_path / "in", image)
    lost = sorted((tmp_path / "in/val2014").iterdir())[-1]
    lost.unlink()
    image_id = f"coco/{lost.stem[-12:]}"
    out = made(name, tmp_path / "in")
    assert [key for key, reason in reasons(out) if reason == "image_missing"] == [image_id]
    pairs = Counter(row["image_id"] for row in rows(out, PAIRS))

    required = made(name, tmp_path / "in", "--require-images", "--fresh")
    stages = {stage: numbers for stage, *numbers in funnel(required)}
    captions = pairs.pop(image_id)
    assert stages["require_images"][2] == {"image_missing": captions}
    assert stages["pictures"] == [len(pairs), len(pairs), {}]
    assert Counter(row["image_id"] for row in rows(required, PAIRS)) == pairs
    lost_rows = [r for r in rows(required, REJECTS) if r["reason"] == "image_missing"]
    assert len(lost_rows) == captions
    assert all(row["detail"].startswith(f"{image_id}: no file ") for row in lost_rows)


def test_counts_of_required_images_are_the_same_after_a_kill(tmp_path: Path, image: Image) -> None:
    LAYOUTS["coco"](tmp_path / "in", image)
    next((tmp_path / "in/train2014").iterdir()).unlink()
    flags = ("--require-images", "--rows-per-shard", "2")
    out = made("coco", tmp_path / "in", *flags)
    before = funnel(out)
    for name in ("_manifest.json", "funnel.json", "rejects-0-00002.parquet"):
        (out / name).unlink()
    made("coco", tmp_path / "in", *flags)
    assert funnel(out) == before


# Flickr30k

NAMES = ("999.jpg", "1000092795.jpg", "57.jpg", "10002456.jpg")  # neither as texts nor as numbers
CAPTIONS = [(name, k, f"caption {k} of {name}") for name in NAMES for k in (2, 0, 1)]
SHUFFLED = [CAPTIONS[place] for place in (7, 0, 10, 3, 11, 1, 5, 9, 2, 8, 4, 6)]


def karpathy(root: Path) -> list[str]:
    splits = ("test", "train", "val", "train")
    images = [
        karpathy_image(9 - n, name, s)
        for n, (name, s) in enumerate(zip(NAMES, splits, strict=True))
    ]
    for image in images:
        for sentence in image["sentences"]:
            sentence["raw"] = f"{sentence['raw']} {image['filename']}"
    write(root / "dataset_flickr30k.json", {"images": images})
    return [sentence["raw"] for image in images for sentence in image["sentences"]]


def token(root: Path) -> list[str]:
    write(root / "results_20130124.token", "".join(f"{n}#{k}\t{t}\n" for n, k, t in SHUFFLED))
    return [text for *_, text in SHUFFLED]


def kaggle(root: Path) -> list[str]:
    listed = "".join(f"{n}| {k}| {t}\n" for n, k, t in SHUFFLED)
    write(root / "results.csv", f"image_name| comment_number| comment\n{listed}")
    return [text for *_, text in SHUFFLED]


def vilbert(root: Path) -> list[str]:
    texts = []
    for file, names in (("train_2014", NAMES[:3]), ("test_set0_2014", NAMES[3:])):
        records = [{"img_path": n, "sentences": [f"b {n}", f"a {n}"]} for n in names]
        texts += [text for record in records for text in record["sentences"]]
        write(root / f"all_data_final_{file}.jsonline", lines(records))
    return texts


@pytest.mark.parametrize("layout", [karpathy, token, kaggle, vilbert])
def test_flickr30k_s_pairs_keep_the_order_of_the_file(
    tmp_path: Path, image: Image, layout: Callable[[Path], list[str]]
) -> None:
    expected = layout(tmp_path / "in")
    for name in NAMES:
        write(tmp_path / "in/flickr30k-images" / name, image(9, 9))
    out = made("flickr30k", tmp_path / "in", "--rows-per-shard", "3", "--workers", "3")
    assert [row["text"] for row in rows(out, PAIRS)] == expected


def test_a_caption_of_two_of_flickr30k_s_splits_is_one_pair(tmp_path: Path) -> None:
    for file, second in (("train", "one"), ("val_set0", "one"), ("test_set0", "another")):
        record = {"img_path": "57.jpg", "sentences": ["a dog", second]}
        write(tmp_path / f"in/all_data_final_{file}_2014.jsonline", lines([record]))
    out = made("flickr30k", tmp_path / "in")
    assert [row["split"] for row in rows(out, PAIRS)] == ["train", "train"]
    assert Counter(r for _, r in reasons(out)) == {"duplicate": 3, "id_conflict": 1}


# ImageNet-22k


def imagenet_files(image: Image) -> dict[str, bytes]:
    """Seven images whose names or bytes are not as one would think."""
    return {
        "n01440764/n01440764_1.JPEG": image(9, 9, seed=1),
        "n01440764/n01440764_2.JPEG": image(9, 9, seed=2, format="BMP"),
        "n01440764/n01440764_3.v2.JPEG": image(9, 9, seed=3, format="PNG"),
        "n01440764/n01440764_4": image(9, 9, seed=4, format="GIF"),
        "n01440764/same.JPEG": image(9, 9, seed=5),
        "n01443537/n01443537_1.jpe": image(9, 9, seed=6),
        "n01443537/same.JPEG": image(9, 9, seed=7),
    }


def imagenet_folders(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_bytes(root / name, content)
    write(root / "n01440764/n01440764_1.xml", "<annotation/>")
    write(root / "n01440764/.DS_Store", "x")


def by_synset(files: Mapping[str, bytes]) -> dict[str, bytes]:
    synsets = sorted({name.partition("/")[0] for name in files})
    return {
        f"{synset}.tar": tar_of(
            {name.partition("/")[2]: c for name, c in files.items() if name.startswith(synset)}
        )
        for synset in synsets
    }


def imagenet_tars(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in by_synset(files).items():
        write(root / name, content)


def imagenet_nested(root: Path, files: Mapping[str, bytes]) -> None:
    write(root / "fall11_whole.tar", tar_of(by_synset(files)))


def imagenet_shard(root: Path, files: Mapping[str, bytes]) -> None:
    labels = {"n01440764/n01440764_1.cls": b"0", "__key__": b"x"}
    write(root / "00000.tar", tar_of({**files, **labels}))


@pytest.mark.parametrize(
    "layout", [imagenet_folders, imagenet_tars, imagenet_nested, imagenet_shard]
)
def test_imagenet_loses_no_name(
    tmp_path: Path, image: Image, layout: Callable[[Path, Mapping[str, bytes]], None]
) -> None:
    layout(tmp_path / "in", imagenet_files(image))
    out = made("imagenet22k", tmp_path / "in")
    assert ids(out) == [
        "imagenet22k/n01440764_1",
        "imagenet22k/n01440764_2",
        "imagenet22k/n01440764_3.v2",
        "imagenet22k/n01440764_4",
        "imagenet22k/n01443537/same",
        "imagenet22k/n01443537_1",
        "imagenet22k/same",
    ]
    assert reasons(out) == []


def test_links_of_a_synset_are_images_or_named(
    tmp_path: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "in"
    write(root / "n01440764/n01440764_1.JPEG", image(9, 9))
    write(tmp_path / "elsewhere.JPEG", image(9, 9))
    targets = (root / "n01440764/n01440764_1.JPEG", tmp_path / "elsewhere.JPEG", tmp_path / "gone")
    for number, target in enumerate(targets, 2):
        os.symlink(target, root / f"n01440764/n01440764_{number}.JPEG")
    write(root / "teddy/1.JPEG", image(9, 9))
    out = made("imagenet22k", root)
    assert ids(out) == ["imagenet22k/n01440764_1", "imagenet22k/n01440764_2"]
    assert reasons(out) == [
        ("imagenet22k/n01440764_3", "unsafe_path"),
        ("imagenet22k/n01440764_4", "image_missing"),
    ]
    assert "warning: not read: teddy" in capsys.readouterr().err


# VQA


def write_few(root: Path) -> None:
    """Eight questions with one answer, which one more would make a label."""
    questions = [{"question_id": n, "image_id": 9, "question": "What?"} for n in range(8)]
    write(root / "v2_OpenEnded_mscoco_train2014_questions.json", {"questions": questions})
    answers = [annotation(n, 9, *["yes"] * 10) for n in range(8)]
    write(root / "v2_mscoco_train2014_annotations.json", {"annotations": answers})


def test_vqa_without_labels_writes_no_empty_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_few(tmp_path / "in")
    out = made("vqa2", tmp_path / "in")
    assert not (out / "labels.json").exists()
    assert {row["label_ids"] is None for row in rows(out, QUESTIONS)} == {True}
    assert "no answer occurs in 9 or more questions" in capsys.readouterr().err
    write(tmp_path / "labels.json", ["no", "yes", "a label of no question"])
    out = made("vqa2", tmp_path / "in", "--labels", str(tmp_path / "labels.json"), "--fresh")
    assert rows(out, QUESTIONS)[0]["label_ids"] == [1]
    assert "8 of 8 annotated questions have an answer among them" in capsys.readouterr().err
    # The list of one run does not stay in the way of the next, nor for it to be read.
    out = made("vqa2", tmp_path / "in", "--fresh")
    assert not (out / "labels.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("0 yes\n1 no\n", "none of its 2 labels ('0 yes', '1 no', ...) is an answer to one of the"),
        ('{"yes": 3, "no": 7}', "the number of 'yes' is 3, not one of them"),
        ('{"yes": 0, "no": 0}', "the number of 'no' is 0, that of 'yes', too"),
        ('{"0": "yes", "1": "no"}', "the number of '0' is yes, not one of them"),
    ],
)
def test_labels_that_do_not_fit_the_questions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    write_vqa(tmp_path / "in")
    write(tmp_path / "labels", content)
    made("vqa2", tmp_path / "in", "--labels", str(tmp_path / "labels"), status=2)
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error and str(tmp_path / "labels") in error


def test_labels_that_few_questions_have_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_few(tmp_path / "in")
    answers: list[Any] = [annotation(n, 9, "yes" if n else "red") for n in range(8)]
    write(tmp_path / "in/v2_mscoco_train2014_annotations.json", {"annotations": answers})
    write(tmp_path / "labels.txt", "red\nblue\n")
    made("vqa2", tmp_path / "in", "--labels", str(tmp_path / "labels.txt"))
    assert "warning: labels: 2 of" in (said := capsys.readouterr().err)
    assert "1 of 8 annotated questions" in said


# VCR


def test_vcr_s_images_have_the_published_name_of_their_file(tmp_path: Path, image: Image) -> None:
    write(tmp_path / "in/val.jsonl", lines([vcr_line("val-0", "val-0")]))
    write(tmp_path / "in/vcr1images/m/val-0@1.jpg", image(40, 30))
    write(tmp_path / "in/vcr1images/m/val-0@1.json", METADATA)
    (row,) = rows(made("vcr", tmp_path / "in"), IMAGES)
    assert (row["image_id"], row["uri"]) == ("vcr/val-0", "m/val-0@1.jpg")
    assert row["bytes"] is not None


# WebDataset


def test_each_line_of_a_caption_is_a_pair_or_a_reject(tmp_path: Path, image: Image) -> None:
    text = f"a dog\n{'x' * 10_001}\nit runs"
    write(tmp_path / "in/00000.tar", tar_of({"0.jpg": image(9, 9), "0.txt": text.encode()}))
    out = made("webdataset", tmp_path / "in", "--txt-lines")
    assert [row["pair_id"] for row in rows(out, PAIRS)] == ["webdataset/0#0", "webdataset/0#2"]
    assert reasons(out) == [("00000.tar:0.1", "too_long")]
    assert funnel(out)[0] == ("rows", 2, 1, {"too_long": 1})
