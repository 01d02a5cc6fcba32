"""Finds the detector of a checkpoint's regions from the recorded metadata of these regions."""

import atexit
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from vlmill.extract.config import (
    SELECTIONS,
    ExtractConfig,
    InputLimits,
    Selection,
    Storage,
    saved_folder,
)
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.images.plan import HeldImage
from vlmill.extract.run.devices import Engine, WorkerSettings, split_windows, start_engine
from vlmill.extract.run.job import Job
from vlmill.inference.load.faults import warn
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.registry import get_variant
from vlmill.runtime.console.lineage import OK, Node, lineage
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.readers.regions import HeldRegions, RegionRow
from vlmill.runtime.settings.plain_fields import from_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.train.checkpoints.files import LoadedCheckpoint, require_detector

RANDOM = re.compile(r"random weights, seed (\d+)")
SETTINGS = ("detector", "selection", "limits", "storage")  # of the regions' producer
PARTS: dict[str, type[Any]] = {"selection": Selection, "limits": InputLimits, "storage": Storage}


_OPEN = ExitStack()  # resources that stay open until the process ends
atexit.register(_OPEN.close)


@dataclass(frozen=True, kw_only=True)
class RegionDetector:
    """Holds the detector, and all other settings that determine the rows of regions."""

    detector: Detector
    config: ExtractConfig
    workers: int = 0  # decoding processes; 0: this process decodes

    @cached_property
    def engine(self) -> Engine:
        """Opens the extractor until the process ends."""
        settings = WorkerSettings(workers=self.workers)
        return _OPEN.enter_context(start_engine(settings, self.detector, self.config, None))

    def find_regions(self, contents: Mapping[str, bytes]) -> tuple[HeldRegions, dict[str, Reason]]:
        """Returns the regions of encoded images as ``extract-rois run`` stores them, and the reject
        reasons of images without a row, by image_id.
        """
        images = [HeldImage(path=name, image_id=name, data=contents[name]) for name in contents]
        rows, faults = list[RegionRow](), dict[str, Reason]()
        for result in chain.from_iterable(self.engine(split_windows(images, self.config.window))):
            if isinstance(result.result, Rejected):
                faults[str(result.image.image_id)] = result.result.reason
            else:
                rows.append(result.result)
        job = Job(plan=(), output=Path(), detector=self.detector, config=self.config)
        return HeldRegions(rows, job.arrays()), faults


def open_recorded_detector(
    loaded: LoadedCheckpoint, weights: Path | None, device: str, *, workers: int = 0
) -> RegionDetector:
    """Opens the detector that a checkpoint names: ``weights`` is its file, if it had one.

    Random weights are drawn again from their seed. Raises InputError for a checkpoint without
    sufficient settings, and for weights of another detector.
    """
    record = loaded.detector or {}
    description = str(record.get("weights") or "")
    seed = RANDOM.fullmatch(description)
    who = f"checkpoint {loaded.path}"
    if weights is None and seed is None:
        name = f" ({description})" if description else ""
        raise InputError(f"{who} reads regions; give its detector's file{name}: detector=FILE")
    for name, what in (("global_cnn", "features of full images"), ("given", "given boxes")):
        if name in record:
            raise InputError(
                f"{who} was trained on {what}, which raw images do not have; extract "
                "regions with `extract-rois run`, and use `train-vl`"
            )
    if seed is not None:
        warn(f"the detector of {who} has random weights: its regions are meaningless")
    config = _extraction(loaded, record)
    detector = open_detector_network(loaded, weights, device)
    if loaded.detector_fingerprint is None:
        warn(
            f"{who} does not record the detector that it was trained with; it is not checked that "
            f"this is "
            f"{detector.weights}"
        )
    return RegionDetector(detector=detector, config=config, workers=workers)


def open_detector_network(
    loaded: LoadedCheckpoint, weights: Path | None, device: str, *, folded: bool = True
) -> Detector:
    """Opens the network of a checkpoint's detector: from a file, or drawn again from its seed.

    ``folded`` as in :func:`vlmill.extract.detect.detector.open_detector`. Raises InputError for a
    detector other than the checkpoint's.
    """
    record = loaded.detector or {}
    network, seed = record.get("detector"), RANDOM.fullmatch(str(record.get("weights") or ""))
    # A detector trained with vlmill records its own configuration.
    says = weights is not None and saved_folder(weights) is not None
    detector = open_detector(
        None if network is None or says else from_plain(DetectorConfig, network, "detector"),
        weights,
        seed=0 if seed is None else int(seed[1]),
        device=device,
        folded=folded,
    )
    require_detector(detector.fingerprint, loaded, "checkpoint")
    return detector


def recorded_weights(loaded: LoadedCheckpoint) -> Path | None:
    """Returns the recorded weights file of a checkpoint's regions; None for random weights.

    Raises InputError if nothing is recorded, or the file no longer exists.
    """
    description = str((loaded.detector or {}).get("weights") or "")
    if RANDOM.fullmatch(description):
        return None
    nodes = [node for node in _nodes(lineage(loaded.path)) if node.entry.flag == "--weights"]
    there = [node for node in nodes if node.state == OK]
    if not there:
        name = f" ({description})" if description else ""
        raise InputError(
            f"--with-detector: where the detector of {loaded.path}{name} is stored is not "
            f"recorded, or "
            "the file no longer exists; give --with-detector FILE"
        )
    return to_path(there[0].path)


def _nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _nodes(node.inputs)


def _extraction(loaded: LoadedCheckpoint, record: Mapping[str, Any]) -> ExtractConfig:
    """Returns how the regions were extracted; for a converted checkpoint, the settings of its
    paper.
    """
    missing = [name for name in SETTINGS if name not in record]
    if not missing:
        parts = {name: from_plain(kind, record[name], name) for name, kind in PARTS.items()}
        precision = record.get("precision", "exact")
        batch_size = int(record.get("batch_size", 1))
        return ExtractConfig(**parts, precision=precision, batch_size=batch_size)
    preset = find_preset(loaded.variant)
    converted = not loaded.training.stage and loaded.training.step == 0
    if not converted or preset is None:
        raise InputError(
            f"checkpoint {loaded.path} does not record how its regions were extracted (it lacks "
            f"{', '.join(missing)}); train on regions of `extract-rois run`"
        )
    warn(
        f"checkpoint {loaded.path} was converted and lacks {', '.join(missing)}: regions are "
        f"selected as in {preset}'s paper, at the detector's own size"
    )
    # The distribution determines the order of VL-BERT's regions, and is as large as the features.
    storage = Storage(class_probs=get_variant(preset).class_probs, dtype="float32")
    return ExtractConfig(selection=SELECTIONS[preset], storage=storage)


def find_preset(variant: str) -> str | None:
    """Returns the name of the selection of a variant's paper; None for a variant without one."""
    return next((name for name in SELECTIONS if variant.startswith(name)), None)
