"""What training and evaluation do in a variant's own way: one row for each that is no plain region
model.

Functions stand here by name, and are loaded when they are asked for: a list of recipes takes no
torch.
"""

import dataclasses
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import attrgetter
from typing import Any

# What VLMo's stages and its BEiT have in common; lengths, resolutions, heads, experts may differ.
OF_VLMO = (
    *("width", "num_layers", "num_heads", "intermediate_width", "patch_size"),
    *("relative_text_span", "relative_positions", "absolute_positions", "modality_experts"),
)


@dataclass(frozen=True, kw_only=True)
class VariantTraining:
    """How a variant is trained and ranks; the defaults are those of a plain region model."""

    # Its losses on a batch, in the form of the first one of that file.
    losses: str = "vlmill.train.objectives.pretraining.region_losses"
    # What a published checkpoint was fed at the end of its pretraining.
    feeding: str = "vlmill.train.recipes.parts.Feeding"
    # The model inside it, and the field of its configuration, that has words and regions: where a
    # network of its own makes the regions' features, or a task's heads stand on it, or both, from
    # the outermost in. Empty: itself.
    body: str = ""
    makes_features: bool = False  # whether that network makes them
    # The head that says how well a text and an image fit, and the method that asks it, of what the
    # body has pooled.
    match_head: str = "match_head"
    match_logit: str = "match_logit"
    reads_text: bool = True
    # The kind of feeding that it takes and the objectives that it learns; empty: what its heads do.
    kind: str = ""
    objectives: tuple[str, ...] = ()
    # Its stages differ in sizes, which come from the recipe; `--init` has to agree in these alone.
    # Empty: the configuration is `--init`'s.
    shared_sizes: tuple[str, ...] = ()
    # Which other variants' weights `--init` may bring: the sizes are the recipe's then.
    starts_from: tuple[str, ...] = ("bert",)
    start: str = "vlmill.train.run.model.start_region_model"  # takes over the weights of `--init`

    def get_body(self, model_or_config: Any) -> Any:
        """The part of a model, or of its configuration, that has words and regions."""
        return attrgetter(self.body)(model_or_config) if self.body else model_or_config

    def with_body(self, config: Any, body: Any) -> Any:
        """``config`` with another configuration of its words and regions."""
        return with_part(config, self.body, body) if self.body else body

    def with_sizes(self, config: Any, **sizes: int) -> Any:
        """``config`` with other sizes of words and regions."""
        return self.with_body(config, dataclasses.replace(self.get_body(config), **sizes))


PLAIN = VariantTraining()
TRAININGS: dict[str, VariantTraining] = {
    "beit": VariantTraining(
        losses="vlmill.train.objectives.pretraining.image_losses",
        reads_text=False,
        kind="pictures",
        objectives=("mim",),
        shared_sizes=OF_VLMO,
        starts_from=(),
        start="vlmill.train.run.model.copy_weights",
    ),
    "bert": VariantTraining(
        losses="vlmill.train.objectives.pretraining.text_losses",
        feeding="vlmill.train.recipes.feeding.bert_feeding",
        kind="text",
        objectives=("text_mlm",),
        starts_from=(),
        start="vlmill.train.run.model.copy_weights",
    ),
    "bert-text": VariantTraining(body="trunk"),
    "imagebert": VariantTraining(feeding="vlmill.train.recipes.feeding.imagebert_feeding"),
    # The binary layer of pretraining ranks at the end (arXiv:2001.07966, sec. 4.2), unless another
    # loss alone was trained.
    "imagebert-retrieval": VariantTraining(
        feeding="vlmill.train.recipes.feeding.imagebert_feeding",
        body="trunk",
        match_head="trunk.match_head",
        match_logit="rank_logit",
    ),
    "interbert": VariantTraining(feeding="vlmill.train.recipes.feeding.interbert_released_feeding"),
    "interbert-pictures": VariantTraining(body="trunk"),
    # Fine-tuned with pretraining's head, too (arXiv:2003.13198, sec. 4; code).
    "interbert-tasks": VariantTraining(
        feeding="vlmill.train.recipes.feeding.interbert_retrieval_feeding",
        body="trunk",
        match_head="trunk.match_head",
        match_logit="trunk.match_logit",
    ),
    "interbert-text": VariantTraining(body="trunk"),
    "vilbert": VariantTraining(feeding="vlmill.train.recipes.feeding.vilbert_feeding"),
    "vilbert-single-stream": VariantTraining(
        feeding="vlmill.train.recipes.feeding.vilbert_feeding"
    ),
    "vilbert-12in1-tasks": VariantTraining(body="trunk"),
    "vilbert-classifier": VariantTraining(body="trunk"),
    # The code trains a new head for retrieval, which is VCR's too, and not the one of pretraining.
    "vilbert-tasks": VariantTraining(
        feeding="vlmill.train.recipes.feeding.vilbert_retrieval_feeding",
        body="trunk",
        match_head="score_head",
        match_logit="scores",
    ),
    "vl-bert": VariantTraining(feeding="vlmill.train.recipes.feeding.vlbert_feeding"),
    "vl-bert-end-to-end": VariantTraining(
        losses="vlmill.train.objectives.pretraining.end_to_end_losses",
        body="model",
        makes_features=True,
    ),
    "vl-bert-refcoco": VariantTraining(body="body"),
    "vl-bert-refcoco-end-to-end": VariantTraining(body="model.body", makes_features=True),
    "vl-bert-vcr": VariantTraining(body="body"),
    "vl-bert-vcr-end-to-end": VariantTraining(body="model.body", makes_features=True),
    "vl-bert-vqa": VariantTraining(body="body"),
    "vlmo-nlvr2": VariantTraining(body="encoder"),
    "vlmo-text": VariantTraining(body="encoder"),
    "vlmo-vqa": VariantTraining(body="encoder"),
    "vlmo": VariantTraining(
        losses="vlmill.train.objectives.pretraining.vlmo_losses",
        feeding="vlmill.train.recipes.feeding.vlmo_feeding",
        shared_sizes=OF_VLMO,
        starts_from=("beit",),
        start="vlmill.train.run.model.start_vlmo",
    ),
}


def get_training(variant: str | None) -> VariantTraining:
    """The variant's row; a plain region model's for one without."""
    return TRAININGS.get(variant or "", PLAIN)


def with_part(config: Any, path: str, part: Any) -> Any:
    """A configuration with another one at the end of a dotted path of fields."""
    name, _, inner = path.partition(".")
    return dataclasses.replace(
        config, **{name: with_part(getattr(config, name), inner, part) if inner else part}
    )


def get_part(model: Any, path: str) -> Any:
    """The attribute at the end of a dotted path; None where one of its names is missing."""
    return reduce(lambda part, name: getattr(part, name, None), path.split("."), model)


def import_object(path: str) -> Any:
    """The function of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
