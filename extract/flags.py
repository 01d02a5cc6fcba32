"""The flags that decide the rows, for every command that extracts, and what they say."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.extract.config import (
    CLASS_PROBS,
    COMPRESSIONS,
    CUDA_BATCH_SIZE,
    DTYPES,
    PRECISIONS,
    SELECTIONS,
    ExtractConfig,
    InputLimits,
    Selection,
    Storage,
    require_weights,
    weights_file,
)
from vlmill.extract.detect.config_file import read_config_file
from vlmill.extract.whole.settings import NETWORKS, networks_named
from vlmill.models.detector.config import ARCHITECTURES, DEFAULT_ARCH
from vlmill.schemas.errors import InputError

if TYPE_CHECKING:
    from vlmill.extract.detect.detector import Detector
    from vlmill.schemas.files.inputs import Input

BACKENDS = ("vlmill", "detectron2")


def count(text: str) -> int:
    """An argument that is a whole number from 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def add_engine(run: argparse.ArgumentParser) -> None:
    """What decides the rows, for every command that extracts."""
    add_detector(run.add_argument_group("detector"))
    add_whole(run.add_argument_group("whole pictures"))
    add_selection(run.add_argument_group("which regions"))
    add_sizes(run.add_argument_group("pictures"), InputLimits())
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
        help="published detector: .pth, .pkl, .bin or .safetensors in the layout of detectron2, "
        "airsplay, milvlg or hf-frcnn, or the --output of `train`; without it the weights are "
        "RANDOM",
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
        help="what sizes and conventions the weights have: the .yaml file of a C4 model of "
        "Detectron2 (with _BASE_), airsplay, MILVLG or Hugging Face's port; in place of --arch "
        "(docs/detectors.md)",
    )
    net.add_argument(
        "--seed", type=count, default=0, help="of random weights (default: %(default)s)"
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
        type=count,
        metavar="N",
        help="pictures of one input shape that go through the network together; none is padded, "
        f"rows are those of each alone up to 1e-5 (default: {CUDA_BATCH_SIZE} on cuda, else 1: it "
        "does not pay on a CPU); memory: 8 N decoded pictures of up to 7 MB",
    )


