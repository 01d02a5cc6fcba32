"""A fine-tuned checkpoint is measured on its task's examples here.

Reading order: ``job`` (tables and a checkpoint in; metrics, a page and the server's files out),
and ``inputs`` (what it reads, and whether that fits together).
"""
