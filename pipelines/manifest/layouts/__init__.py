"""Layouts of annotation files that several data sets share become rows here.

Of captions: ``karpathy`` (split files) and ``scan``. Of boxes: ``boxes`` (from the stored image
to the upright one), ``box_files`` (TSV, COCO's JSON, Pascal VOC), ``yolo_files``, ``instances``,
``detections`` and ``vcr_objects``. Of answers: ``vqa_answers``. Of
the hub's Parquet files: ``hub_columns``.
"""