def add_whole(whole: argparse._ArgumentGroup) -> None:
    """Networks whose vectors of the whole picture are stored beside the regions."""
    whole.add_argument(
        "--global-cnn",
        metavar="NAMES",
        help=f"of {', '.join(NETWORKS)}, divided by commas: their vectors of each picture, side by "
        "side in this order, become its global_feature (ImageBERT)",
    )
    whole.add_argument(
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
    choice.add_argument("--min-boxes", type=count, metavar="N", help="replaces the rule's minimum")
    choice.add_argument("--max-boxes", type=count, metavar="N", help="replaces the rule's maximum")


def add_sizes(size: argparse._ArgumentGroup, limits: InputLimits) -> None:
    """How pictures are resized, and which are refused."""
    size.add_argument(
        "--short-side",
        type=count,
        default=limits.short_side,
        metavar="PX",
        help="default: the detector's own, 600 or 800",
    )
    size.add_argument(
        "--long-side",
        type=count,
        default=limits.long_side,
        metavar="PX",
        help="at most; default: the detector's own, 1000 or 1333",
    )
    size.add_argument(
        "--max-pixels",
        type=count,
        default=limits.max_pixels,
        metavar="N",
        help="larger pictures are rejected (default: %(default)s)",
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
        "--pictures-per-shard",
        type=count,
        default=storage.pictures_per_shard,
        metavar="N",
        help="what a kill costs at most (default: %(default)s)",
    )
    out.add_argument(
        "--global-feature",
        action="store_true",
        help="also the feature of the region that is the whole picture",
    )


def config_of(arguments: argparse.Namespace) -> ExtractConfig:
    """Makes settings of the flags of ``run``."""
    changes = {
        name: getattr(arguments, name)
        for name in ("threshold", "min_boxes", "max_boxes")
        if getattr(arguments, name) is not None
    }
    if "max_boxes" in changes:  # a lower maximum alone lowers the rule's minimum with it
        rule = SELECTIONS[arguments.selection]
        changes.setdefault("min_boxes", min(rule.min_boxes, changes["max_boxes"]))
    whole_names(arguments)
    try:
        selection: Selection = dataclasses.replace(SELECTIONS[arguments.selection], **changes)
        storage = Storage(
            class_probs=arguments.class_probs,
            dtype=arguments.dtype,
            compression=arguments.compression,
            pictures_per_shard=arguments.pictures_per_shard,
            global_feature=arguments.global_feature,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    return ExtractConfig(
        selection=selection,
        limits=limits_of(arguments),
        storage=storage,
        precision=arguments.precision,
        batch_size=batch_size_of(arguments),
    )


def limits_of(arguments: argparse.Namespace) -> InputLimits:
    """Makes limits of the flags on sizes of pictures."""
    try:
        return InputLimits(
            short_side=arguments.short_side,
            long_side=arguments.long_side,
            max_pixels=arguments.max_pixels,
        )
    except ValueError as error:
        raise InputError(str(error)) from None


def whole_names(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The networks of ``--global-cnn``; none without. Raises InputError."""
    if arguments.global_cnn is None:
        if arguments.global_weights is not None:
            raise InputError("--global-weights: say of which networks, with --global-cnn")
        return ()
    if arguments.global_feature:
        raise InputError("--global-feature and --global-cnn: both are global_feature; give one")
    return networks_named(arguments.global_cnn, arguments.global_weights)


def batch_size_of(arguments: argparse.Namespace) -> int:
    """What ``--batch-size`` says, else what pays on the device."""
    given: int | None = arguments.batch_size
    if given == 0:
        raise InputError("--batch-size 0: at least 1")
    if arguments.backend == "detectron2":
        if given not in (None, 1):
            raise InputError(
                f"--batch-size {given}: --backend detectron2 takes one picture at a time; leave it "
                "out"
            )
        return 1
    return given or (CUDA_BATCH_SIZE if arguments.device.startswith("cuda") else 1)


def warn_of_random_weights(arguments: argparse.Namespace) -> None:
    """Says loudly what a run without ``--weights`` is worth."""
    if arguments.weights is None and arguments.backend == "vlmill":
        name = arguments.config or arguments.arch or DEFAULT_ARCH
        print(
            f"WARNING: no --weights, so the detector ({name}) has RANDOM "
            f"weights from --seed {arguments.seed}.\n"
            "WARNING: its regions, classes and attributes mean nothing; the output says so.",
            file=sys.stderr,
        )
    if arguments.global_cnn is not None and arguments.global_weights is None:
        print(
            f"WARNING: no --global-weights, so {arguments.global_cnn} have RANDOM weights from "
            f"--seed {arguments.seed}.\n"
            "WARNING: global_feature means nothing; the output says so.",
            file=sys.stderr,
        )


def check_detector(arguments: argparse.Namespace) -> None:
    """Refuses flags of the detector that contradict each other, or name files that are not there.

    Loads no torch. Raises InputError.
    """
    if arguments.config is not None and arguments.arch is not None:
        raise InputError(f"--arch {arguments.arch}: --config says it already; leave one out")
    if arguments.backend == "detectron2":
        if arguments.config is None or arguments.weights is None:
            raise InputError("--backend detectron2: give --config FILE and --weights FILE")
        if arguments.precision != "exact":
            raise InputError(
                "--precision fast: --backend detectron2 computes exact only; leave it out"
            )
    if arguments.weights is not None:
        require_weights(Path(arguments.weights))
    if arguments.config is not None:
        read_config_file(arguments.config)


def detectron2_of(arguments: argparse.Namespace) -> "Detector":
    """The same for ``--backend detectron2``, which takes everything from two files."""
    from vlmill.extract.detect.detectron2 import open_detectron2

    return open_detectron2(arguments.config, Path(arguments.weights), device=arguments.device)


def detector_of(arguments: argparse.Namespace) -> "Detector":
    """The detector that the flags say. Raises InputError."""
    check_detector(arguments)
    if arguments.backend == "detectron2":
        return with_whole(detectron2_of(arguments), arguments)

    from vlmill.extract.detect.detector import open_detector

    detector = open_detector(
        ARCHITECTURES.get(arguments.arch),
        arguments.weights,
        config_file=arguments.config,
        seed=arguments.seed,
        device=arguments.device,
    )
    return with_whole(detector, arguments)


def with_whole(detector: "Detector", arguments: argparse.Namespace) -> "Detector":
    """Returns the detector with the networks of ``--global-cnn`` on its device."""
    names = whole_names(arguments)
    if not names:
        return detector

    from vlmill.extract.whole.networks import open_whole

    files, seed = arguments.global_weights, arguments.seed
    whole = open_whole(names, files, seed=seed, device=detector.device)
    return dataclasses.replace(detector, whole=whole)


def detector_inputs(arguments: argparse.Namespace) -> list["Input"]:
    """Records the files that the networks are made of, by their whole content."""
    from vlmill.schemas.files.digests import file_input

    files = {"--weights": [arguments.weights], "--config": [arguments.config]}
    files["--global-weights"] = arguments.global_weights or []
    return [
        file_input(flag, weights_file(Path(path)))
        for flag, paths in files.items()
        for path in paths
        if path is not None
    ]


def detector_on(arguments: argparse.Namespace, device: str) -> "Detector":
    """Opens the same detector on one of several devices."""
    return detector_of(argparse.Namespace(**{**vars(arguments), "device": device}))
