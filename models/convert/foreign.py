"""Identifies the network of a state dict in an unsupported format, by its keys."""

from collections.abc import Iterable
from dataclasses import dataclass

CONVERT = "train-vl convert --family"
DETECTORS = "`extract-rois weights` lists the detectors that are read"
MODELS = "`train-vl weights` lists the checkpoints that are read"


@dataclass(frozen=True)
class Kind:
    """Describes a network by its keys: each of ``starts`` is a prefix of some key. ``remedy`` names
    the command that reads it.
    """

    name: str
    starts: tuple[str, ...]
    remedy: str


# The first match is used. vlmill's come first: their keys contain parts of others.
KINDS = (
    *(
        Kind(name, starts, f"give it to {CONVERT} {family}")
        for name, family, starts in (
            ("VL-BERT", "vl-bert", ("vlbert.visual_1x1",)),
            ("VL-BERT", "vl-bert", ("vlbert.word_embeddings.",)),
            ("ViLBERT", "vilbert", ("bert.v_embeddings.",)),
            ("VLMo", "vlmo", ("transformer.blocks.0.mlp_imag.",)),
            ("DALL-E's tokenizer of images", "dvae", ("blocks.group_1.",)),
            ("BEiT's own tokenizer of images", "dvae", ("codebook.weight", "encoder.0.0.")),
        )
    ),
    Kind("LXMERT", ("bert.encoder.r_layers.",), MODELS),
    Kind("LXMERT", ("lxmert.encoder.r_layers.",), MODELS),
    Kind("UNITER", ("uniter.img_embeddings.",), MODELS),
    Kind("UNITER", ("bert.img_embeddings.",), MODELS),
    Kind("Oscar or VinVL's model of texts and regions", ("bert.img_embedding.",), MODELS),
    Kind("VisualBERT", ("bert.embeddings.visual_projection.",), MODELS),
    Kind("VisualBERT", ("visual_bert.embeddings.",), MODELS),
    Kind("METER or BridgeTower", ("cross_modal_image_layers.",), MODELS),
    Kind("ALBEF or BLIP", ("visual_encoder.blocks.", "text_encoder."), MODELS),
    Kind("BLIP", ("visual_encoder.blocks.", "text_decoder."), MODELS),
    Kind("BLIP-2", ("Qformer.",), MODELS),
    Kind("BEiT-3", ("beit3.encoder.",), MODELS),
    Kind("ViLT", ("transformer.blocks.0.mlp.", "text_embeddings."), MODELS),
    Kind("ViLT", ("vilt.embeddings.",), MODELS),
    Kind("CLIP", ("visual.", "token_embedding."), MODELS),
    Kind("CLIP", ("vision_model.embeddings.", "text_model.embeddings."), MODELS),
    Kind("a detector of MMDetection", ("bbox_head.",), DETECTORS),
    Kind("a detector of MMDetection", ("roi_head.bbox_head.",), DETECTORS),
    Kind("a Faster R-CNN of jwyang/faster-rcnn.pytorch", ("RCNN_rpn.", "RCNN_base."), DETECTORS),
    Kind("a Faster R-CNN of chenyuntc's", ("extractor.0.", "head.cls_loc."), DETECTORS),
    Kind("a Faster R-CNN of torchvision", ("backbone.body.conv1.", "roi_heads."), DETECTORS),
    Kind("a RetinaNet of torchvision", ("backbone.body.conv1.", "head."), DETECTORS),
    Kind("a RetinaNet of Detectron2", ("head.cls_subnet.",), DETECTORS),
    Kind("a cascade of Detectron2", ("roi_heads.box_head.0.",), DETECTORS),
    Kind("a detector of Caffe2's Detectron", ("conv1_w", "rpn_cls_logits"), DETECTORS),
    Kind("a DETR", ("transformer.decoder.", "class_embed."), DETECTORS),
    Kind("a DETR", ("model.decoder.", "class_labels_classifier."), DETECTORS),
    Kind("an SSD", ("vgg.0.", "conf.0."), DETECTORS),
    Kind("a Darknet YOLO", ("module_list.0.",), DETECTORS),
    Kind("a YOLO of Ultralytics", ("0.conv.", "1.conv.", "9."), DETECTORS),
    Kind("a detector", ("proposal_generator.",), "give it to extract-rois run --weights"),
    Kind("a detector", ("rpn.head.", "roi_heads."), "give it to extract-rois run --weights"),
    Kind(
        "a ResNet that classifies images",
        ("layer1.0.conv1.", "fc."),
        "give it to extract-rois train --init or train-vl convert --backbone",
    ),
    Kind("a BEiT", ("blocks.0.attn.", "rel_pos_bias."), f"give it to {CONVERT} beit"),
    Kind("a BEiT", ("blocks.0.attn.relative_position_bias_table",), f"give it to {CONVERT} beit"),
    Kind("a ViT", ("blocks.0.attn.", "patch_embed."), f"give it to {CONVERT} vit"),
    Kind("a ViT", ("vit.embeddings.",), f"give it to {CONVERT} vit"),
    Kind("RoBERTa", ("roberta.embeddings.",), f"give it to {CONVERT} bert"),
    Kind("a BERT", ("bert.embeddings.word_embeddings.",), f"give it to {CONVERT} bert"),
    Kind("a BERT", ("embeddings.word_embeddings.", "encoder.layer."), f"give it to {CONVERT} bert"),
)


def identify(names: Iterable[str]) -> Kind | None:
    """Returns the network whose state dict has these names, or None."""
    names = sorted(names)
    for kind in KINDS:
        if all(any(name.startswith(start) for name in names) for start in kind.starts):
            return kind
    return None


def describe_foreign(names: Iterable[str], family: str | None = None) -> str:
    """Returns the end of an error message: the network of the file, and the remedy.

    "" if the network is unknown, or if the remedy is the ``family`` that the user specified.
    """
    kind = identify(names)
    if kind is None or kind.remedy == f"give it to {CONVERT} {family}":
        return ""
    return f"; the file is {kind.name}: {kind.remedy}"
