"""The registry lists the variants, the models of their tasks and their sizes by name."""

import dataclasses
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from vlmill.models.beit.config import (
    BeitConfig,
    beit_base,
    beit_base_paper,
    beit_base_plus,
    beit_large,
    beit_large_paper,
)
from vlmill.models.bert.config import (
    BertConfig,
    BertTextConfig,
    bert_base,
    bert_large,
    bert_small,
)
from vlmill.models.config_checks import nearest
from vlmill.models.imagebert.config import (
    ImageBertConfig,
    ImageBertRetrievalConfig,
    imagebert_base,
    imagebert_small,
)
from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertImagesConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
    interbert_chinese,
    interbert_paper,
    interbert_released,
    interbert_single_stream,
    interbert_small,
)
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
    single_stream_base,
    vilbert_12in1,
    vilbert_base,
    vilbert_large,
    vilbert_released,
    vilbert_small,
)
from vlmill.models.vlbert.config import (
    VlBertConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
    vlbert_base,
    vlbert_base_end_to_end,
    vlbert_large,
    vlbert_large_end_to_end,
    vlbert_paper,
    vlbert_paper_end_to_end,
    vlbert_small,
)
from vlmill.models.vlmo.config import (
    VlmoConfig,
    VlmoNlvr2Config,
    VlmoTextConfig,
    VlmoVqaConfig,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)


class Variant(NamedTuple):
    """A model's class and the class of its configuration: ``variant.model(variant.config())``."""

    config: type[Any]
    home: str  # of the model's class, by name: who asks for sizes alone does not wait for torch

    @property
    def model(self) -> type[Any]:
        """The model's class, whose module is loaded when it is first asked for."""
        module, _, name = self.home.rpartition(".")
        model: type[Any] = getattr(import_module(module), name)
        return model


VARIANTS: dict[str, Variant] = {
    "beit": Variant(config=BeitConfig, home="vlmill.models.beit.model.Beit"),
    "bert": Variant(config=BertConfig, home="vlmill.models.bert.model.Bert"),
    "imagebert": Variant(config=ImageBertConfig, home="vlmill.models.imagebert.model.ImageBert"),
    "interbert": Variant(config=InterBertConfig, home="vlmill.models.interbert.model.InterBert"),
    "vilbert": Variant(config=VilbertConfig, home="vlmill.models.vilbert.model.Vilbert"),
    "vilbert-single-stream": Variant(
        config=SingleStreamConfig, home="vlmill.models.vilbert.single_stream.SingleStream"
    ),
    "vl-bert": Variant(config=VlBertConfig, home="vlmill.models.vlbert.model.VlBert"),
    "vl-bert-end-to-end": Variant(
        config=VlBertEndToEndConfig, home="vlmill.models.vlbert.end_to_end.VlBertEndToEnd"
    ),
    "vlmo": Variant(config=VlmoConfig, home="vlmill.models.vlmo.model.Vlmo"),
}

