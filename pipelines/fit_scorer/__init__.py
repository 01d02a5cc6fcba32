"""Fits the model that scores how well a text describes its image, on labelled pairs.

Reading order: ``__main__`` (the flags) and ``job``.
"""
