"""Converts the configurations of jackroos/VL-BERT to ours."""

from collections.abc import Mapping
from typing import Any

from vlmill.models.detector.config import BLOCKS
from vlmill.models.vlbert.config import (
    RegionCnnConfig,
    TaskConfig,
    VlBertConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
)

# Keys of NETWORK.VLBERT and our fields.
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_width",
    "hidden_act": "act",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_segments",
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
# Keys that have these values in all published models; other values are not supported.
FIXED = {"obj_pos_id_relative": True}
FIXED_NETWORK = {"IMAGE_SEMANTIC": False, "BLIND": False, "NO_OBJ_ATTENTION": False}
FIXED_REGIONS = {"aligned": False, "sampling_ratio": 1, "spatial_scale": 1 / 16}


def configure(config: Mapping[str, Any]) -> TaskConfig | VlBertEndToEndConfig:
    """Reads a configuration with the keys of the repository's YAML files.

    ``MODULE`` (or ``class``) names the network: a task's name (``vqa``, ``refcoco``, ``vcr``) comes
    first, as in ``vcr ResNetVLBERT``; without one, ``DATASET.DATASET`` names the task. Keys that
    ``NETWORK.VLBERT`` omits have BERT-base's values. Raises ValueError for unsupported settings.
    """
    network = dict(config.get("NETWORK", config.get("network", {})))
    settings = network.pop("VLBERT", config.get("vlbert", {}))
    name = str(config.get("MODULE", config.get("class", "")))
    if "layer_planes" in config:
        return _narrowed(config)
    for keys, fixed in ((settings, FIXED), (network, FIXED_NETWORK)):
        for key, value in fixed.items():
            if keys.get(key, value) != value:
                raise ValueError(f"{key}={keys[key]!r}: only {value!r} is supported")
    data = config.get("DATASET", {})
    data = data if isinstance(data, Mapping) else {}  # a list for pretraining on several
    task = name.split()[0] if " " in name else str(data.get("DATASET", "")).split("_")[0]
    task = task.lower() if task.lower() in ("vqa", "refcoco", "refcoco+", "vcr") else "pretraining"
    if task in ("vqa", "vcr") and (mode := settings.get("object_word_embed_mode", 2)) != 2:
        raise ValueError(f"object_word_embed_mode={mode!r}: only 2 is supported")  # else unread
    pixels = not network.get("IMAGE_FEAT_PRECOMPUTED", config.get("NETWORK") is None)
    body = _body(settings, network, config, task, name, pixels)
    model = _task(task, body, config, network)
    if not pixels:
        return model
    depth = network.get("IMAGE_NUM_LAYERS", 101)
    if depth not in BLOCKS:
        raise ValueError(
            f"IMAGE_NUM_LAYERS={depth!r}: expected one of {', '.join(map(str, BLOCKS))}"
        )
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
    fields = {field: settings[key] for key, field in FIELDS.items() if key in settings}
    fields["position_offset"] = settings.get("position_padding_idx", -1) + 1
    if task != "pretraining":
        return VlBertConfig(**fields, masked_region="none", text_only=False)
    heads = config.get("heads", ())
    matching = bool(network.get("WITH_REL_LOSS", False)) or "relationship" in heads
    keeps_feature = not (pixels and network.get("MASK_RAW_PIXELS", True))
    return VlBertConfig(
        **fields,
        matching=matching,
        masked_words=bool(network.get("WITH_MLM_LOSS", True)),
        masked_classes=bool(network.get("WITH_MVRC_LOSS", True)),
        text_only=name.endswith("Multitask"),
        masked_region="appearance" if keeps_feature else "pixels",
    )


def _task(
    task: str, body: VlBertConfig, config: Mapping[str, Any], network: Mapping[str, Any]
) -> TaskConfig:
    if task == "vqa":
        if network.get("NO_GROUNDING"):
            raise ValueError("NO_GROUNDING=True: a question's words always have the image's vector")
        size = config.get("DATASET", {}).get("ANSWER_VOCAB_SIZE", 3129)
        return VlBertVqaConfig(
            body=body,
            num_answers=int(config.get("answer_vocab_size", size)),
            dropout=float(network.get("CLASSIFIER_DROPOUT", 0.1)),
            **_classifier(network, "mlm", "1fc", "2fc"),
        )
    if task.startswith("refcoco"):
        return VlBertRefcocoConfig(body=body, dropout=float(network.get("CLASSIFIER_DROPOUT", 0.0)))
    if task == "vcr":
        return VlBertVcrConfig(
            body=body,
            dropout=float(network.get("CLASSIFIER_DROPOUT", 0.1)),
            category_dropout=float(network.get("CNN_REG_DROPOUT", 0.0)),
            **_classifier(network, "1fc", "2fc"),
        )
    return body


def _classifier(network: Mapping[str, Any], *kinds: str) -> dict[str, Any]:
    """Reads a task's classifier; the default is the first of ``kinds``."""
    kind = network.get("CLASSIFIER_TYPE", kinds[0])
    if kind not in kinds:
        raise ValueError(f"CLASSIFIER_TYPE={kind!r}: expected one of {', '.join(kinds)}")
    return {"classifier": kind, "classifier_width": network.get("CLASSIFIER_HIDDEN_SIZE", 1024)}


def _narrowed(config: Mapping[str, Any]) -> VlBertEndToEndConfig:
    """Configures only the region network, with other widths, and the smallest VL-BERT on top."""
    for key, value in FIXED_REGIONS.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key}={config[key]!r}: only {value!r} is supported")
    rows, columns = config.get("roi_output", (14, 14))
    if rows != columns:
        raise ValueError(f"roi_output={config['roi_output']!r}: expected a square")
    cnn = RegionCnnConfig(
        blocks=(*config["layer_blocks"], 3),
        widths=(*config["layer_planes"], config["head_planes"]),
        stem_channels=config["stem_channels"],
        stride_in_1x1=config["stride_in_1x1"],
        dilated=config["c5_dilated"],
        pool_size=rows,
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
