"""Objectives say what a model is trained for.

Reading order: ``losses``, ``negatives`` (drawn from all processes' pairs), ``contrast`` and
``pretraining``, which adds them up.
"""
