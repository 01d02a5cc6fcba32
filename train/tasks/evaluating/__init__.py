"""A fine-tuned checkpoint is measured on its task's examples here.

Reading order: ``job`` (tables and a checkpoint in; metrics, a page and the server's files out),
``inputs`` (what it reads, and whether that fits together), ``region_weights`` (which regions an
answer rests on) and ``report``.
"""
