"""Speed of region extraction by part, beside the GEMM rate of the same run.

    python benchmarks/extract.py [--arch r101] [--short-side 600] [--repeats 2]

Prints JSON lines. Rates are per CPU second (all threads), the least of the repeats: they hold on a
machine that does other work too. ``limit`` is the rate of a float32 2048^3 GEMM.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vlmill.extract.predict import ROI_CHUNK
from vlmill.extract.weights import open_detector
from vlmill.models.detector_config import ARCHITECTURES
from vlmill.models.faster_rcnn import FasterRCNN
from vlmill.models.nms import class_confidence

GEMM_SIDE = 2048


def cpu_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The least CPU time of ``repeats`` calls, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def flops(work: Callable[[], Any]) -> int:
    """Multiplications and additions of convolutions and linear layers."""
    with FlopCounterMode(display=False) as counter:
        work()
    total: int = counter.get_total_flops()
    return total


def line(name: str, value: float, unit: str, limit: float | None = None) -> None:
    """One result; there is no peer in this benchmark."""
    fraction = None if limit is None else value / limit
    result = {"name": name, "value": value, "unit": unit, "peer": None, "ratio": None}
    print(json.dumps({**result, "limit": limit, "fraction_of_limit": fraction}), flush=True)


def parts_of(model: FasterRCNN, picture: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """The work of one picture, part by part."""
    features = model.backbone(picture)
    height, width = picture.shape[-2:]
    boxes, _ = model.proposal_generator(features, height, width, 1.0)
    pooled = [model.roi_heads.pool(features, part) for part in boxes.split(ROI_CHUNK)]
    found = model.describe(features, boxes, ROI_CHUNK)
    spec = model.config
    return {
        "backbone": lambda: model.backbone(picture),
        "rpn": lambda: model.proposal_generator(features, height, width, 1.0),
        "roi_pool": lambda: [
            model.roi_heads.pool(features, part) for part in boxes.split(ROI_CHUNK)
        ],
        "res5": lambda: [model.roi_heads.res5(part).mean(dim=(2, 3)) for part in pooled],
        "selection": lambda: class_confidence(
            boxes,
            found.class_probs[:, 1:],
            spec.class_nms_thresholds[0],
            offset=spec.box_offset,
            inclusive=spec.nms_inclusive,
        ),
        "picture": lambda: model(picture, 1.0, ROI_CHUNK),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=ARCHITECTURES, default="r101")
    parser.add_argument("--short-side", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args(argv)
    torch.manual_seed(0)
    with torch.inference_mode():
        matrix = torch.randn(GEMM_SIDE, GEMM_SIDE)
        gemm = 2 * GEMM_SIDE**3 / cpu_seconds(lambda: matrix @ matrix, 5) / 1e9
        line("gemm", gemm, "GFLOP/CPU s")
        model = open_detector(ARCHITECTURES[arguments.arch], None).model
        coarse = torch.randn(1, 3, 12, 16) * 64
        size = (arguments.short_side, arguments.short_side * 4 // 3)
        picture = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")
        name = f"extract/{arguments.arch}/{size[0]}x{size[1]}"
        for part, work in parts_of(model, picture).items():
            seconds, done = cpu_seconds(work, arguments.repeats), flops(work)
            line(f"{name}/{part}", seconds, "CPU s")
            if done:
                line(f"{name}/{part}/rate", done / seconds / 1e9, "GFLOP/CPU s", gemm)


if __name__ == "__main__":
    main()
