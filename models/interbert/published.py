"""Reads and writes InterBERT's checkpoints of pretraining and fine-tuning."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vlmill.models.convert import names
from vlmill.models.convert.keymap import Family, Link, link_module
from vlmill.models.convert.names import layers_from_bert, mlm_head_links, text_embedding_links
from vlmill.models.interbert.config import InterBertConfig, InterBertTasksConfig, interbert_released
from vlmill.models.interbert.model import InterBert, InterBertTasks

# The repository's keys and our fields; absent keys keep the released configuration's values.
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_interaction_layers",
    "t_num_hidden_layers": "num_text_layers",
    "v_num_hidden_layers": "num_visual_layers",
    "num_attention_heads": "num_heads",
    "v_num_attention_heads": "visual_num_heads",
    "intermediate_size": "intermediate_width",
    "v_intermediate_size": "visual_intermediate_width",
    "hidden_act": "act",
    "v_hidden_act": "visual_act",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "v_hidden_dropout_prob": "visual_dropout",
    "v_attention_probs_dropout_prob": "visual_attention_dropout",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_segments",
    "v_feature_size": "region_width",
    "bi_hidden_size": "pooled_width",
    "fusion_method": "fusion",
    "predict_feature": "regress_features",
    "initializer_range": "init_std",
}


def configure(keys: Mapping[str, Any]) -> InterBertConfig | InterBertTasksConfig:
    """Reads the released JSON; with ``num_labels`` it describes the fine-tuning model.

    Unknown keys are ignored. Raises ValueError for widths that differ between the modalities, which
    the released code cannot run either.
    """
    for key in ("hidden_size", "num_attention_heads", "v_num_attention_heads"):
        if key not in keys:
            raise ValueError(
                f"no {key}: expected the configuration JSON that came with the model; "
                "the weights do not show the number of heads"
            )
    if keys.get("v_hidden_size", keys["hidden_size"]) != keys["hidden_size"]:
        raise ValueError(
            f"v_hidden_size={keys['v_hidden_size']}, hidden_size={keys['hidden_size']}: "
            "both pass through the same layers and must be equal"
        )
    fields = {
        field: keys[reference_key]
        for reference_key, field in FIELDS.items()
        if reference_key in keys
    }
    if not fields.get("regress_features") and "v_target_size" in keys:
        fields["num_region_classes"] = keys["v_target_size"]
    if fields.get("regress_features") and keys.get("v_target_size") != keys.get("v_feature_size"):
        raise ValueError(
            f"v_target_size={keys.get('v_target_size')}, v_feature_size="
            f"{keys.get('v_feature_size')}: they must be equal to regress features"
        )
    fields["max_text_tokens"] = min(36, fields.get("num_positions", 512))
    trunk = interbert_released(**fields)
    if "num_labels" in keys:
        return InterBertTasksConfig(trunk=trunk, num_answers=keys["num_labels"])
    return trunk


def build(config: InterBertConfig | InterBertTasksConfig) -> nn.Module:
    """Builds the model that belongs to a configuration."""
    if isinstance(config, InterBertTasksConfig):
        return InterBertTasks(config)
    return InterBert(config)


def links(model: nn.Module) -> list[Link]:
    """Links our tensors to the released names."""
    if isinstance(model, InterBertTasks):
        trunk = [names.under("trunk", link) for link in links(model.trunk)]
        return trunk + names.score_links() + link_module("answer_head", "vil_prediction")
    assert isinstance(model, InterBert)
    keymap = [
        *names.text_embedding_links(),
        *names.region_embedding_links("region_embedding", "bert.v_embeddings"),
        *link_module("text_pooler.dense", "bert.t_pooler.dense"),
        *link_module("visual_pooler.dense", "bert.v_pooler.dense"),
        *names.pretraining_links("cls.bi_seq_relationship"),
    ]
    # The numbers of the text's layers continue after those of interaction.
    num_interaction = len(model.interaction_layers)
    for n in range(num_interaction):
        keymap += names.block_links(f"interaction_layers.{n}", f"bert.encoder.layer.{n}")
    for n in range(len(model.text_layers)):
        keymap += names.block_links(f"text_layers.{n}", f"bert.encoder.layer.{num_interaction + n}")
    for n in range(len(model.visual_layers)):
        keymap += names.block_links(f"visual_layers.{n}", f"bert.encoder.v_layer.{n}")
    return keymap


INTERBERT = Family(
    configs=(InterBertConfig, InterBertTasksConfig),
    configure=configure,
    build=build,
    links=links,
    prepare=names.canonical,
)

# --- a start from BERT ----------------------------------------------------------------------------


def bert_links(model: InterBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links BERT's layers to the interaction module and then to the text's extraction module.

    At the released depth interaction has BERT's layers 0 to 5 and the text's module 6 to 11; at the
    paper's depth interaction has all twelve, and both extraction modules are new.
    """
    counts = [len(model.interaction_layers), len(model.text_layers)]
    return [
        *text_embedding_links(),
        *layers_from_bert("interaction_layers", "text_layers", counts=counts),
        *mlm_head_links(),
    ]
