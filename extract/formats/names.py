"""Lists the formats: their names, the projects that read them, and the columns that each holds.

It imports no library, so that the parser of the command line can use it.
"""

from dataclasses import dataclass

IMPORT_JOB = "extract-rois import"
BACKGROUNDS = ("first", "none", "last")  # column of the background in a distribution
CLASSES = ("class_ids", "class_scores")
ATTRIBUTES = ("attribute_ids", "attribute_scores")
PROBS = ("class_probs",)


@dataclass(frozen=True, kw_only=True)
class Format:
    """Describes one layout that ``export`` writes.

    ``reader`` is the family whose reader reads it. ``needs`` are required columns, and ``keeps``
    optional ones; both in addition to image_id, width, height, boxes and features. ``folder`` holds
    patterns of the file names in an export that is a folder; empty for a file.
    """

    reader: str
    users: str
    layout: str
    needs: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    folder: tuple[str, ...] = ()

    @property
    def holds(self) -> tuple[str, ...]:
        """Returns every column that the format can hold."""
        return (*self.needs, *self.keeps)


_ALL = (*PROBS, *CLASSES, *ATTRIBUTES)
_LMDB = ("data.mdb", "lock.mdb")
FORMATS: dict[str, Format] = {
    "tsv": Format(
        reader="tsv",
        users="LXMERT",
        layout="a line an image: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, "
        "attrs_conf, num_boxes, boxes, features",
        needs=(*CLASSES, *ATTRIBUTES),
    ),
    "tsv6": Format(
        reader="tsv",
        users="bottom-up-attention, its captioning and VQA code",
        layout="a line an image: image_id, image_w, image_h, num_boxes, boxes, features",
    ),
    "tsv7": Format(
        reader="tsv",
        users="ViLBERT (vilbert_beta)",
        layout="as tsv6, then cls_prob, background first",
        needs=PROBS,
    ),
    "lmdb": Format(
        reader="lmdb",
        users="ViLBERT (vilbert_beta)",
        layout="image_id to a pickle of the texts of tsv6 or tsv7 by name; keys",
        keeps=_ALL,
        folder=_LMDB,
    ),
    "lmdb-multitask": Format(
        reader="lmdb",
        users="vilbert-multi-task (12-in-1)",
        layout="image_id to a pickle of arrays: image_h, image_w, num_boxes, boxes, features",
        keeps=_ALL,
        folder=_LMDB,
    ),
    "lmdb-volta": Format(
        reader="lmdb",
        users="VOLTA",
        layout="img_id to a pickle of arrays: img_h, img_w, boxes, features, obj_id, obj_conf, "
        "attr_id, attr_conf",
        keeps=_ALL,
        folder=_LMDB,
    ),
    "lmdb-mmf": Format(
        reader="lmdb",
        users="MMF",
        layout="feature_path to a pickle of arrays: features, bbox, image_height, image_width, "
        "num_boxes, objects, cls_prob",
        keeps=(*PROBS, "class_ids"),
        folder=_LMDB,
    ),
    "npy": Format(
        reader="npy",
        users="vilbert-multi-task",
        layout="ID.npy, a dict: image_id, image_height, image_width, num_boxes, bbox, features, "
        "objects, cls_prob",
        keeps=(*PROBS, "class_ids"),
        folder=("*.npy",),
    ),
    "npy-mmf": Format(
        reader="npy",
        users="MMF",
        layout="ID.npy, features [N, D], and ID_info.npy, a dict: bbox, image_height, "
        "image_width, num_boxes, objects, cls_prob",
        keeps=(*PROBS, "class_ids"),
        folder=("*.npy",),
    ),
    "npz": Format(
        reader="npz",
        users="MILVLG bottom-up-attention.pytorch",
        layout="ID.npz: x [N, D], bbox, num_bbox, image_h, image_w, info",
        keeps=_ALL,
        folder=("*.npz",),
    ),
    "npz-openvqa": Format(
        reader="npz",
        users="OpenVQA, MCAN (VQA)",
        layout="ID.npz: x [D, N], bbox, num_bbox, image_h, image_w",
        folder=("*.npz",),
    ),
    "npz-gqa": Format(
        reader="npz",
        users="OpenVQA (GQA)",
        layout="ID.npz: x [N, D], bbox, width, height",
        folder=("*.npz",),
    ),
    "npz-uniter": Format(
        reader="npz",
        users="UNITER",
        layout="ID.npz: norm_bb [N, 6], features, conf, soft_labels, background first",
        needs=(*PROBS, "class_scores"),
        folder=("*.npz",),
    ),
    "npz-cocobu": Format(
        reader="npz",
        users="self-critical.pytorch and other captioning code",
        layout="PATH_att/ID.npz: feat [N, D]; PATH_box/ID.npy [N, 4]; PATH_fc/ID.npy [D]",
    ),
    "hdf5": Format(
        reader="hdf5",
        users="bottom-up-attention-vqa, BAN",
        layout="hdf5-fixed if every image has the same number of boxes, else hdf5-adaptive",
        keeps=_ALL,
    ),
    "hdf5-fixed": Format(
        reader="hdf5",
        users="bottom-up-attention-vqa, BAN with 36 boxes",
        layout="image_features [P, N, D], image_bb [P, N, 4], spatial_features [P, N, 6]; "
        "PATH_imgid2idx.pkl",
        keeps=_ALL,
    ),
    "hdf5-adaptive": Format(
        reader="hdf5",
        users="BAN with 10 to 100 boxes",
        layout="image_features [B, D], image_bb [B, 4], spatial_features [B, 6], pos_boxes "
        "[P, 2]; PATH_imgid2idx.pkl",
        keeps=_ALL,
    ),
    "oscar": Format(
        reader="oscar",
        users="Oscar and VinVL (captioning)",
        layout="feature.tsv (JSON, features [N, D + 6]), label.tsv, predictions.tsv, their "
        ".lineidx, imageid2idx.json",
        needs=CLASSES,
        keeps=ATTRIBUTES,
        folder=("*.tsv", "*.lineidx", "*.json"),
    ),
    "oscar-retrieval": Format(
        reader="oscar",
        users="Oscar and VinVL (retrieval)",
        layout="features.tsv (image_id, num_boxes, features [N, D + 6]), predictions.tsv, their "
        ".lineidx, imageid2idx.json",
        needs=CLASSES,
        keeps=ATTRIBUTES,
        folder=("*.tsv", "*.lineidx", "*.json"),
    ),
    "vl-bert": Format(
        reader="vl-bert",
        users="VL-BERT",
        layout="a zip of NAME/ID.json: image_id, image_w, image_h, num_boxes, boxes, features, "
        "classes",
        keeps=PROBS,
    ),
}
READERS = tuple(dict.fromkeys(format_.reader for format_ in FORMATS.values()))


def describe_formats() -> str:
    """Returns the help text: each format, the projects that read it and its layout."""
    lines = ["formats:"]
    for name, format_ in FORMATS.items():
        lines += [f"  {name:16}{format_.users}", *_wrap(format_.layout)]
    return "\n".join(lines)


def _wrap(text: str, indent: int = 18, width: int = 98) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and indent + len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return [" " * indent + line for line in lines]
