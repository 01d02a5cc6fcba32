"""Reads and writes VLMo's checkpoints of pretraining and of fine-tuned models."""

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from vlmill.models.convert.keymap import Family, Link, link_module
from vlmill.models.vlmo.config import SHARED, VlmoConfig, VlmoNlvr2Config, VlmoVqaConfig
from vlmill.models.vlmo.model import Vlmo
from vlmill.models.vlmo.stages import RESIZED, resize
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa

LAYER_SCALE = 0.1  # the released code's initial value; a checkpoint has its own values
# Names of the norm and the layers of each expert; without experts, BEiT's names.
EXPERTS = {
    "text": ("norm2_text", "mlp_text"),
    "image": ("norm2_imag", "mlp_imag"),
    "vl": ("norm2_vl", "mlp_vl"),
    SHARED: ("norm2", "mlp"),
}

# Keys of the released code's configuration, and our fields.
FIELDS = {
    "vocab_size": "vocab_size",
    "embed_dim": "width",
    "depth": "num_layers",
    "num_heads": "num_heads",
    "vlffn_start_layer_index": "first_vl_layer",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "max_text_len": "max_text_tokens",
    "max_text_len_of_initckpt": "relative_text_span",
    "need_relative_position_embed": "relative_positions",
    "use_abs_pos_emb": "absolute_positions",
    "drop_path_rate": "drop_path",
}

# Keys that have these values in all published models; other values are not supported.
FIXED = {
    "qkv_bias": True,
    "layer_norm_eps_transformer": 1e-6,
    "layer_norm_eps_text_embeddings_and_mlm_head": 1e-12,
}

# Our tensors that depend on sizes, and their released names.
RESIZED_NAMES = {
    "relative_position_bias_table": "relative.table",
    "transformer.pos_embed": "patch_embedding.position",
    "text_embeddings.position_embeddings.weight": "text_embedding.position.weight",
    "token_type_embeddings.weight": "type_table.weight",
}
assert set(RESIZED_NAMES.values()) == set(RESIZED)

AnyConfig = VlmoConfig | VlmoVqaConfig | VlmoNlvr2Config


def configure(config: Mapping[str, Any]) -> AnyConfig:
    """Reads the released code's settings: network sizes and ``loss_names``.

    The losses ``vqa`` and ``nlvr2`` select the models of these tasks, ``irtr`` that of retrieval.
    Raises ValueError without a width, and for unsupported settings.
    """
    if "embed_dim" not in config:
        raise ValueError(
            "no embed_dim: expected VLMo's settings with the network's sizes among them"
        )
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key}={config[key]!r}: only {value!r} is supported")
    losses = {name for name, weight in config.get("loss_names", {}).items() if weight > 0}
    fields = {
        field: config[reference_key]
        for reference_key, field in FIELDS.items()
        if reference_key in config
    }
    if losses == {"textmlm"}:
        fields["first_vl_layer"] = config["depth"]
    encoder = VlmoConfig(
        **fields,
        intermediate_width=round(config["embed_dim"] * config.get("mlp_ratio", 4)),
        layer_scale=LAYER_SCALE if config.get("layer_scale", True) else None,
        num_images=2 if "nlvr2" in losses else 1,
        contrast=bool(losses & {"itc", "irtr"}),
        num_contrast_pairs=2 if "itc" in losses else 1,
        match="itm" in losses,
        mlm=bool(losses & {"mlm", "textmlm"}),
    )
    if "vqa" in losses:
        return VlmoVqaConfig(encoder=encoder, num_answers=config["vqav2_label_size"])
    return VlmoNlvr2Config(encoder=encoder) if "nlvr2" in losses else encoder


def build(config: AnyConfig) -> nn.Module:
    """Builds the model of a configuration."""
    if isinstance(config, VlmoVqaConfig):
        return VlmoForVqa(config)
    return VlmoForNlvr2(config) if isinstance(config, VlmoNlvr2Config) else Vlmo(config)


def links(model: nn.Module) -> list[Link]:
    """Links our tensors to the released code's names."""
    assert isinstance(model, Vlmo | VlmoForVqa | VlmoForNlvr2)
    keymap = encoder_links(model.encoder)
    if isinstance(model, Vlmo):
        return keymap + head_links(model)
    name = "vqa_classifier" if isinstance(model, VlmoForVqa) else "nlvr2_classifier"
    for number, layer in model.classifier.named_children():
        if not isinstance(layer, nn.GELU):
            keymap += link_module(f"classifier.{number}", f"{name}.{number}")
    return keymap


