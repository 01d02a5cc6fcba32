"""Loads a checkpoint with its detector, for your own images and texts (``vlmill.load``).

Reading order: ``model``, ``images`` (files, PIL and arrays as tables), ``detector`` (finds the one
that the checkpoint was trained with), ``answering`` and ``region_weights`` (which regions a score
rests on).
"""
