"""Loads a checkpoint with its detector, for your own images and texts (``vlmill.load``).

Reading order: ``model``, ``images`` (files, PIL and arrays as tables), ``detector`` (finds the
detector of the checkpoint's training), ``answering`` and ``region_weights`` (the effect of regions
on a score).
"""
