"""Declares the flags that determine the rows, for every command that extracts."""

import argparse
from pathlib import Path

from vlmill.extract import config
from vlmill.extract.config import NETWORKS
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.runtime.console.command import add_count

BACKENDS = ("vlmill", "detectron2")


def add_names(run: argparse.ArgumentParser) -> None:
    """Adds the files of names that tables carry."""
    names = run.add_argument_group("names")
    for what in ("classes", "attributes"):
        names.add_argument(
            f"--{what}",
            dest=f"names_of_{what}",
            metavar="FILE",
            help=f"names of all {what}, one per line without background (default: the "
            "detector's own; Visual Genome's for the published detectors of 1600 classes)",
        )


def add_engine(run: argparse.ArgumentParser) -> None:
    """Adds the flags that determine the rows, for every command that extracts."""
    add_detector(run.add_argument_group("detector"))
    add_global_cnn(run.add_argument_group("full images"))
    add_selection(run.add_argument_group("which regions"))
    add_sizes(run.add_argument_group("images"), config.InputLimits())
    add_storage(run.add_argument_group("storage"), config.Storage())


def add_detector(net: argparse._ArgumentGroup) -> None:
    """Adds the flags of the network: which one, with which weights, computed where and how."""
    net.add_argument(
        "--arch",
        choices=ARCHITECTURES,
        help="architecture and conventions (default: recognised from --weights, else r101)",
    )
    net.add_argument(
        "--weights",
        metavar="FILE",
        help="a published detector, whose keys identify its family (docs/detectors.md): a file "
        "(.pth, .pkl, .bin, .safetensors, .caffemodel), a folder downloaded from the hub, "
        "hf://OWNER/NAME[/FILE][@REVISION] or https://... (`extract-rois weights` lists them); or "
        "the --output of `train` (default: RANDOM weights)",
    )
    net.add_argument(
        "--grid",
        action="store_true",
        help="write the cells of the last feature map (C5) as regions, row by row, with "
        "the box of each cell; no proposals, classes or attributes",
    )
    net.add_argument(
        "--backend",
        choices=BACKENDS,
        default="vlmill",
        help="implementation of the detector; detectron2 must be installed "
        "(docs/install.md) and needs --config and --weights (default: %(default)s)",
    )
    net.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file of the weights, instead of --arch: a .yaml of Detectron2 "
        "(C4 or FPN, with _BASE_), airsplay, MILVLG, Hugging Face's port, VinVL, "
        "vqa-maskrcnn-benchmark or grid-feats-vqa (docs/detectors.md)",
    )
    add_count(net, "--seed", "seed of random weights", least=0, default=0)
    net.add_argument(
        "--device",
        default="cpu",
        help="device: cpu, cuda, cuda:1, ...; `run` also accepts a list: cuda:0,cuda:1 "
        "(default: %(default)s)",
    )
    net.add_argument(
        "--precision",
        choices=config.PRECISIONS,
        default="exact",
        help="exact: float32, the published numbers; fast: bfloat16 and TensorFloat-32, "
        "with slightly different numbers and regions (docs/regions.md), for CUDA; "
        "slow on CPUs without bfloat16 units (default: %(default)s)",
    )
    add_count(
        net,
        "--batch-size",
        "number of images of the same input shape in a forward pass; rows equal "
        f"the rows of single images within 1e-5 (default: {config.CUDA_BATCH_SIZE} on cuda, "
        "else 1, since a CPU gains nothing); memory: 8 N decoded images of up to 7 MB",
    )


def add_global_cnn(group: argparse._ArgumentGroup) -> None:
    """Adds the flags of networks whose full-image vectors are stored with the regions."""
    group.add_argument(
        "--global-cnn",
        metavar="NAMES",
        help=f"comma-separated list of {', '.join(NETWORKS)}; the vectors of each full "
        "image, concatenated in this order, become its global_feature (ImageBERT)",
    )
    group.add_argument(
        "--global-weights",
        nargs="+",
        metavar="FILE",
        help="torchvision state dicts for --global-cnn, one per network in the same order "
        "(default: RANDOM weights)",
    )


def add_selection(choice: argparse._ArgumentGroup) -> None:
    """Adds the flags that select regions from proposals."""
    rules = "; ".join(
        f"{name}: {s.min_boxes}-{s.max_boxes} from {s.threshold:g}"
        for name, s in config.SELECTIONS.items()
    )
    choice.add_argument(
        "--selection",
        choices=config.SELECTIONS,
        default="imagebert",
        help=f"rule of a paper for the number of boxes and the score threshold: {rules} "
        "(default: %(default)s)",
    )
    choice.add_argument(
        "--threshold", type=float, metavar="P", help="score threshold; overrides --selection"
    )
    add_count(
        choice, "--min-boxes", "smallest number of boxes per image; overrides --selection", least=0
    )
    add_count(
        choice, "--max-boxes", "largest number of boxes per image; overrides --selection", least=0
    )


def add_sizes(size: argparse._ArgumentGroup, limits: config.InputLimits) -> None:
    """Adds the flags for resizing images and for size limits."""
    add_count(
        size,
        "--short-side",
        "short side of the resized image in pixels (default: the detector's own, 600 or 800)",
        least=0,
        default=limits.short_side,
        metavar="PX",
    )
    add_count(
        size,
        "--long-side",
        "largest long side of the resized image in pixels (default: the detector's own, 1000 or "
        "1333)",
        least=0,
        default=limits.long_side,
        metavar="PX",
    )
    add_count(
        size,
        "--max-pixels",
        "reject images with more than N pixels",
        least=0,
        default=limits.max_pixels,
    )


def add_storage(out: argparse._ArgumentGroup, storage: config.Storage) -> None:
    """Adds the flags for the stored columns and their format."""
    out.add_argument(
        "--class-probs",
        default=storage.class_probs,
        metavar="|".join(config.CLASS_PROBS),
        help="class distributions to store: none; argmax: class id and score; topk:K: also "
        "the K highest probabilities and their class numbers; full: also all "
        "probabilities (default: %(default)s)",
    )
    out.add_argument(
        "--dtype",
        choices=config.DTYPES,
        default=storage.dtype,
        help="data type of stored features (default: %(default)s)",
    )
    out.add_argument(
        "--compression",
        choices=config.COMPRESSIONS,
        default=storage.compression,
        help="compression of the shards (default: %(default)s)",
    )
    add_count(
        out,
        "--images-per-shard",
        "number of images per shard; a killed run loses at most one unfinished shard",
        least=0,
        default=storage.images_per_shard,
    )
    out.add_argument(
        "--global-feature",
        action="store_true",
        help="also store the feature of the region that covers the full image",
    )
