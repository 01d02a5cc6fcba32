"""The formats have these names, and the help says this about them."""

FORMAT_NAMES = """formats:
  tsv    LXMERT: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes,
         boxes, features; base64 of int64 and float32; no header
  tsv6   the original repository (bottom-up attention): image_id, image_w, image_h, num_boxes,
         boxes, features
  tsv7   ViLBERT: as tsv6, then cls_prob (background first)
  lmdb   ViLBERT: a folder; image_id to a pickle of tsv6's or tsv7's texts by name
  npz    MILVLG: a folder of one file an image: x, bbox, num_bbox, image_h, image_w, info
  hdf5   VQA code bases (bottom-up-attention-vqa, BAN), with the ids inside: image_features,
         image_bb, spatial_features, pos_boxes, image_ids, image_w, image_h
"""


IMPORT_JOB = "extract-rois import"
FORMATS = ("tsv", "tsv6", "tsv7", "lmdb", "npz", "hdf5")
BACKGROUNDS = ("first", "none", "last")  # columns of the background in a distribution
