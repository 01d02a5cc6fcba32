"""``train-vl push``: a checkpoint to the Hugging Face hub.

Reading order: ``command``, ``card`` (the model card), ``upload``.
"""
