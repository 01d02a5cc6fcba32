"""This folder holds what one does with a checkpoint.

Reading order: ``input_checks`` (what a checkpoint's input must have), ``load`` (``vlmill.load``),
``search`` (embeddings and their index), ``convert`` (checkpoints of other projects), ``show`` (how
a run was made), ``push`` (to the hub), ``service`` (scores, vectors and search over HTTP).
"""
