"""The registry lists the variants, the models of their tasks and their sizes by name."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from vlmill.models.beit.model import Beit, BeitConfig, beit_base, beit_large
from vlmill.models.bert.model import Bert, BertConfig, bert_base, bert_large, bert_small
from vlmill.models.checks import nearest
from vlmill.models.imagebert.model import (
    ImageBert,
    ImageBertConfig,
    imagebert_base,
    imagebert_small,
)
from vlmill.models.imagebert.tasks import ImageBertRetrieval, ImageBertRetrievalConfig
from vlmill.models.interbert.model import (
    InterBert,
    InterBertConfig,
    interbert_chinese,
    interbert_paper,
    interbert_released,
    interbert_small,
)
from vlmill.models.interbert.tasks import (
    InterBertTasks,
    InterBertTasksConfig,
    InterBertText,
    InterBertTextConfig,
)
from vlmill.models.vilbert.config import (
    VilbertConfig,
    vilbert_12in1,
    vilbert_base,
    vilbert_large,
    vilbert_released,
    vilbert_small,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream, SingleStreamConfig, single_stream_base
from vlmill.models.vilbert.tasks import (
    Vilbert12in1,
    Vilbert12in1Config,
    VilbertClassifier,
    VilbertClassifierConfig,
    VilbertTasks,
    VilbertTasksConfig,
)
from vlmill.models.vlbert.config import (
    VlBertConfig,
    vlbert_base,
    vlbert_large,
    vlbert_paper,
    vlbert_small,
)
from vlmill.models.vlbert.end_to_end import (
    VlBertEndToEnd,
    VlBertEndToEndConfig,
    vlbert_base_end_to_end,
    vlbert_large_end_to_end,
)
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.tasks import (
    VlBertRefcoco,
    VlBertRefcocoConfig,
    VlBertVcr,
    VlBertVcrConfig,
    VlBertVqa,
    VlBertVqaConfig,
)
from vlmill.models.vlmo.config import (
    VlmoConfig,
    vlmo_base,
    vlmo_base_paper,
    vlmo_base_plus,
    vlmo_large,
    vlmo_large_paper,
    vlmo_small,
)
from vlmill.models.vlmo.model import Vlmo
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa, VlmoNlvr2Config, VlmoVqaConfig


class Variant(NamedTuple):
    """A model's class and the class of its configuration: ``variant.model(variant.config())``."""

    config: type[Any]
    model: type[Any]


VARIANTS: dict[str, Variant] = {
    "beit": Variant(config=BeitConfig, model=Beit),
    "bert": Variant(config=BertConfig, model=Bert),
    "imagebert": Variant(config=ImageBertConfig, model=ImageBert),
    "interbert": Variant(config=InterBertConfig, model=InterBert),
    "vilbert": Variant(config=VilbertConfig, model=Vilbert),
    "vilbert-single-stream": Variant(config=SingleStreamConfig, model=SingleStream),
    "vl-bert": Variant(config=VlBertConfig, model=VlBert),
    "vl-bert-end-to-end": Variant(config=VlBertEndToEndConfig, model=VlBertEndToEnd),
    "vlmo": Variant(config=VlmoConfig, model=Vlmo),
}

# With the tasks' models, which have a trunk and other heads: whatever a checkpoint may hold.
MODELS: dict[str, Variant] = VARIANTS | {
    "imagebert-retrieval": Variant(config=ImageBertRetrievalConfig, model=ImageBertRetrieval),
    "interbert-tasks": Variant(config=InterBertTasksConfig, model=InterBertTasks),
    "interbert-text": Variant(config=InterBertTextConfig, model=InterBertText),
    "vilbert-12in1-tasks": Variant(config=Vilbert12in1Config, model=Vilbert12in1),
    "vilbert-classifier": Variant(config=VilbertClassifierConfig, model=VilbertClassifier),
    "vilbert-tasks": Variant(config=VilbertTasksConfig, model=VilbertTasks),
    "vl-bert-refcoco": Variant(config=VlBertRefcocoConfig, model=VlBertRefcoco),
    "vl-bert-vcr": Variant(config=VlBertVcrConfig, model=VlBertVcr),
    "vl-bert-vqa": Variant(config=VlBertVqaConfig, model=VlBertVqa),
    "vlmo-nlvr2": Variant(config=VlmoNlvr2Config, model=VlmoForNlvr2),
    "vlmo-vqa": Variant(config=VlmoVqaConfig, model=VlmoForVqa),
}

PRESETS: dict[str, Callable[..., Any]] = {
    "beit-base": beit_base,
    "beit-large": beit_large,
    "bert-base": bert_base,
    "bert-large": bert_large,
    "bert-small": bert_small,
    "imagebert-base": imagebert_base,
    "imagebert-small": imagebert_small,
    "interbert-chinese": interbert_chinese,
    "interbert-paper": interbert_paper,
    "interbert-released": interbert_released,
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
    """The named size with ``changes`` to its fields.

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
