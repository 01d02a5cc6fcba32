"""Defines published data sets, one file each: the layout, and the table rows made from it.

To add one, write its file, add a line to ``SETS`` and its title to ``listed.TITLES``.
"""

from vlmill.pipelines.manifest.entries import DataSet
from vlmill.pipelines.manifest.sets import (
    coco,
    coco_json,
    conceptual_captions,
    flickr30k,
    glue,
    hugging_face,
    imagenet,
    laion,
    nlvr2,
    own_boxes,
    own_tables,
    refcoco,
    sbu,
    texts,
    vcr,
    vg_detector,
    vgqa,
    visual_genome,
    vqa,
    webdataset,
)

SETS: dict[str, DataSet] = {
    "cc": conceptual_captions.CC3M,
    "cc3m": conceptual_captions.CC3M,
    "cc12m": conceptual_captions.CC12M,
    "sbu": sbu.SBU,
    "laion": laion.LAION,
    "coco": coco.COCO,
    "coco-karpathy": coco.COCO_KARPATHY,
    "flickr30k": flickr30k.FLICKR30K,
    "vg": visual_genome.VISUAL_GENOME,
    "vg-detector": vg_detector.VG_DETECTOR,
    "boxes": own_boxes.OWN_BOXES,
    "lait": own_tables.LAIT,
    "tao": own_tables.TAO,
    "text": texts.TEXTS,
    "imagenet22k": imagenet.IMAGENET22K,
    "webdataset": webdataset.WEBDATASET,
    "hf": hugging_face.HUGGING_FACE,
    "coco-json": coco_json.COCO_JSON,
    "vqa1": vqa.VQA1,
    "vqa2": vqa.VQA2,
    "vgqa": vgqa.VGQA,
    "vcr": vcr.VCR,
    "refcoco": refcoco.REFCOCO,
    "refcoco+": refcoco.REFCOCO_PLUS,
    "refcocog": refcoco.REFCOCOG,
    "nlvr2": nlvr2.NLVR2,
    "glue": glue.GLUE,
}
