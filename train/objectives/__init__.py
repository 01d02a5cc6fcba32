"""Objectives say what a model is trained for.

Reading order: ``losses``, ``contrast`` and ``pretraining``, which adds them up.
"""
