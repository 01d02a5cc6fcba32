"""Uploads a checkpoint to the Hugging Face hub (``train-vl push``).

Reading order: ``command``, ``card`` (the model card), ``upload``.
"""
