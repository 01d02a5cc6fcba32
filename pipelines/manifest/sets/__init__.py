"""Published data sets, a file each: its layout, and what its rows become.

To add one, write such a file and its line in ``SETS``.
"""

from vlmill.pipelines.manifest.entries import DataSet
from vlmill.pipelines.manifest.sets import (
    conceptual_captions,
    glue,
    nlvr2,
    refcoco,
    vcr,
    vgqa,
    vqa,
)

SETS: dict[str, DataSet] = {
    "cc": conceptual_captions.CC3M,
    "cc3m": conceptual_captions.CC3M,
    "cc12m": conceptual_captions.CC12M,
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
