"""Defines the objectives that models are trained for.

Reading order: ``losses``, ``negatives`` (sampled from all processes' pairs), ``cached_contrast``
(for a step in parts), ``contrast`` and ``pretraining``, which combines them.
"""
