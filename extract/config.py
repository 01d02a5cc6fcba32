"""Defines the settings of region extraction: selected regions, input sizes, stored columns."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmill.runtime.files.checkpoints import checkpoints_with
from vlmill.runtime.files.paths import require_local
from vlmill.schemas.errors import InputError

CLASS_PROBS = ("none", "argmax", "topk:K", "full")
DTYPES = ("float16", "bfloat16", "float32")
COMPRESSIONS = ("none", "zstd")
PAGE = ".html"  # the ending of a page that show writes; another output is a folder
IDS = ("auto", "content", "name")  # the image_id of a file
# A trained detector: its weights and their configuration; where a run stores its checkpoints.
MODEL, DETECTOR = "model.safetensors", "detector.json"
PRECISIONS = ("exact", "fast")  # of the network's arithmetic (vlmill.extract.detect.predict)
# Photographs have a dozen frequent shapes: among the images of 8 batches most find others of their
# shape.
WINDOW_BATCHES = 8
# --batch-size there, unless given: the steps of suppression cost the same for any number.
CUDA_BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Defines which proposals become regions.

    A proposal's confidence is the highest probability with which it survives the suppression of
    some class. Proposals at or above ``threshold`` are kept; if they are fewer than ``min_boxes``
    (more than ``max_boxes``), the best ``min_boxes`` (``max_boxes``) are kept instead. An image may
    have fewer proposals than ``min_boxes``.
    """

    threshold: float = 0.2
    min_boxes: int = 10
    max_boxes: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.min_boxes <= self.max_boxes or self.max_boxes < 1:
            raise ValueError(
                f"boxes from {self.min_boxes} to {self.max_boxes}: "
                "--min-boxes must be at least 0 and at most --max-boxes"
            )
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"--threshold {self.threshold}: expected a probability, 0 to 1")


SELECTIONS = {
    # ImageBERT, arXiv:2001.07966, sec. 3: the 100 regions of the highest scores.
    "imagebert": Selection(threshold=0.0, min_boxes=100, max_boxes=100),
    # ViLBERT, arXiv:1908.02265, sec. 3.2: 10 to 36 boxes above a threshold; 0.2 is the detector's
    # threshold.
    "vilbert": Selection(threshold=0.2, min_boxes=10, max_boxes=36),
    # VL-BERT, arXiv:1908.08530, sec. 4.1: above 0.5, at least 10 and at most 100.
    "vl-bert": Selection(threshold=0.5, min_boxes=10, max_boxes=100),
    # InterBERT, arXiv:2003.13198: up to 100 regions; threshold and minimum are the detector's own.
    "interbert": Selection(threshold=0.2, min_boxes=10, max_boxes=100),
    # VinVL, arXiv:2101.00529: 10 to 100 boxes, like its command line.
    "vinvl": Selection(threshold=0.2, min_boxes=10, max_boxes=100),
    # Pythia, MMF and 12-in-1: the first 100 regions that survive in some class.
    "pythia": Selection(threshold=0.0, min_boxes=0, max_boxes=100),
    # Detectron2's models of COCO: SCORE_THRESH_TEST and DETECTIONS_PER_IMAGE.
    "coco": Selection(threshold=0.05, min_boxes=0, max_boxes=100),
    # InterBERT on TaoMultimodal: above 0.1, at most 16; an image without regions is not filled up.
    "tao": Selection(threshold=0.1, min_boxes=0, max_boxes=16),
}


