"""COCO's average precision of detections, by pycocotools where it is installed."""

import contextlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def coco_metrics(
    truth: Sequence[Array],
    detected: Sequence[Array],
    sizes: Sequence[tuple[int, int]],
    num_classes: int,
    *,
    crowds: Sequence[Array] = (),
) -> dict[str, float]:
    """Returns COCO's average precision by pycocotools; nothing where that is not installed.

    ``truth`` are rows of image, class and corners of each image, ``detected`` also of scores,
    ``sizes`` the images' width and height. What is detected in one of ``crowds`` is neither right
    nor wrong.
    """
    if importlib.util.find_spec("pycocotools") is None or not truth:
        return {}
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rows = np.concatenate([*truth, *crowds])
    first_crowd = sum(map(len, truth))
    data_set = COCO()
    data_set.dataset = {
        "images": [{"id": index, "width": w, "height": h} for index, (w, h) in enumerate(sizes)],
        "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
        "annotations": [
            {
                "id": index + 1,
                "image_id": int(row[0]),
                "category_id": int(row[1]),
                "bbox": sides(row[2:6]),
                "area": float((row[4] - row[2]) * (row[5] - row[3])),
                "iscrowd": int(index >= first_crowd),
            }
            for index, row in enumerate(rows)
        ],
    }
    detections = [
        {
            "image_id": int(row[0]),
            "category_id": int(row[1]),
            "bbox": sides(row[2:6]),
            "score": float(row[6]),
        }
        for row in np.concatenate(detected)
    ]
    if not len(rows) or not detections:
        return {"coco/ap": 0.0, "coco/ap50": 0.0, "coco/ap75": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a dozen lines a call
        data_set.createIndex()
        scorer = COCOeval(data_set, data_set.loadRes(detections), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    # -1 where nothing is counted.
    ap, ap50, ap75 = (max(float(value), 0.0) for value in scorer.stats[:3])
    return {"coco/ap": ap, "coco/ap50": ap50, "coco/ap75": ap75}


def sides(box: Array) -> list[float]:
    """Returns x, y, width, height of corners."""
    x1, y1, x2, y2 = map(float, box)
    return [x1, y1, x2 - x1, y2 - y1]
