"""A checkpoint with its detector, for one's own images and texts: what ``vlmill.load`` gives.

Reading order: ``model``, ``images`` (files, PIL and arrays as tables), ``detector`` (the
checkpoint's own, found again), ``answering``, ``left_out`` (which regions a score rests on) and
``faults``. A checkpoint comes from the Hugging Face hub (``places``, ``hub``) and goes there with a
model card (``command``, ``push``, ``card``).
"""