# With the tasks' models, which have a trunk and other heads: whatever a checkpoint may hold.
MODELS: dict[str, Variant] = VARIANTS | {
    "bert-text": Variant(config=BertTextConfig, home="vlmill.models.bert.tasks.BertText"),
    "imagebert-retrieval": Variant(
        config=ImageBertRetrievalConfig, home="vlmill.models.imagebert.tasks.ImageBertRetrieval"
    ),
    "interbert-pictures": Variant(
        config=InterBertImagesConfig, home="vlmill.models.interbert.tasks.InterBertImages"
    ),
    "interbert-tasks": Variant(
        config=InterBertTasksConfig, home="vlmill.models.interbert.tasks.InterBertTasks"
    ),
    "interbert-text": Variant(
        config=InterBertTextConfig, home="vlmill.models.interbert.tasks.InterBertText"
    ),
    "vilbert-12in1-tasks": Variant(
        config=Vilbert12in1Config, home="vlmill.models.vilbert.tasks.Vilbert12in1"
    ),
    "vilbert-classifier": Variant(
        config=VilbertClassifierConfig, home="vlmill.models.vilbert.tasks.VilbertClassifier"
    ),
    "vilbert-tasks": Variant(
        config=VilbertTasksConfig, home="vlmill.models.vilbert.tasks.VilbertTasks"
    ),
    "vl-bert-refcoco": Variant(
        config=VlBertRefcocoConfig, home="vlmill.models.vlbert.tasks.VlBertRefcoco"
    ),
    "vl-bert-refcoco-end-to-end": Variant(
        config=VlBertEndToEndConfig, home="vlmill.models.vlbert.end_to_end.VlBertRefcocoEndToEnd"
    ),
    "vl-bert-vcr-end-to-end": Variant(
        config=VlBertEndToEndConfig, home="vlmill.models.vlbert.end_to_end.VlBertVcrEndToEnd"
    ),
    "vl-bert-vcr": Variant(config=VlBertVcrConfig, home="vlmill.models.vlbert.tasks.VlBertVcr"),
    "vl-bert-vqa": Variant(config=VlBertVqaConfig, home="vlmill.models.vlbert.tasks.VlBertVqa"),
    "vlmo-nlvr2": Variant(config=VlmoNlvr2Config, home="vlmill.models.vlmo.tasks.VlmoForNlvr2"),
    "vlmo-text": Variant(config=VlmoTextConfig, home="vlmill.models.vlmo.tasks.VlmoForText"),
    "vlmo-vqa": Variant(config=VlmoVqaConfig, home="vlmill.models.vlmo.tasks.VlmoForVqa"),
}


def find_variant(model: object) -> str | None:
    """The name of the model's class in `MODELS`; None for one that is not among them."""
    home = f"{type(model).__module__}.{type(model).__qualname__}"
    return next((name for name, variant in MODELS.items() if variant.home == home), None)


PRESETS: dict[str, Callable[..., Any]] = {
    "beit-base": beit_base,
    "beit-base-paper": beit_base_paper,
    "beit-base-plus": beit_base_plus,
    "beit-large": beit_large,
    "beit-large-paper": beit_large_paper,
    "bert-base": bert_base,
    "bert-large": bert_large,
    "bert-small": bert_small,
    "imagebert-base": imagebert_base,
    "imagebert-small": imagebert_small,
    "interbert-chinese": interbert_chinese,
    "interbert-paper": interbert_paper,
    "interbert-released": interbert_released,
    "interbert-single-stream": interbert_single_stream,
    "interbert-small": interbert_small,
    "vilbert-12in1": vilbert_12in1,
    "vilbert-base": vilbert_base,
    "vilbert-base-2": partial(vilbert_base, 2),
    "vilbert-base-4": partial(vilbert_base, 4),
    "vilbert-base-8": partial(vilbert_base, 8),
    "vilbert-large": vilbert_large,
    "vilbert-large-2": partial(vilbert_large, 2),
    "vilbert-large-4": partial(vilbert_large, 4),
    "vilbert-paper": vilbert_base,
    "vilbert-released": vilbert_released,
    "vilbert-single-stream": single_stream_base,
    "vilbert-small": vilbert_small,
    "vl-bert-base": vlbert_base,
    "vl-bert-base-end-to-end": vlbert_base_end_to_end,
    "vl-bert-base-paper": vlbert_paper,
    "vl-bert-base-paper-end-to-end": vlbert_paper_end_to_end,
    "vl-bert-large": vlbert_large,
    "vl-bert-large-end-to-end": vlbert_large_end_to_end,
    "vl-bert-small": vlbert_small,
    "vlmo-base": vlmo_base,
    "vlmo-base-paper": vlmo_base_paper,
    "vlmo-base-plus": vlmo_base_plus,
    "vlmo-large": vlmo_large,
    "vlmo-large-paper": vlmo_large_paper,
    "vlmo-small": vlmo_small,
}


def preset(name: str, **changes: Any) -> Any:
    """Returns the named size with ``changes`` to its fields.

    Raises ValueError for an unknown name or field, with the nearest one, and for sizes that do not
    go together.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; {nearest(name, PRESETS)}")
    known = [field.name for field in dataclasses.fields(PRESETS[name]())]
    for change in changes:
        if change not in known:
            raise ValueError(f"preset {name} has no field {change!r}; {nearest(change, known)}")
    return PRESETS[name](**changes)
