"""Loads a checkpoint with its detector, for your own images and texts (``vlmill.load``).

Reading order: ``public`` (the object that users call, and the files, arrays and tensors that it
takes for images), ``model`` (opens a checkpoint, predicts with the head of its task), ``scoring``
(scores and vectors), ``detector`` (finds the detector of the checkpoint's training), ``explaining``
(the effect of parts of an image on a score) and ``faults`` (warnings of invalid inputs).
"""
