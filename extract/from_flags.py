"""Creates settings and detectors from flags, and finds their files."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.extract import config
from vlmill.extract.config import parse_network_names
from vlmill.extract.detect.config_file import read_config_file
from vlmill.extract.weights import resolve_weights
from vlmill.models.detector.config import ARCHITECTURES, DEFAULT_ARCH
from vlmill.runtime.weights.names import is_named
from vlmill.schemas.errors import InputError

if TYPE_CHECKING:
    from vlmill.extract.detect.detector import Detector
    from vlmill.runtime.files.inputs import Input


def make_config(arguments: argparse.Namespace) -> config.ExtractConfig:
    """Returns the settings from the flags of ``run``."""
    changes = {
        name: getattr(arguments, name)
        for name in ("threshold", "min_boxes", "max_boxes")
        if getattr(arguments, name) is not None
    }
    if "max_boxes" in changes:  # a lower maximum also lowers the rule's minimum
        rule = config.SELECTIONS[arguments.selection]
        changes.setdefault("min_boxes", min(rule.min_boxes, changes["max_boxes"]))
    parse_global_names(arguments)
    grid = is_grid(arguments)
    try:
        selection: config.Selection = dataclasses.replace(
            config.SELECTIONS[arguments.selection], **changes
        )
        storage = config.Storage(
            class_probs="none" if grid else arguments.class_probs,
            dtype=arguments.dtype,
            compression=arguments.compression,
            images_per_shard=arguments.images_per_shard,
            global_feature=arguments.global_feature,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    return config.ExtractConfig(
        selection=selection,
        limits=make_limits(arguments),
        storage=storage,
        precision=arguments.precision,
        batch_size=choose_batch_size(arguments),
    )


def is_grid(arguments: argparse.Namespace) -> bool:
    """Returns whether the regions are the cells of a grid. Raises InputError for conflicting flags.

    A configuration file of grid features is recognised only later, when it is read with its
    network.
    """
    arch = ARCHITECTURES.get(arguments.arch)
    if not arguments.grid and (arch is None or arch.regions != "grid"):
        return False
    if arguments.backend == "detectron2":
        raise InputError("--grid: --backend detectron2 computes regions only; remove one of them")
    if arguments.global_feature:
        raise InputError("--global-feature: the cells of a grid cover the full image; remove it")
    if arguments.class_probs not in ("none", config.Storage().class_probs):
        raise InputError(f"--class-probs {arguments.class_probs}: a grid's cells have no classes")
    if getattr(arguments, "boxes", None) is not None:
        raise InputError("--boxes: the regions of --grid are its cells; remove one of them")
    return True


def make_limits(arguments: argparse.Namespace) -> config.InputLimits:
    """Returns the limits from the flags for image sizes."""
    try:
        return config.InputLimits(
            short_side=arguments.short_side,
            long_side=arguments.long_side,
            max_pixels=arguments.max_pixels,
        )
    except ValueError as error:
        raise InputError(str(error)) from None


def parse_global_names(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the networks of ``--global-cnn``; none without it. Raises InputError."""
    if arguments.global_cnn is None:
        if arguments.global_weights is not None:
            raise InputError("--global-weights: name the networks with --global-cnn")
        return ()
    if arguments.global_feature:
        raise InputError("--global-feature and --global-cnn: both are global_feature; give one")
    return parse_network_names(arguments.global_cnn, arguments.global_weights)


def choose_batch_size(arguments: argparse.Namespace) -> int:
    """Returns ``--batch-size``, or the best value for the device."""
    requested: int | None = arguments.batch_size
    if arguments.backend == "detectron2":
        if requested not in (None, 1):
            raise InputError(
                f"--batch-size {requested}: --backend detectron2 takes one image at a "
                "time; remove it"
            )
        return 1
    return requested or (config.CUDA_BATCH_SIZE if arguments.device.startswith("cuda") else 1)


def warn_of_random_weights(arguments: argparse.Namespace) -> None:
    """Prints a warning for a run without ``--weights``."""
    if arguments.weights is None and arguments.backend == "vlmill":
        name = arguments.config or arguments.arch or DEFAULT_ARCH
        print(
            f"WARNING: no --weights, so the detector ({name}) has RANDOM "
            f"weights from --seed {arguments.seed}.\n"
            "WARNING: its regions, classes and attributes are meaningless; the output records "
            "this.",
            file=sys.stderr,
        )
    if arguments.global_cnn is not None and arguments.global_weights is None:
        print(
            f"WARNING: no --global-weights, so {arguments.global_cnn} have RANDOM weights with "
            f"--seed {arguments.seed}.\n"
            "WARNING: global_feature is meaningless; the output records this.",
            file=sys.stderr,
        )


