"""Lists the variants, the models of their tasks and their sizes by name."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from vlmill.models.beit import row as beit
from vlmill.models.bert import row as bert
from vlmill.models.config_checks import nearest
from vlmill.models.imagebert import row as imagebert
from vlmill.models.interbert import row as interbert
from vlmill.models.rows import Paper, Variant
from vlmill.models.vilbert import row as vilbert
from vlmill.models.vlbert import row as vlbert
from vlmill.models.vlmo import row as vlmo

# A new model is a folder in ``models`` and a name here.
PAPERS: tuple[Paper, ...] = (
    *(beit.ROW, bert.ROW, imagebert.ROW, interbert.ROW, vilbert.ROW, vlbert.ROW, vlmo.ROW),
)

# All models that a checkpoint may hold, including the models of tasks.
MODELS: dict[str, Variant] = {
    variant.name: replace(variant, networks=paper.networks)
    for paper in PAPERS
    for variant in paper.variants
}
VARIANTS: dict[str, Variant] = {n: variant for n, variant in MODELS.items() if variant.pretrains}
PRESETS: dict[str, Callable[..., Any]] = {
    name: make for paper in PAPERS for name, make in paper.presets.items()
}
FAMILY_NAMES: tuple[str, ...] = tuple(sorted(n for paper in PAPERS for n in paper.families))
# The networks that new models start from, and those with a part for several experts.
STARTS: tuple[str, ...] = tuple(sorted(n for paper in PAPERS for n in paper.starts))
EXPERT_STARTS: tuple[str, ...] = tuple(n for paper in PAPERS for n in paper.expert_starts)


def get_variant(name: str | None) -> Variant:
    """Returns the row of a variant; for None and unknown names, a plain model's on regions."""
    return MODELS.get(name or "", Variant(name="", config=object))


def find_variant(model: object) -> str | None:
    """Returns the name of the model's class in `MODELS`; None for a class that is not in it."""
    for paper in PAPERS:
        if type(model).__module__.startswith(f"{paper.folder}."):
            models = paper.networks().models
            return next((name for name, kind in models.items() if kind is type(model)), None)
    return None


def preset(name: str, **changes: Any) -> Any:
    """Returns the named size with ``changes`` to its fields.

    Raises ValueError for an unknown name or field, with the nearest one, and for sizes that are
    incompatible.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; {nearest(name, PRESETS)}")
    known = [field.name for field in fields(PRESETS[name]())]
    for change in changes:
        if change not in known:
            raise ValueError(f"preset {name} has no field {change!r}; {nearest(change, known)}")
    return PRESETS[name](**changes)
