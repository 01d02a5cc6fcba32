"""Networks: the transformer core, the variants on it, and the detector."""

from collections.abc import Callable
from typing import Any, NamedTuple

from vlmill.models.bert import Bert, BertConfig, bert_base, bert_large, bert_small
from vlmill.models.imagebert import ImageBert, ImageBertConfig, imagebert_base, imagebert_small
from vlmill.models.inputs import VLInputs


class Variant(NamedTuple):
    """A model's class and the class of its configuration: ``variant.model(variant.config())``."""

    config: type[Any]
    model: type[Any]


VARIANTS: dict[str, Variant] = {
    "bert": Variant(config=BertConfig, model=Bert),
    "imagebert": Variant(config=ImageBertConfig, model=ImageBert),
}

PRESETS: dict[str, Callable[..., Any]] = {
    "bert-base": bert_base,
    "bert-large": bert_large,
    "bert-small": bert_small,
    "imagebert-base": imagebert_base,
    "imagebert-small": imagebert_small,
}


def preset(name: str, **changes: Any) -> Any:
    """The named size with ``changes`` to its fields. Raises ValueError for an unknown name."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name](**changes)


__all__ = [
    "PRESETS",
    "VARIANTS",
    "Bert",
    "BertConfig",
    "ImageBert",
    "ImageBertConfig",
    "VLInputs",
    "Variant",
    "preset",
]
