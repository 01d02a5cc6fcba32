"""Measures a fine-tuned checkpoint on the examples of its task.

Reading order: ``model`` (predicts examples), ``job`` (reads tables and a checkpoint; writes
metrics, a page and the server's files), and ``inputs`` (opens these inputs and checks that they fit
together).
"""
