"""Measures a fine-tuned checkpoint on the examples of its task.

Reading order: ``recipe`` (how the checkpoint is fed, and its task), ``job`` (reads tables and a
checkpoint; writes metrics, a page and the server's files), and ``inputs`` (opens these inputs and
checks that they fit together).
"""
