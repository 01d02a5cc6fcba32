"""Reads and writes VL-BERT's checkpoints (jackroos/VL-BERT) of all its tasks."""

from typing import get_args

from torch import Tensor, nn

from vlmill.models.convert.family import Family
from vlmill.models.convert.keymap import Link, link_module
from vlmill.models.convert.names import block_links, mlm_head_links
from vlmill.models.vlbert.backbone import torchvision_name
from vlmill.models.vlbert.config import TaskConfig, VlBertEndToEndConfig
from vlmill.models.vlbert.encoder import VlBertBody
from vlmill.models.vlbert.end_to_end import VlBertEndToEnd, build_end_to_end, build_vlbert
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.published_settings import configure
from vlmill.models.vlbert.region_cnn import RegionCnn
from vlmill.models.vlbert.tasks import VlBertRefcoco, VlBertVcr, VlBertVqa

EXTRACTOR = "image_feature_extractor"
CONV5 = ("roi_head_feature_extractor", "head.0")


def build(config: TaskConfig | VlBertEndToEndConfig) -> nn.Module:
    """Builds the model that `configure` describes."""
    if isinstance(config, VlBertEndToEndConfig):
        return build_end_to_end(config)
    return build_vlbert(config)


def links(model: nn.Module, prefix: str = "") -> list[Link]:
    """Links any of the models' tensors, ``prefix`` before all our names."""
    if isinstance(model, VlBertEndToEnd):
        return [*_cnn_links(model.cnn), *links(model.model, "model.")]
    if isinstance(model, VlBert):
        return [*_body_links(model, prefix, "vlbert"), *_pretraining_links(model, prefix)]
    if isinstance(model, VlBertVqa):
        return [
            *_body_links(model.body, f"{prefix}body.", "vlbert"),
            *_answer_links(model.config.classifier, prefix),
        ]
    if isinstance(model, VlBertRefcoco):
        return [
            *_body_links(model.body, f"{prefix}body.", "vlbert"),
            *link_module(f"{prefix}head.transform.dense", "final_mlp.0.dense"),
            *link_module(f"{prefix}head.decoder", "final_mlp.2"),
        ]
    assert isinstance(model, VlBertVcr)
    return [
        *_body_links(model.body, f"{prefix}body.", "vlbert._module"),
        *_choice_links(model.config.classifier, prefix),
        *link_module(f"{prefix}category_head.transform.dense", "cnn_loss_reg.0.dense"),
        *link_module(f"{prefix}category_head.decoder", "cnn_loss_reg.2"),
    ]


def _answer_links(classifier: str, prefix: str) -> list[Link]:
    """Links VQA's classifier: numbers are indices into the reference's sequence of layers."""
    if classifier == "1fc":
        return link_module(f"{prefix}head.decoder", "final_mlp.1")
    if classifier == "2fc":
        hidden = link_module(f"{prefix}head.transform.dense", "final_mlp.1")
        return [*hidden, *link_module(f"{prefix}head.decoder", "final_mlp.4")]
    return [
        *link_module(f"{prefix}head.transform.dense", "final_mlp.0.dense"),
        *link_module(f"{prefix}head.transform.norm", "final_mlp.0.LayerNorm"),
        *link_module(f"{prefix}head.decoder", "final_mlp.2"),
    ]


def _choice_links(classifier: str, prefix: str) -> list[Link]:
    """Links VCR's classifier."""
    if classifier == "1fc":
        return link_module(f"{prefix}answer_head", "final_mlp.1")
    hidden = link_module(f"{prefix}answer_hidden.dense", "final_mlp.1")
    return [*hidden, *link_module(f"{prefix}answer_head", "final_mlp.4")]


def _pretraining_links(model: VlBert, prefix: str) -> list[Link]:
    keymap = []
    if model.mlm_head is not None:
        keymap += mlm_head_links(f"{prefix}mlm_head", "vlbert.mlm_head.predictions")
    if model.class_head is not None:
        keymap += link_module(
            f"{prefix}class_head.transform.dense", "vlbert.mvrc_head.transform.dense"
        )
        keymap += link_module(f"{prefix}class_head.decoder", "vlbert.mvrc_head.region_cls_pred")
    if model.match_head is not None:
        keymap += link_module(
            f"{prefix}match_head", "vlbert.relationsip_head.caption_image_relationship"
        )  # spelled so
    return keymap


def _body_links(body: VlBertBody, prefix: str, encoder_name: str) -> list[Link]:
    """Links the body; ``encoder_name`` is the encoder's name in the reference."""
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
    table_names = {o: f"{encoder_name}.{t}" for o, t in tables.items()} | single
    decoder = (f"{encoder_name}.mlm_head.predictions.decoder.weight",)
    has_decoder = isinstance(body, VlBert) and body.mlm_head is not None
    keymap = [
        Link(
            f"{prefix}{name}.weight",
            (f"{reference}.weight",),
            also=decoder if name == "text_embedding.word" and has_decoder else (),
        )
        for name, reference in table_names.items()
        if getattr(body, name.split(".")[0]) is not None
    ]
    keymap += link_module(f"{prefix}text_embedding.norm", f"{encoder_name}.embedding_LayerNorm")
    keymap += link_module(f"{prefix}region_vectors.projection", f"{EXTRACTOR}.obj_downsample.1")
    for name, kind in (("text_visual", "text"), ("region_visual", "object")):
        visual = getattr(body, name)
        if visual.projection is not None:
            keymap += link_module(f"{prefix}{name}.projection", f"{encoder_name}.visual_1x1_{kind}")
        if visual.norm is not None:
            keymap += link_module(f"{prefix}{name}.norm", f"{encoder_name}.visual_ln_{kind}")
        else:
            keymap.append(Link(f"{prefix}{name}.scale", (f"{encoder_name}.visual_scale_{kind}",)))
    for number in range(len(body.layers)):
        keymap += block_links(f"{prefix}layers.{number}", f"{encoder_name}.encoder.layer.{number}")
    if body.config.pooler:
        keymap += link_module(f"{prefix}pooler.dense", f"{encoder_name}.pooler.dense")
    return keymap


def _cnn_links(cnn: RegionCnn) -> list[Link]:
    """Links the region network to torchvision's names; the reference has two names for conv5."""
    keymap = []
    for name in cnn.state_dict():
        reference = torchvision_name(name)
        if reference.startswith("layer4."):
            block = reference.removeprefix("layer4.")
            first, again = (f"{EXTRACTOR}.{head}.{block}" for head in CONV5)
            keymap.append(Link(f"cnn.{name}", (first,), also=(again,)))
        else:
            keymap.append(Link(f"cnn.{name}", (f"{EXTRACTOR}.backbone.{reference}",)))
    return keymap


def prepare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds the prefixes of the full network if a part was saved separately."""
    if "word_embeddings.weight" in state:
        return {f"vlbert.{name}": tensor for name, tensor in state.items()}
    if "backbone.conv1.weight" in state:
        return {f"{EXTRACTOR}.{name}": tensor for name, tensor in state.items()}
    return state


VLBERT = Family(
    configs=(*get_args(TaskConfig), VlBertEndToEndConfig),
    configure=configure,
    build=build,
    links=links,
    prepare=prepare,
)
