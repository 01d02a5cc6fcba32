"""What is counted from configurations is what the models hold, built without their memory."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from vlmill.models import MODELS, PRESETS, VARIANTS, preset
from vlmill.models.beit.config import image_classifier
from vlmill.models.layers.blocks import PostNormBlock
from vlmill.models.layers.co_attention import CoAttentionBlock
from vlmill.models.layers.experts import PreNormBlock
from vlmill.models.vlbert.config import RegionCnnConfig, VlBertVqaConfig
from vlmill.train.recipes.size import NETWORKS, measure_network
from vlmill.train.recipes.tasks import task_recipe_named, task_recipes

ROWS = {"text_layers": "texts", "visual_layers": "pictures"}
SWITCHED = {
    "beit, a classifier": image_classifier(preset("beit-base"), 10),
    "beit, of its class token": preset(
        "beit-base", num_visual_tokens=0, num_classes=3, mean_pooling=False
    ),
    "beit, absolute": preset("beit-base", relative_positions=False, absolute_positions=True),
    "imagebert": preset(
        "imagebert-small", image_pre_ln=True, global_widths=(8, 16), itm_pooler=True
    ),
    "imagebert, two classes": preset("imagebert-small", match_outputs=2, visual_sep_id=3),
    "interbert": preset("interbert-small", regress_features=True, visual_intermediate_width=64),
    "vilbert": preset("vilbert-small", regress_features=True, co_width=64, visual_width=128),
    "vl-bert": preset("vl-bert-small", visual_width=64, visual_norm=False, frozen_words=True),
    "vl-bert, nothing masked": preset("vl-bert-small", masked_region="none"),
    "vl-bert, matching alone": preset(
        "vl-bert-small", masked_words=False, masked_classes=False, num_segments=4
    ),
    "vl-bert, end to end": preset(
        "vl-bert-base-end-to-end",
        model=preset("vl-bert-small", region_width=64, masked_region="pixels"),
        cnn=RegionCnnConfig(blocks=(1, 2, 1, 3), widths=(4, 8, 8, 16), stem_channels=16),
    ),
    "vlmo, of texts": preset("vlmo-small", contrast=False, match=False, first_vl_layer=4),
    "vlmo, one part for all": preset("vlmo-small", modality_experts=False, first_vl_layer=4),
    "vlmo, of two images": preset("vlmo-small", num_images=2, mlm=False, num_contrast_pairs=1),
}
CONFIGS = {name: make() for name, make in PRESETS.items()} | SWITCHED


def built(config: Any) -> nn.Module:
    """The model of a configuration, without memory for its weights."""
    variant = next(v for v in VARIANTS.values() if v.config is type(config))
    with torch.device("meta"):
        model: nn.Module = variant.model(config)
    return model


def widths_of(*parts: nn.Module) -> int:
    """Inputs and outputs of the linear layers."""
    layers = [layer for part in parts for layer in part.modules()]
    return sum(a.in_features + a.out_features for a in layers if isinstance(a, nn.Linear))


def kept_by(model: nn.Module) -> Counter[str]:
    """What a row's layers keep, counted on the blocks; a row takes one expert."""
    kept: Counter[str] = Counter()
    for name, block in model.named_modules():
        rows = ROWS.get(name.split(".")[0], "both")
        if isinstance(block, PreNormBlock):
            kept[rows] += widths_of(block.attention, next(iter(block.experts.values())))
        elif isinstance(block, PostNormBlock | CoAttentionBlock):
            kept[rows] += widths_of(block)
    return kept


@pytest.mark.parametrize("name", CONFIGS)
def test_formulas_count_what_the_model_holds(name: str) -> None:
    network, model = measure_network(CONFIGS[name]), built(CONFIGS[name])
    assert network.parameters == sum(p.numel() for p in model.parameters())
    kept: Counter[str] = Counter()
    for stack in network.stacks:
        kept[stack.rows] += stack.num_layers * stack.layer.activations
    assert +kept == kept_by(model)


def test_every_variant_and_task_has_its_formula() -> None:
    of_tasks = {type(make().model) for make in task_recipes().values()}
    assert set(NETWORKS) == {variant.config for variant in VARIANTS.values()} | of_tasks


@pytest.mark.parametrize(
    "name",
    [
        *("vqa-vilbert-small", "vqa-single-stream", "vqa-vl-bert-small", "vqa-vlmo-small"),
        *("two layers", "refcoco-vl-bert-small", "vcr-vl-bert-small", "vcr-vl-bert-paper-q2a"),
        "vcr-vl-bert-end-to-end-small",
    ],
)
def test_formulas_count_what_tasks_add(name: str) -> None:
    config = VlBertVqaConfig(classifier="2fc") if name == "two layers" else None
    config = config or task_recipe_named(name).model
    with torch.device("meta"):
        variant = next(v for v in MODELS.values() if v.config is type(config))
        model = variant.model(config)
    assert measure_network(config).parameters == sum(p.numel() for p in model.parameters())
