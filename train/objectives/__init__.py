"""Objectives say what a model is trained for.

Reading order: ``losses``, ``negatives`` (drawn from all processes' pairs), ``cached_contrast`` (of
a step in parts), ``contrast`` and ``pretraining``, which adds them up.
"""
