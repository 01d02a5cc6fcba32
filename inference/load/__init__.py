"""Loads a checkpoint with its detector, for your own images and texts (``vlmill.load``).

Reading order: ``public`` (the object that users call), ``model``, ``images`` (files, PIL, arrays
and tensors as tables), ``detector`` (finds the detector of the checkpoint's training),
``answering``, and ``explaining`` (the effect of parts of an image on a score).
"""
