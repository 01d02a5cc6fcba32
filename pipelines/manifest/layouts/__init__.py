"""Reads the annotation layouts that several data sets share.

Reading order: for captions, ``karpathy`` (split files); for boxes, ``boxes`` (from the stored image
to the upright one), ``box_files`` (TSV, COCO's JSON, Pascal VOC), ``yolo_files``, and
``instances``; for answers, ``vqa_answers``; for other examples, ``examples``; for the hub's Parquet
files, ``hub_columns`` and ``glue_hub``.
"""
