"""Uploads a checkpoint to the Hugging Face hub (``train-vl push``).

Reading order: ``command``, ``upload`` (and the model card).
"""