@dataclass(frozen=True, kw_only=True)
class InputLimits:
    """Defines how images are resized, and which are refused."""

    short_side: int | None = None  # pixels of the network's input; None: the detector's own
    long_side: int | None = None
    max_bytes: int = 64 * 2**20
    max_pixels: int = 50_000_000  # checked in the header, before anything is decoded

    def __post_init__(self) -> None:
        short, long = self.short_side, self.long_side
        known = [side for side in (short, long) if side is not None]
        if any(side < 3 for side in known) or known != sorted(known):
            raise ValueError(
                f"sides {self.short_side} and {self.long_side}: "
                "--short-side must be at least 3 and at most --long-side"
            )
        if self.max_pixels < 1:
            raise ValueError(f"--max-pixels {self.max_pixels}: at least 1")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Defines which columns of a region are written, and how."""

    # none: no classes at all; argmax: id and score; topk:K: also the K highest probabilities;
    # full: also all probabilities.
    class_probs: str = "argmax"
    dtype: str = "float16"
    compression: str = "none"
    images_per_shard: int = 1000
    global_feature: bool = False  # the feature of the full image as a region

    def __post_init__(self) -> None:
        if self.images_per_shard < 1:
            raise ValueError(f"--images-per-shard {self.images_per_shard}: at least 1")
        kind, _, number = self.class_probs.partition(":")
        if kind == "topk" and number.isdecimal() and 1 <= int(number) < 65_536:
            return
        if self.class_probs not in ("none", "argmax", "full"):
            raise ValueError(
                f"--class-probs {self.class_probs}: give one of {', '.join(CLASS_PROBS)}, "
                "K from 1: topk:10"
            )

    @property
    def top_k(self) -> int | None:
        """Returns the number of stored probabilities per region; None unless it is ``topk:K``."""
        kind, _, number = self.class_probs.partition(":")
        return int(number) if kind == "topk" else None


@dataclass(frozen=True, kw_only=True)
class ExtractConfig:
    """Holds all settings that determine the rows, except the inputs."""

    selection: Selection = SELECTIONS["imagebert"]
    limits: InputLimits = InputLimits()
    storage: Storage = Storage()
    precision: Literal["exact", "fast"] = "exact"
    # Images of one input shape that pass through the network together. On a CPU more than 1 is not
    # faster (benchmarks/RESULTS.md).
    batch_size: int = 1

    @property
    def window(self) -> int:
        """Returns the number of consecutive images for batching by shape; bounds the waiting
        images.
        """
        return 1 if self.batch_size == 1 else WINDOW_BATCHES * self.batch_size

    def settings(self) -> dict[str, Any]:
        """Returns the settings as plain JSON values, for metadata."""
        return dataclasses.asdict(self)


def require_weights(path: Path, flag: str = "--weights") -> None:
    """Raises InputError unless the weights exist: a file, or a trained detector's folder."""
    require_local(flag, path)
    if path.is_dir() and saved_folder(path) is None:
        raise InputError(
            f"{flag} {path}: no detector in this folder; give the --output of `extract-rois train` "
            "after its first checkpoint, a folder of the hub with pytorch_model.bin or "
            "model.safetensors, or a file"
        )
    if not path.exists():
        raise InputError(
            f"{flag} {path}: no such file; give a .pth, .pkl, .bin, .safetensors or "
            ".caffemodel file, the --output of `extract-rois train`, or a name: "
            "hf://OWNER/NAME or https://... (`extract-rois weights` lists published weights)"
        )


def saved_folder(path: Path) -> Path | None:
    """Returns the folder of a trained detector that ``path`` names: itself, the last checkpoint of
    a run, or the folder of a file of weights; None for any other file or folder.
    """
    folder = path.parent if path.name == MODEL else path
    if (folder / DETECTOR).is_file():
        return folder
    steps = saved_steps(path)
    return steps[max(steps)] if steps else None


def saved_steps(output: Path) -> dict[int, Path]:
    """Returns the checkpoints of a run of ``extract-rois train`` by step."""
    return checkpoints_with(output, DETECTOR)


# The width of the vector before the classifier. ImageBERT (arXiv:2001.07966, sec. 5.3) takes
# "DenseNet, ResNet, GoogleNet" without their depths; these are the choice made here.
NETWORKS = {"densenet121": 1024, "resnet152": 2048, "googlenet": 1024}


def parse_network_names(text: str, files: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the networks of ``--global-cnn``.

    Raises InputError for an unknown or repeated name, if the numbers of files and networks differ,
    and for a missing file.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in NETWORKS:
            raise InputError(f"--global-cnn {name}: no such network; give {', '.join(NETWORKS)}")
    if len(set(names)) < len(names):
        raise InputError(f"--global-cnn {text}: a network is named twice; name each once")
    if files is not None and len(files) != len(names):
        raise InputError(
            f"--global-weights: {len(files)} files for {len(names)} networks; give one for each of "
            f"{','.join(names)}, in this order"
        )
    for name, file in zip(names, files or (), strict=False):
        if not Path(file).is_file():
            raise InputError(f"--global-weights {file}: no such file; give torchvision's {name}")
    return names
