"""Describes a detector in words: how to extract regions so that they fit a checkpoint."""

from collections.abc import Mapping
from typing import Any


def detector_words(record: Mapping[str, Any] | None) -> str:
    """Returns a detector's network, weights, selection, sizes and classes in words; may be "".

    ``record`` is the producer record of `extract-rois run`; records of other programs may lack any
    of it.
    """
    if not record:
        return ""
    selection, limits = _part(record, "selection"), _part(record, "limits")
    storage, network = _part(record, "storage"), _part(record, "detector")
    parts = [
        _text("{}", record.get("weights")),
        _text("SHA-256 {}", record.get("weights_sha256")),
        _text("ResNet-{}", network.get("depth")),
        _text("{} classes", network.get("num_classes")),
        _text("{}", _boxes(selection)),
        _text("short side {}", limits.get("short_side") or network.get("short_side")),
        _text("long side {}", limits.get("long_side") or network.get("long_side")),
        _text("--class-probs {}", storage.get("class_probs")),
    ]
    return ", ".join(part for part in parts if part)


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


def _text(form: str, value: Any) -> str:
    return form.format(value) if value is not None else ""


def _boxes(selection: Mapping[str, Any]) -> str | None:
    if not {"threshold", "min_boxes", "max_boxes"} <= selection.keys():
        return None
    return "{min_boxes} to {max_boxes} boxes from {threshold}".format(**selection)
