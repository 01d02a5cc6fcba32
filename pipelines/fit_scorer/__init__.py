"""Fits the model that scores how well a text describes its image, on labelled pairs.

Reading order: ``command`` (the flags) and ``job``.
"""
