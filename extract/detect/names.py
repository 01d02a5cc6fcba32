"""Finds the names of a detector's classes and attributes: its own, a file's, or Visual Genome's.

``vocabularies/`` has the 1,600 classes and 400 attributes of the bottom-up-attention detectors;
its NOTICE.txt states their source and licence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vlmill.models.detector.config import DetectorConfig
from vlmill.runtime.readers.class_names import NAMES, first_names
from vlmill.schemas.errors import InputError

VOCABULARIES = Path(__file__).parent / "vocabularies"
VISUAL_GENOME = "Visual Genome, as peteanderson80/bottom-up-attention numbers it"
# Trained on these classes in this order; vqa-maskrcnn's 1,600 and VinVL's 1,594 have another order.
TRAINED_ON_IT = ("milvlg", "milvlg-d2", "airsplay", "hf-frcnn", "caffe")


@dataclass(frozen=True, kw_only=True)
class DetectorNames:
    """Holds the names of all classes and attributes in the order of their numbers, and their
    source; empty if they are unknown.
    """

    classes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    source: str = ""

    def record(self) -> dict[str, Any]:
        """Returns the entry of the tables' metadata; empty without names."""
        if not self.classes and not self.attributes:
            return {}
        names = {"classes": list(self.classes), "attributes": list(self.attributes)}
        return {NAMES: {**names, "source": self.source}}


NO_NAMES = DetectorNames()


def known_names(config: DetectorConfig) -> DetectorNames:
    """Returns the names of a published detector that was trained on Visual Genome's 1,600 classes;
    none for other detectors.
    """
    if config.family not in TRAINED_ON_IT or config.num_classes != 1600:
        return NO_NAMES
    objects, attributes = _visual_genome()
    return DetectorNames(
        classes=objects,
        attributes=attributes if config.num_attributes == len(attributes) else (),
        source=VISUAL_GENOME,
    )


def given_names(
    config: DetectorConfig, classes: str | None, attributes: str | None, known: DetectorNames
) -> DetectorNames:
    """Returns the names of the user's files, which replace the ``known`` ones.

    Raises InputError for a file that cannot be read, or has another number of names than the
    detector has classes or attributes.
    """
    names = {
        what: tuple(first_names(path, f"--{what}"))
        for what, path in (("classes", classes), ("attributes", attributes))
    }
    numbers = {"classes": config.num_classes, "attributes": config.num_attributes}
    for what, listed in names.items():
        if listed and len(listed) != numbers[what]:
            raise InputError(
                f"--{what} has {len(listed)} names, the detector {numbers[what]} {what}; give its "
                "own list, one per line, without background"
            )
    if not any(names.values()):
        return known
    sources = [Path(path).name for path in (classes, attributes) if path is not None]
    return DetectorNames(
        classes=names["classes"] or known.classes,
        attributes=names["attributes"] or known.attributes,
        source=", ".join(sources),
    )


@cache
def _visual_genome() -> tuple[tuple[str, ...], tuple[str, ...]]:
    files = ("visual_genome_objects.txt", "visual_genome_attributes.txt")
    objects, attributes = (tuple(first_names(str(VOCABULARIES / name), name)) for name in files)
    return objects, attributes


def own_names(classes: Sequence[str], attributes: Sequence[str]) -> DetectorNames:
    """Returns the names that a detector's own file holds."""
    if not classes and not attributes:
        return NO_NAMES
    return DetectorNames(
        classes=tuple(classes), attributes=tuple(attributes), source="the detector's own file"
    )