def check_detector(arguments: argparse.Namespace) -> None:
    """Refuses flags of the detector that contradict each other or name missing files.

    Loads no torch. Raises InputError.
    """
    if arguments.config is not None and arguments.arch is not None:
        raise InputError(
            f"--arch {arguments.arch}: --config already defines it; remove one of them"
        )
    resolve_detector(arguments)
    if arguments.backend == "detectron2":
        if arguments.config is None or arguments.weights is None:
            raise InputError("--backend detectron2: give --config FILE and --weights FILE")
        if arguments.precision != "exact":
            raise InputError(
                "--precision fast: --backend detectron2 supports only exact; remove it"
            )
    if arguments.weights is not None:
        config.require_weights(Path(arguments.weights))
    if arguments.config is not None:
        read_config_file(arguments.config)


def resolve_detector(arguments: argparse.Namespace) -> None:
    """Replaces a name or a folder of the hub in ``--weights`` by its local file, and uses its
    configuration as ``--config`` unless a flag gives one.

    Workers on other machines, which lack that file, fetch it by the name. Raises InputError.
    """
    if arguments.weights is None:
        return
    given = getattr(arguments, "given_weights", None)  # name and --config, before they became files
    if given is not None and not Path(arguments.weights).exists():
        arguments.weights, arguments.config = given
    if is_named(arguments.weights):
        arguments.given_weights = arguments.weights, arguments.config
    files = resolve_weights(
        arguments.weights, allow_addresses=getattr(arguments, "allow_address", ())
    )
    arguments.weights = str(files.weights)
    if files.config is not None and arguments.config is None and arguments.arch is None:
        arguments.config = files.config


def make_detector(arguments: argparse.Namespace) -> "Detector":
    """Returns the detector of the flags. Raises InputError."""
    check_detector(arguments)
    if arguments.backend == "detectron2":
        from vlmill.extract.detect.detectron2 import open_detectron2

        weights, device = Path(arguments.weights), arguments.device
        return attach_parts(open_detectron2(arguments.config, weights, device=device), arguments)

    from vlmill.extract.detect.detector import open_detector

    detector = open_detector(
        ARCHITECTURES.get(arguments.arch),
        arguments.weights,
        config_file=arguments.config,
        seed=arguments.seed,
        device=arguments.device,
        grid=is_grid(arguments),
    )
    return attach_parts(detector, arguments)


def attach_parts(detector: "Detector", arguments: argparse.Namespace) -> "Detector":
    """Returns the detector with the names of ``--classes`` and ``--attributes`` of ``run``, and the
    networks of ``--global-cnn`` on its device.
    """
    from vlmill.extract.detect.names import given_names

    names_found = given_names(
        detector.model.config,
        getattr(arguments, "names_of_classes", None),
        getattr(arguments, "names_of_attributes", None),
        detector.names,
    )
    detector = dataclasses.replace(detector, names=names_found)
    names = parse_global_names(arguments)
    if not names:
        return detector

    from vlmill.extract.image_level.networks import open_global_networks

    files, seed = arguments.global_weights, arguments.seed
    global_networks = open_global_networks(names, files, seed=seed, device=detector.device)
    return dataclasses.replace(detector, global_networks=global_networks)


def detector_inputs(arguments: argparse.Namespace) -> list["Input"]:
    """Records the files of the networks by their full content."""
    from vlmill.extract.detect.checkpoint import weights_files
    from vlmill.runtime.files.digests import file_input

    files = {"--weights": [arguments.weights], "--config": [arguments.config]}
    files["--global-weights"] = arguments.global_weights or []
    return [
        file_input(flag, file)
        for flag, paths in files.items()
        for path in paths
        if path is not None
        for file in weights_files(Path(path))
    ]


def detector_on(arguments: argparse.Namespace, device: str) -> "Detector":
    """Opens the same detector on one of several devices."""
    return make_detector(argparse.Namespace(**{**vars(arguments), "device": device}))
