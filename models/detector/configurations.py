"""Reads configurations of other projects, key by key, into ``DetectorConfig`` (``key_tables``).

A key that neither sets a field nor is known to change nothing at inference is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.models.detector.config import DetectorConfig, Family
from vlmill.models.detector.key_tables import (
    AIRSPLAY_KEYS,
    D2_ATTRIBUTES,
    DETECTRON2_KEYS,
    NAMES,
)
from vlmill.models.detector.keys import Value, WrongKey


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Holds a configuration of another project: whose it is, its keys and our fields."""

    family: Family
    values: Mapping[str, Value]
    config: DetectorConfig

    def blame(self, field: str, expected: str) -> WrongKey:
        """Makes the error of the key that set a field, which contradicts something else."""
        for name, key in NAMES[self.family].keys.items():
            if field in key.fields:
                return WrongKey(name, self.values.get(name, key.default), expected)
        raise AssertionError(f"no key of {self.family} sets {field}")


def flat(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Value]]:
    """Yields the keys of nested sections, by their dotted names; tuples become lists."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", as_lists(value)


def as_lists(value: Any) -> Value:
    """Returns a value with lists for tuples."""
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def recognise_family(names: Sequence[str]) -> Family:
    """Whose configuration has keys of these names. Raises ValueError for keys of nobody."""
    if any(name.lower().startswith(("resnets.", "roi_box_head.")) for name in names):
        return "hf-frcnn"
    if any(name.startswith(D2_ATTRIBUTES) for name in names):
        return "milvlg-d2"
    if any(name.startswith("MODEL.BUA.") for name in names):
        return "milvlg"
    if set(names) & (AIRSPLAY_KEYS.keys() - DETECTRON2_KEYS.keys()):
        return "airsplay"
    if any(name.startswith("MODEL.") for name in names):
        return "detectron2"
    raise ValueError("no section MODEL, and none of resnets")


def read_configuration(values: Mapping[str, Value]) -> Configuration:
    """Reads a configuration by its dotted keys; what it leaves out has its library's default.

    Raises ValueError for a configuration of nobody's, and WrongKey for a key that is unknown, holds
    what cannot be honoured, or contradicts another.
    """
    family = recognise_family(list(values))
    if family == "hf-frcnn":  # which reads its names in either case
        for name in values:
            if name != name.lower() and name.lower() in values:
                raise WrongKey(name, values[name], "the key once, in one case")
        values = {name.lower(): value for name, value in values.items()}
    names = NAMES[family]
    # Another architecture is told by its name, before keys that only it has.
    for name, key in names.keys.items():
        if not key.fields:
            key.values(name, values.get(name, key.default))
    for name, value in values.items():
        if name not in names.keys and not names.ignores(name):
            raise WrongKey(name, value, f"a key that a C4 model of {family} has")
    return Configuration(family=family, values=values, config=make_config(family, values))


def make_config(family: Family, values: Mapping[str, Value]) -> DetectorConfig:
    """Returns the fields that the keys of a family set; keys that set none are not looked at."""
    fields: dict[str, Any] = {}
    for name, key in NAMES[family].keys.items():
        if key.fields:
            fields |= key.values(name, values.get(name, key.default))
    if fields["rpn_channels"] is None:
        fields["rpn_channels"] = 4 * fields["res2_channels"]
    draft = Configuration(family=family, values=values, config=NAMES[family].conventions())
    if fields.pop("attributes_on", True):
        if fields.get("num_attributes", 1) < 1:
            raise draft.blame("num_attributes", "their number, where there are attributes")
    else:
        fields["num_attributes"] = 0
    if family in ("airsplay", "hf-frcnn"):
        # Layers of these widths whatever the number of attributes.
        fields["class_embedding_size"] = fields["res2_channels"]
        fields["attribute_hidden_size"] = 2 * fields["res2_channels"]
        if fields["res5_stride"] == 1 and not fields["stride_in_1x1"]:
            # The fork takes the stride out of the first 1x1 and out of the shortcut alone.
            raise draft.blame("stride_in_1x1", "true, where res5 is not halved")
    return NAMES[family].conventions(**fields)
