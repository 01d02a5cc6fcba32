"""A checkpoint with its detector, for one's own pictures and texts: what ``vlmill.load`` gives.

Reading order: ``model``, ``pictures`` (files, PIL and arrays as tables), ``detector`` (the
checkpoint's own, found again) and ``answering``.
"""