def encoder_links(encoder: nn.Module, module: str = "encoder") -> list[Link]:
    """Links a `VlmoEncoder`, which is the attribute ``module`` of its model."""
    config: Any = encoder.config
    text, patches = f"{module}.text_embedding", f"{module}.patch_embedding"
    keymap = [
        *(
            _link_tensor(f"{text}.{a}.weight", f"text_embeddings.{b}.weight")
            for a, b in TEXT.items()
        ),
        *link_module(f"{text}.norm", "text_embeddings.LayerNorm"),
        *link_module(f"{patches}.projection", "transformer.patch_embed.proj"),
        _link_tensor(f"{patches}.class_token", "transformer.cls_token"),
        _link_tensor(f"{module}.type_table.weight", "token_type_embeddings.weight"),
        *link_module(f"{module}.norm", "transformer.norm"),
    ]
    if config.pooler:
        keymap += link_module(f"{module}.pooler.dense", "pooler.dense")
    if config.absolute_positions:
        keymap.append(_link_tensor(f"{patches}.position", "transformer.pos_embed"))
    if config.relative_positions:
        keymap.append(_link_tensor(f"{module}.relative.table", "relative_position_bias_table"))
    for number in range(config.num_layers):
        keymap += block_links(
            f"{module}.layers.{number}",
            f"transformer.blocks.{number}",
            {name: EXPERTS[name] for name in config.list_experts(number)},
            scaled=config.layer_scale is not None,
        )
    return keymap


TEXT = {
    "word": "word_embeddings",
    "position": "position_embeddings",
    "segment": "token_type_embeddings",
}


def block_links(
    module: str, reference: str, experts: Mapping[str, tuple[str, str]], *, scaled: bool
) -> list[Link]:
    """Links a `PreNormBlock`; ``experts``: the reference's names of an expert's norm and layers."""
    keymap = [
        *link_module(f"{module}.attention_norm", f"{reference}.norm1"),
        _link_tensor(f"{module}.attention.qkv.weight", f"{reference}.attn.qkv.weight"),
        _link_tensor(f"{module}.attention.query_bias", f"{reference}.attn.q_bias"),
        _link_tensor(f"{module}.attention.value_bias", f"{reference}.attn.v_bias"),
        *link_module(f"{module}.attention.out", f"{reference}.attn.proj"),
    ]
    for name, (norm, layers) in experts.items():
        keymap += link_module(f"{module}.expert_norms.{name}", f"{reference}.{norm}")
        keymap += link_module(f"{module}.experts.{name}.up", f"{reference}.{layers}.fc1")
        keymap += link_module(f"{module}.experts.{name}.down", f"{reference}.{layers}.fc2")
    if scaled:
        keymap.append(_link_tensor(f"{module}.attention_scale", f"{reference}.gamma_1"))
        keymap.append(_link_tensor(f"{module}.expert_scale", f"{reference}.gamma_2"))
    return keymap


CONTRAST = {
    "text": "itc_text_proj",
    "image": "itc_image_proj",
    "fused_text": "itc_vl_text_proj",
    "fused_image": "itc_vl_image_proj",
}


def head_links(model: Vlmo) -> list[Link]:
    """Links the pretraining heads that ``model`` has."""
    keymap = []
    if model.config.contrast:
        for name in model.contrast_heads:
            keymap.append(
                _link_tensor(f"contrast_heads.{name}.weight", f"{CONTRAST[name]}.fc.weight")
            )
        keymap.append(_link_tensor("log_scale", "logit_scale"))
        if model.config.num_contrast_pairs == 2:
            keymap.append(_link_tensor("fused_log_scale", "logit_vl_scale"))
    if model.config.match:
        keymap += link_module("match_head", "itm_score.fc")
    if model.config.mlm:
        keymap += link_module("mlm_head.transform.dense", "mlm_score.transform.dense")
        keymap += link_module("mlm_head.transform.norm", "mlm_score.transform.LayerNorm")
        keymap.append(_link_tensor("mlm_head.bias", "mlm_score.bias"))
        keymap.append(_link_tensor("mlm_decoder.weight", "mlm_score.decoder.weight"))
    return keymap


def _link_tensor(name: str, reference: str) -> Link:
    return Link(name, (reference,))


def fit(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Resizes positions to the model's images and texts, as the released code does on loading."""
    encoder: Any = model.encoder
    return {
        name: resize(RESIZED_NAMES[name], tensor, encoder.config)
        if name in RESIZED_NAMES
        else tensor
        for name, tensor in state.items()
    }


def build_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Builds the buffer of text positions: 0, 1, 2, ..."""
    encoder: Any = model.encoder
    return {"text_embeddings.position_ids": torch.arange(encoder.config.max_text_tokens)[None]}


# Index matrices, which follow from the sizes and are missing in some files.
IGNORED = ("*relative_position_index", "text_embeddings.position_ids")

VLMO = Family(
    configs=get_args(AnyConfig),
    configure=configure,
    build=build,
    links=links,
    ignored=IGNORED,
    fit=fit,
    build_buffers=build_buffers,
)
