"""Times ResNeXt backbones of ours and of Detectron2 on a CPU, by turns in one run.

    python -m benchmarks.peers.detectron2_backbone [--depth 152] [--pyramid] [--rounds 5]

Both have random weights, the same sizes and one image of 600 x 800 pixels. Ours is the network that
``extract-rois`` runs, with folded normalisations; Detectron2's is the module that its configuration
builds. Time is the process's CPU time, the least of the rounds.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from vlmill.extract.detect.detector import open_detector
from vlmill.models.detector.config import DetectorConfig, detectron2, detectron2_fpn

GROUPS, WIDTH = 32, 8
SIZES = {"groups": GROUPS, "res2_width": GROUPS * WIDTH, "stride_in_1x1": False}


def build_peer(config: DetectorConfig) -> Callable[[Tensor], object]:
    """Returns Detectron2's backbone of a configuration; raises ImportError without Detectron2."""
    from detectron2.config import get_cfg  # type: ignore[import-not-found]
    from detectron2.modeling import build_backbone  # type: ignore[import-not-found]

    cfg = get_cfg()
    cfg.MODEL.RESNETS.DEPTH = config.depth
    cfg.MODEL.RESNETS.NUM_GROUPS, cfg.MODEL.RESNETS.WIDTH_PER_GROUP = GROUPS, WIDTH
    cfg.MODEL.RESNETS.STRIDE_IN_1X1 = False
    if config.fpn_channels:
        cfg.MODEL.BACKBONE.NAME = "build_resnet_fpn_backbone"
        cfg.MODEL.RESNETS.OUT_FEATURES = ["res2", "res3", "res4", "res5"]
        cfg.MODEL.FPN.IN_FEATURES = cfg.MODEL.RESNETS.OUT_FEATURES
    backbone: Callable[[Tensor], object] = build_backbone(cfg).eval()
    return backbone


def cpu_seconds(work: Callable[[Tensor], object], image: Tensor) -> float:
    start = time.process_time()
    with torch.inference_mode():
        work(image)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, choices=(50, 101, 152), default=152)
    parser.add_argument(
        "--pyramid", action="store_true", help="measure with FPN instead of up to res4"
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    make = detectron2_fpn if arguments.pyramid else detectron2
    config = make(depth=arguments.depth, **SIZES)
    image = torch.randn(1, 3, 608, 800)
    works = {
        "ours": open_detector(config, None).model.feature_maps,
        "Detectron2": build_peer(config),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(arguments.rounds + 1):  # the first one warms up
        for name, work in works.items():
            times[name].append(cpu_seconds(work, image))
    least = {name: min(rounds[1:]) for name, rounds in times.items()}
    for name, seconds in least.items():
        print(f"{name}: {seconds:.2f} CPU s")
    print(f"ratio: {least['ours'] / least['Detectron2']:.2f}")


if __name__ == "__main__":
    main()
