"""The flags that decide the rows, for every command that extracts."""

import argparse
from pathlib import Path

from vlmill.extract.config import (
    CLASS_PROBS,
    COMPRESSIONS,
    CUDA_BATCH_SIZE,
    DTYPES,
    PRECISIONS,
    SELECTIONS,
    InputLimits,
    Storage,
)
from vlmill.extract.image_level.settings import NETWORKS
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.runtime.console.command import int_at_least

BACKENDS = ("vlmill", "detectron2")


def add_names(run: argparse.ArgumentParser) -> None:
    """Adds the files of names that tables carry."""
    names = run.add_argument_group("names")
    for what in ("classes", "attributes"):
        names.add_argument(
            f"--{what}",
            dest=f"names_of_{what}",
            metavar="FILE",
            help=f"names of all {what} for the tables, one a line without background (default: the "
            "detector's own; Visual Genome's for the published detectors of 1600 classes)",
        )


def add_engine(run: argparse.ArgumentParser) -> None:
    """What decides the rows, for every command that extracts."""
    add_detector(run.add_argument_group("detector"))
    add_global_cnn(run.add_argument_group("full images"))
    add_selection(run.add_argument_group("which regions"))
    add_sizes(run.add_argument_group("images"), InputLimits())
    add_storage(run.add_argument_group("storage"), Storage())


def add_detector(net: argparse._ArgumentGroup) -> None:
    """Adds the flags of the network: which one, with which weights, computed where and how."""
    net.add_argument(
        "--arch",
        choices=ARCHITECTURES,
        help="sizes and conventions (default: what --weights says, else r101)",
    )
    net.add_argument(
        "--weights",
        metavar="FILE",
        help="a published detector, whose keys identify its family (docs/detectors.md): a file "
        "(.pth, .pkl, .bin, .safetensors, .caffemodel), a folder of the hub, "
        "hf://OWNER/NAME[/FILE][@REVISION] or https://... (`extract-rois weights` lists them); or "
        "the --output of `train` (default: RANDOM weights)",
    )
    net.add_argument(
        "--grid",
        action="store_true",
        help="write the cells of the last feature map (C5) as regions, row by row, each with the "
        "pixels that it covers; no proposals, classes or attributes",
    )
    net.add_argument(
        "--backend",
        choices=BACKENDS,
        default="vlmill",
        help="detectron2: Detectron2 itself computes, where it is installed (docs/install.md); it "
        "needs --config and --weights (default: %(default)s)",
    )
    net.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="sizes and conventions of the weights: the .yaml file of a detector of Detectron2 (C4 "
        "or FPN, with _BASE_), airsplay, MILVLG, Hugging Face's port, VinVL, "
        "vqa-maskrcnn-benchmark or grid-feats-vqa; in place of --arch (docs/detectors.md)",
    )
    net.add_argument(
        "--seed", type=int_at_least(0), default=0, help="of random weights (default: %(default)s)"
    )
    net.add_argument(
        "--device",
        default="cpu",
        help="cpu, cuda, cuda:1, ...; of run also several: cuda:0,cuda:1 (default: %(default)s)",
    )
    net.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="exact",
        help="exact: float32, the published numbers; fast: bfloat16 and TensorFloat-32, other "
        "numbers and some other regions (docs/regions.md), meant for CUDA: slow on CPUs without "
        "bfloat16 units (default: %(default)s)",
    )
    net.add_argument(
        "--batch-size",
        type=int_at_least(1),
        metavar="N",
        help="images of one input shape that go through the network together; none is padded, "
        f"rows are those of each alone up to 1e-5 (default: {CUDA_BATCH_SIZE} on cuda, else 1: it "
        "does not pay on a CPU); memory: 8 N decoded images of up to 7 MB",
    )


def add_global_cnn(group: argparse._ArgumentGroup) -> None:
    """Networks whose vectors of the full image are stored beside the regions."""
    group.add_argument(
        "--global-cnn",
        metavar="NAMES",
        help=f"of {', '.join(NETWORKS)}, divided by commas: their vectors of each image, side by "
        "side in this order, become its global_feature (ImageBERT)",
    )
    group.add_argument(
        "--global-weights",
        nargs="+",
        metavar="FILE",
        help="torchvision's state dicts, one for each of these in their order; without them the "
        "weights are RANDOM",
    )


def add_selection(choice: argparse._ArgumentGroup) -> None:
    """Adds the flags that say which proposals become regions."""
    rules = "; ".join(
        f"{name}: {s.min_boxes}-{s.max_boxes} from {s.threshold:g}"
        for name, s in SELECTIONS.items()
    )
    choice.add_argument(
        "--selection",
        choices=SELECTIONS,
        default="imagebert",
        help=f"the papers' rules, boxes and threshold: {rules} (default: %(default)s)",
    )
    choice.add_argument(
        "--threshold", type=float, metavar="P", help="replaces the rule's threshold"
    )
    choice.add_argument(
        "--min-boxes", type=int_at_least(0), metavar="N", help="replaces the rule's minimum"
    )
    choice.add_argument(
        "--max-boxes", type=int_at_least(0), metavar="N", help="replaces the rule's maximum"
    )


def add_sizes(size: argparse._ArgumentGroup, limits: InputLimits) -> None:
    """How images are resized, and which are refused."""
    size.add_argument(
        "--short-side",
        type=int_at_least(0),
        default=limits.short_side,
        metavar="PX",
        help="default: the detector's own, 600 or 800",
    )
    size.add_argument(
        "--long-side",
        type=int_at_least(0),
        default=limits.long_side,
        metavar="PX",
        help="at most; default: the detector's own, 1000 or 1333",
    )
    size.add_argument(
        "--max-pixels",
        type=int_at_least(0),
        default=limits.max_pixels,
        metavar="N",
        help="larger images are rejected (default: %(default)s)",
    )


def add_storage(out: argparse._ArgumentGroup, storage: Storage) -> None:
    """What of a region is written, and how."""
    out.add_argument(
        "--class-probs",
        default=storage.class_probs,
        metavar="|".join(CLASS_PROBS),
        help="argmax: id and score; topk:K: the K highest probabilities too, with their numbers; "
        "full: all of them too (default: %(default)s)",
    )
    out.add_argument(
        "--dtype", choices=DTYPES, default=storage.dtype, help="of features (default: %(default)s)"
    )
    out.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default=storage.compression,
        help="default: %(default)s",
    )
    out.add_argument(
        "--images-per-shard",
        type=int_at_least(0),
        default=storage.images_per_shard,
        metavar="N",
        help="what a kill costs at most (default: %(default)s)",
    )
    out.add_argument(
        "--global-feature",
        action="store_true",
        help="also the feature of the region that is the full image",
    )
