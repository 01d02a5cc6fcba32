"""Small files of tasks in their published layouts, with the traps that these have."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

from PIL import Image


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def image(width: int = 40, height: int = 30, *, turn: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = turn
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "JPEG", exif=exif)
    return file.getvalue()


def answers(*typed: str) -> list[dict[str, Any]]:
    return [{"answer": a, "answer_confidence": "yes", "answer_id": i} for i, a in enumerate(typed)]


def annotation(question_id: int, image_id: int, *typed: str) -> dict[str, Any]:
    return {
        "question_id": question_id,
        "image_id": image_id,
        "question_type": "what",
        "answer_type": "other",
        "multiple_choice_answer": typed[0],
        "answers": answers(*typed),
    }


def write_vqa(folder: Path) -> None:
    questions = [
        {"question_id": 10000 + k, "image_id": 10, "question": f"What is {k}?"} for k in range(10)
    ]
    annotations = [
        annotation(10000 + k, 10, *["Yes"] * 6, "yes", "yes", "no", "") for k in range(9)
    ]
    # In another order, one without its question, and one twice.
    annotations = [*reversed(annotations), annotation(1, 1, "yes"), annotations[0]]
    about = {"info": {}, "license": {}, "data_type": "mscoco"}
    write(
        folder / "v2_OpenEnded_mscoco_train2014_questions.json",
        about | {"questions": [*questions, questions[0], questions[1] | {"question": "Other?"}]},
    )
    write(folder / "v2_mscoco_train2014_annotations.json", about | {"annotations": annotations})
    test = {"questions": [{"question_id": 99000, "image_id": 99, "question": "Who?"}]}
    write(folder / "v2_OpenEnded_mscoco_test2015_questions.json", test)
    # A part of the test set, of which no second row is made.
    write(folder / "v2_OpenEnded_mscoco_test-dev2015_questions.json", test)
    write(folder / "train2014" / "COCO_train2014_000000000010.jpg", image())


METADATA = {
    "boxes": [[1.0, 2.0, 11.0, 22.0, 0.9], [0, 0, 5, 5, 0.5]],
    "segms": [[[[1, 2], [3, 4], [5, 6]]], []],
    "names": ["person", "cup"],
    "width": 40,
    "height": 30,
}


def vcr_line(annot_id: str, img_id: str, **change: Any) -> dict[str, Any]:
    split = annot_id.split("-")[0]
    line = {
        "annot_id": annot_id,
        "img_id": img_id,
        "movie": "m",
        "img_fn": f"m/{img_id}@1.jpg",
        "metadata_fn": f"m/{img_id}@1.json",
        "objects": ["person", "cup"],
        "question": ["What", "is", [0], "?"],
        "answer_choices": [["a", [1]], ["b"], ["c"], ["d"]],
        "rationale_choices": [["e"], ["f"], ["g"], ["h"]],
    }
    labels = {} if split == "test" else {"answer_label": 0, "rationale_label": 3}
    return line | labels | change


def write_refcoco(folder: Path) -> None:
    instances = {
        "images": [
            {"id": 9, "file_name": "x", "width": 40, "height": 30},
            {"id": 10, "file_name": "y", "width": 40, "height": 30},
        ],
        "annotations": [
            {"id": 91, "image_id": 9, "category_id": 1, "bbox": [30.0, 10.0, 20.0, 10.0]},
            {"id": 92, "image_id": 9, "category_id": 1, "bbox": [50.0, 10.0, 20.0, 10.0]},
            {"id": 101, "image_id": 10, "category_id": 90, "bbox": [2, 4, 10, 20]},
            {"id": 200, "image_id": 20, "category_id": 90, "bbox": [2, 4, 10, 20]},
        ],
    }
    refs = [
        ref(1, 91, 9, "testA", {20: "left man", 21: ""}),
        ref(2, 101, 10, "train", {22: "dog", 23: "", 20: "left man"}),
        ref(3, 92, 9, "train", {24: "beyond"}),
        ref(4, 200, 20, "train", {25: "no image"}),
    ]
    write(folder / "instances.json", instances)
    # As Python 2 wrote it: byte strings, protocol 2.
    write(folder / "refs(unc).p", pickle.dumps(refs, protocol=2))
    write(folder / "train2014" / "COCO_train2014_000000000010.jpg", image(turn=6))
    detections = [
        {"det_id": 1, "image_id": 9, "box": [1, 2, 3, 4], "category_id": 2, "score": 0.7},
        {"det_id": 2, "image_id": 77, "box": [1, 2, 3, 4], "category_id": 2, "score": 0.7},
    ]
    place = folder / "detections" / "refcoco+_unc"
    write(place / "res101_coco_minus_refer_notime_dets.json", detections)


def ref(ref_id: int, ann_id: int, image_id: int, split: str, texts: dict[int, str]) -> Any:
    return {
        "ref_id": ref_id,
        "ann_id": ann_id,
        "image_id": image_id,
        "category_id": 1,
        "split": split,
        "file_name": f"COCO_train2014_{image_id:012d}_{ann_id}.jpg",
        "sent_ids": list(texts),
        "sentences": [
            {"sent_id": sent_id, "sent": text, "raw": text, "tokens": text.split()}
            for sent_id, text in texts.items()
        ],
    }
