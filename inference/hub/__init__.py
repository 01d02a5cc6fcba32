"""Checkpoints of the Hugging Face hub.

Reading order: ``repository`` (names of repositories), ``download``.
"""
