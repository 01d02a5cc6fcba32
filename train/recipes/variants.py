"""What training does in a variant's own way: one row for each that is no plain region model.

Functions stand here by name, and are loaded when they are asked for: a list of recipes takes no
torch.
"""

import dataclasses
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# What VLMo's stages and its BEiT have in common; lengths, resolutions, heads, experts may differ.
OF_VLMO = (
    *("width", "num_layers", "num_heads", "intermediate_width", "patch_size"),
    *("relative_text_span", "relative_positions", "absolute_positions"),
)


@dataclass(frozen=True, kw_only=True)
class VariantTraining:
    """How a variant is trained; the defaults are those of a plain region model."""

    # Its losses on a batch, in the form of the first one of that file.
    losses: str = "vlmill.train.objectives.pretraining.region_losses"
    # What a published checkpoint was fed at the end of its pretraining.
    feeding: str = "vlmill.train.recipes.spec.Feeding"
    # The field of its configuration that holds the sizes of words and regions, where a network of
    # its own makes the regions' features; the configuration itself if empty.
    body: str = ""
    reads_text: bool = True
    # Its stages differ in sizes, which come from the recipe; `--init` has to agree in these alone.
    # Empty: the configuration is `--init`'s.
    shared_sizes: tuple[str, ...] = ()
    starts_from: tuple[str, ...] = ()  # which other variants' weights `--init` may bring
    start: str = "vlmill.train.run.model.copy_weights"  # takes over the weights of `--init`

    def body_of(self, config: Any) -> Any:
        """The configuration that has the sizes of words and regions."""
        return getattr(config, self.body) if self.body else config

    def with_sizes(self, config: Any, **sizes: int) -> Any:
        """``config`` with other sizes of words and regions."""
        body = dataclasses.replace(self.body_of(config), **sizes)
        return dataclasses.replace(config, **{self.body: body}) if self.body else body


PLAIN = VariantTraining()
TRAININGS: dict[str, VariantTraining] = {
    "beit": VariantTraining(
        losses="vlmill.train.objectives.pretraining.picture_losses",
        reads_text=False,
        shared_sizes=OF_VLMO,
    ),
    "imagebert": VariantTraining(feeding="vlmill.train.recipes.feeding.imagebert_feeding"),
    "interbert": VariantTraining(feeding="vlmill.train.recipes.feeding.interbert_feeding"),
    "vilbert": VariantTraining(feeding="vlmill.train.recipes.feeding.vilbert_feeding"),
    "vilbert-single-stream": VariantTraining(
        feeding="vlmill.train.recipes.feeding.vilbert_feeding"
    ),
    "vl-bert": VariantTraining(feeding="vlmill.train.recipes.feeding.vlbert_feeding"),
    "vl-bert-end-to-end": VariantTraining(
        losses="vlmill.train.objectives.pretraining.end_to_end_losses",
        body="model",
    ),
    "vlmo": VariantTraining(
        losses="vlmill.train.objectives.pretraining.vlmo_losses",
        feeding="vlmill.train.recipes.feeding.vlmo_feeding",
        shared_sizes=OF_VLMO,
        starts_from=("beit",),
        start="vlmill.train.run.model.start_vlmo",
    ),
}


def training_of(variant: str | None) -> VariantTraining:
    """The variant's row; a plain region model's for one without."""
    return TRAININGS.get(variant or "", PLAIN)


def named(path: str) -> Any:
    """The function of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
