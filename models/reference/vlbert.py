"""VL-BERT's checkpoints (jackroos/VL-BERT): pretraining, VQA, RefCOCO+, VCR, regions or pixels."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vlmill.models.reference.bert_names import block_links, mlm_head_links
from vlmill.models.reference.family import Family
from vlmill.models.reference.keymap import Link, linked
from vlmill.models.region_cnn import RegionCnn, RegionCnnConfig
from vlmill.models.resnet import BLOCKS, Bottleneck
from vlmill.models.vlbert import VlBert
from vlmill.models.vlbert_body import VlBertBody
from vlmill.models.vlbert_config import VlBertConfig
from vlmill.models.vlbert_end_to_end import (
    TaskConfig,
    VlBertEndToEnd,
    VlBertEndToEndConfig,
    build_vlbert,
)
from vlmill.models.vlbert_tasks import (
    VlBertRefcoco,
    VlBertRefcocoConfig,
    VlBertVcr,
    VlBertVcrConfig,
    VlBertVqa,
    VlBertVqaConfig,
)

EXTRACTOR = "image_feature_extractor"
NORM_PARTS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

# Keys of NETWORK.VLBERT and our fields.
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_width",
    "max_position_embeddings": "num_positions",
    "visual_size": "visual_width",
    "visual_region_classes": "num_region_classes",
    "visual_ln": "visual_norm",
    "visual_scale_text_init": "visual_scale_text",
    "visual_scale_object_init": "visual_scale_region",
    "with_pooler": "pooler",
    "word_embedding_frozen": "frozen_words",
    "pos_embedding_frozen": "frozen_positions",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_std",
}
# What no published model sets otherwise, and nothing here does.
FIXED = {"object_word_embed_mode": 2, "hidden_act": "gelu", "obj_pos_id_relative": True}


def configure(config: Mapping[str, Any]) -> TaskConfig | VlBertEndToEndConfig:
    """Of a configuration with the keys of the repository's YAML files.

    ``MODULE`` (or ``class``) names the network: a task's begins with its name (``vqa``,
    ``refcoco``, ``vcr``), as in ``vcr ResNetVLBERT``; without one, ``DATASET.DATASET`` does. What
    ``NETWORK.VLBERT`` leaves out is BERT-base's. Raises ValueError for what is not supported.
    """
    network = dict(config.get("NETWORK", config.get("network", {})))
    settings = network.pop("VLBERT", config.get("vlbert", {}))
    name = str(config.get("MODULE", config.get("class", "")))
    if "layer_planes" in config:
        return _narrowed(config)
    for key, value in FIXED.items():
        if settings.get(key, value) != value:
            raise ValueError(f"{key}={settings[key]!r}: only {value!r} is supported")
    if network.get("IMAGE_SEMANTIC", False):
        raise ValueError("IMAGE_SEMANTIC=True: regions with an embedded label are not supported")
    data = config.get("DATASET", {})
    data = data if isinstance(data, Mapping) else {}  # a list where several are pretrained on
    task = name.split()[0] if " " in name else str(data.get("DATASET", "")).split("_")[0]
    task = task.lower() if task.lower() in ("vqa", "refcoco", "refcoco+", "vcr") else "pretraining"
    pixels = not network.get("IMAGE_FEAT_PRECOMPUTED", config.get("NETWORK") is None)
    body = _body(settings, network, config, task, name, pixels)
    model = _task(task, body, config, network)
    if not pixels:
        return model
    depth = network.get("IMAGE_NUM_LAYERS", 101)
    if depth not in BLOCKS:
        raise ValueError(f"IMAGE_NUM_LAYERS={depth!r}: want one of {', '.join(map(str, BLOCKS))}")
    cnn = RegionCnnConfig(
        blocks=BLOCKS[depth],
        stride_in_1x1=bool(network.get("IMAGE_STRIDE_IN_1x1", True)),
        dilated=bool(network.get("IMAGE_C5_DILATED", True)),
        frozen_stages=max(network.get("IMAGE_FROZEN_BACKBONE_STAGES", (1, 2)), default=0),
    )
    return VlBertEndToEndConfig(model=model, cnn=cnn)


def _body(
    settings: Mapping[str, Any],
    network: Mapping[str, Any],
    config: Mapping[str, Any],
    task: str,
    name: str,
    pixels: bool,
) -> VlBertConfig:
    fields = {ours: settings[key] for key, ours in FIELDS.items() if key in settings}
    fields["position_offset"] = settings.get("position_padding_idx", -1) + 1
    if task != "pretraining":
        return VlBertConfig(**fields, masked_region="none", text_only=False)
    heads = config.get("heads", ())
    matching = bool(network.get("WITH_REL_LOSS", False)) or "relationship" in heads
    keeps_feature = not (pixels and network.get("MASK_RAW_PIXELS", True))
    return VlBertConfig(
        **fields,
        matching=matching,
        text_only=name.endswith("Multitask"),
        masked_region="appearance" if keeps_feature else "pixels",
    )


def _task(
    task: str, body: VlBertConfig, config: Mapping[str, Any], network: Mapping[str, Any]
) -> TaskConfig:
    if task == "vqa":
        if network.get("CLASSIFIER_TYPE", "mlm") != "mlm":
            raise ValueError(f"CLASSIFIER_TYPE={network['CLASSIFIER_TYPE']!r}: want mlm")
        size = config.get("DATASET", {}).get("ANSWER_VOCAB_SIZE", 3129)
        return VlBertVqaConfig(
            body=body,
            num_answers=int(config.get("answer_vocab_size", size)),
            dropout=float(network.get("CLASSIFIER_DROPOUT", 0.1)),
        )
    if task.startswith("refcoco"):
        return VlBertRefcocoConfig(body=body, dropout=float(network.get("CLASSIFIER_DROPOUT", 0.0)))
    if task == "vcr":
        if network.get("CLASSIFIER_TYPE", "1fc") != "1fc":
            raise ValueError(f"CLASSIFIER_TYPE={network['CLASSIFIER_TYPE']!r}: want 1fc")
        return VlBertVcrConfig(
            body=body,
            dropout=float(network.get("CLASSIFIER_DROPOUT", 0.1)),
            category_dropout=float(network.get("CNN_REG_DROPOUT", 0.0)),
        )
    return body


def _narrowed(config: Mapping[str, Any]) -> VlBertEndToEndConfig:
    """The region network alone, of other widths; VL-BERT above it is as small as can be."""
    cnn = RegionCnnConfig(
        blocks=(*config["layer_blocks"], 3),
        widths=(*config["layer_planes"], config["head_planes"]),
        stem_channels=config["stem_channels"],
        stride_in_1x1=config["stride_in_1x1"],
        dilated=config["c5_dilated"],
    )
    model = VlBertConfig(
        vocab_size=1,
        width=config["final_dim"],
        num_layers=1,
        num_heads=1,
        intermediate_width=1,
        num_positions=3,
        region_width=cnn.feature_width,
        num_region_classes=1,
        masked_region="pixels",
    )
    return VlBertEndToEndConfig(model=model, cnn=cnn)


def build(config: TaskConfig | VlBertEndToEndConfig) -> nn.Module:
    """The model that `configure` describes."""
    if isinstance(config, VlBertEndToEndConfig):
        return VlBertEndToEnd(config)
    return build_vlbert(config)


def links(model: nn.Module, ours: str = "") -> list[Link]:
    """Of any of the models, ``ours`` before all our names."""
    if isinstance(model, VlBertEndToEnd):
        return [*_cnn_links(model.cnn), *links(model.model, "model.")]
    if isinstance(model, VlBert):
        return [*_body_links(model, ours, "vlbert"), *_pretraining_links(model, ours)]
    if isinstance(model, VlBertVqa):
        return [
            *_body_links(model.body, f"{ours}body.", "vlbert"),
            *linked(f"{ours}head.transform.dense", "final_mlp.0.dense"),
            *linked(f"{ours}head.transform.norm", "final_mlp.0.LayerNorm"),
            *linked(f"{ours}head.decoder", "final_mlp.2"),
        ]
    if isinstance(model, VlBertRefcoco):
        return [
            *_body_links(model.body, f"{ours}body.", "vlbert"),
            *linked(f"{ours}head.transform.dense", "final_mlp.0.dense"),
            *linked(f"{ours}head.decoder", "final_mlp.2"),
        ]
    assert isinstance(model, VlBertVcr)
    return [
        *_body_links(model.body, f"{ours}body.", "vlbert._module"),
        *linked(f"{ours}answer_head", "final_mlp.1"),
        *linked(f"{ours}category_head.transform.dense", "cnn_loss_reg.0.dense"),
        *linked(f"{ours}category_head.decoder", "cnn_loss_reg.2"),
    ]


def _pretraining_links(model: VlBert, ours: str) -> list[Link]:
    found = [
        *mlm_head_links(f"{ours}mlm_head", "vlbert.mlm_head.predictions"),
        *linked(f"{ours}class_head.transform.dense", "vlbert.mvrc_head.transform.dense"),
        *linked(f"{ours}class_head.decoder", "vlbert.mvrc_head.region_cls_pred"),
    ]
    if model.match_head is not None:
        found += linked(
            f"{ours}match_head", "vlbert.relationsip_head.caption_image_relationship"
        )  # spelled so
    return found


def _body_links(body: VlBertBody, ours: str, theirs: str) -> list[Link]:
    """``theirs``: what the reference calls the encoder."""
    tables = {
        "text_embedding.word": "word_embeddings",
        "text_embedding.position": "position_embeddings",
        "text_embedding.segment": "token_type_embeddings",
        "special_words": "special_word_embeddings",
        "end_token": "end_embedding",
    }
    single = {
        "region_token": "object_linguistic_embeddings",
        "masked_feature": "object_mask_visual_embedding",
        "masked_token": "object_mask_word_embedding",
        "text_only_vector": "aux_text_visual_embedding",
    }
    named = {o: f"{theirs}.{t}" for o, t in tables.items()} | single
    decoder = (f"{theirs}.mlm_head.predictions.decoder.weight",)
    has_decoder = isinstance(body, VlBert)
    found = [
        Link(
            f"{ours}{name}.weight",
            (f"{reference}.weight",),
            also=decoder if name == "text_embedding.word" and has_decoder else (),
        )
        for name, reference in named.items()
        if getattr(body, name.split(".")[0]) is not None
    ]
    found += linked(f"{ours}text_embedding.norm", f"{theirs}.embedding_LayerNorm")
    found += linked(f"{ours}region_vectors.projection", f"{EXTRACTOR}.obj_downsample.1")
    for name, kind in (("text_visual", "text"), ("region_visual", "object")):
        visual = getattr(body, name)
        if visual.projection is not None:
            found += linked(f"{ours}{name}.projection", f"{theirs}.visual_1x1_{kind}")
        if visual.norm is not None:
            found += linked(f"{ours}{name}.norm", f"{theirs}.visual_ln_{kind}")
        else:
            found.append(Link(f"{ours}{name}.scale", (f"{theirs}.visual_scale_{kind}",)))
    for number in range(len(body.layers)):
        found += block_links(f"{ours}layers.{number}", f"{theirs}.encoder.layer.{number}")
    if body.config.pooler:
        found += linked(f"{ours}pooler.dense", f"{theirs}.pooler.dense")
    return found


def _cnn_links(cnn: RegionCnn) -> list[Link]:
    """The reference holds conv5 twice, under two names."""
    found = _conv_links("cnn.stem.conv1", "conv1", "bn1", (f"{EXTRACTOR}.backbone",))
    for number in (2, 3, 4, 5):
        head = (f"{EXTRACTOR}.roi_head_feature_extractor", f"{EXTRACTOR}.head.0")
        places = head if number == 5 else (f"{EXTRACTOR}.backbone.layer{number - 1}",)
        for block, module in enumerate(cnn.get_submodule(f"res{number}").children()):
            assert isinstance(module, Bottleneck)
            ours = f"cnn.res{number}.{block}"
            inside = tuple(f"{place}.{block}" for place in places)
            for part in (1, 2, 3):
                found += _conv_links(f"{ours}.conv{part}", f"conv{part}", f"bn{part}", inside)
            if not isinstance(module.shortcut, nn.Identity):
                found += _conv_links(f"{ours}.shortcut", "downsample.0", "downsample.1", inside)
    return found


def _conv_links(ours: str, conv: str, norm: str, places: tuple[str, ...]) -> list[Link]:
    names = {"weight": f"{conv}.weight"}
    names |= {f"norm.{part}": f"{norm}.{part}" for part in NORM_PARTS}
    found = []
    for name, theirs in names.items():
        first, *again = (f"{place}.{theirs}" for place in places)
        found.append(Link(f"{ours}.{name}", (first,), also=tuple(again)))
    return found


def prepare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names with the prefixes of the whole network, where a part was saved by itself."""
    if "word_embeddings.weight" in state:
        return {f"vlbert.{name}": tensor for name, tensor in state.items()}
    if "backbone.conv1.weight" in state:
        return {f"{EXTRACTOR}.{name}": tensor for name, tensor in state.items()}
    return state


VLBERT = Family(configure=configure, build=build, links=links, prepare=prepare)
